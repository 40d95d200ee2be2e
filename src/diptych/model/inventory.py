"""Every tensor of a checkpoint by its released name: logical shape and storage class."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto

from diptych.model.spec import DsparkSpec, EngramSpec, ModelSpec, VisionSpec


class Storage(StrEnum):
    """How the release stores a tensor. A checkpoint without quantisation keeps plain floats."""

    FP8 = auto()  # E4M3 with an E8M0 scale for each 32 x 32 square
    FP4 = auto()  # packed E2M1 with an E8M0 scale for each 32 values of a row
    TABLE = auto()  # E4M3 with an E8M0 scale for each 32 values of a row
    BF16 = auto()
    F32 = auto()


@dataclass(frozen=True, slots=True)
class Entry:
    """One logical tensor. Those that belong to parts of the model not built yet stay on disk."""

    shape: tuple[int, ...]
    storage: Storage
    loaded: bool = True


def inventory(spec: ModelSpec) -> dict[str, Entry]:
    """All tensors of the model in a fixed order; a quantised `X.weight` implies its `X.scale`."""
    entries = dict(_top(spec))
    for layer in spec.layers:
        prefix = f"layers.{layer.index}."
        entries |= _block(prefix, spec, spec.num_experts)
        entries |= _selection(prefix, spec, layer.index)
        if layer.engram is not None and spec.engram:
            entries |= _engram(prefix, spec, spec.engram, layer.engram)
    left_on_disk = []
    if spec.dspark:
        left_on_disk.append(_dspark(spec, spec.dspark))
    if spec.vision:
        left_on_disk.append(_vision(spec, spec.vision))
    for family in left_on_disk:
        entries |= {name: Entry(e.shape, e.storage, loaded=False) for name, e in family}
    return entries


Named = Iterator[tuple[str, Entry]]


def _top(spec: ModelSpec) -> Named:
    yield "embed.weight", Entry((spec.vocab_size, spec.hidden_size), Storage.BF16)
    yield "norm.weight", Entry((spec.hidden_size,), Storage.BF16)
    yield "head.weight", Entry((spec.vocab_size, spec.hidden_size), Storage.BF16)


def _block(prefix: str, spec: ModelSpec, num_experts: int) -> Named:
    """What every backbone and every draft layer has."""
    hidden, rank, heads = spec.hidden_size, spec.q_lora_rank, spec.num_heads
    mixes = spec.streams * (spec.streams + 2)
    for name in ("attn_norm", "ffn_norm"):
        yield f"{prefix}{name}.weight", Entry((hidden,), Storage.BF16)
    attn = f"{prefix}attn."
    group_width = heads * spec.head_dim // spec.o_groups
    low_rank = spec.o_groups * spec.o_lora_rank
    yield f"{attn}wq_a.weight", Entry((rank, hidden), Storage.FP8)
    yield f"{attn}q_norm.weight", Entry((rank,), Storage.BF16)
    yield f"{attn}wq_b.weight", Entry((heads * spec.head_dim, rank), Storage.FP8)
    yield f"{attn}wkv.weight", Entry((spec.head_dim, hidden), Storage.FP8)
    yield f"{attn}kv_norm.weight", Entry((spec.head_dim,), Storage.BF16)
    yield f"{attn}wo_a.weight", Entry((low_rank, group_width), Storage.FP8)
    yield f"{attn}wo_b.weight", Entry((hidden, low_rank), Storage.FP8)
    yield f"{attn}attn_sink", Entry((heads,), Storage.F32)
    for part in ("attn", "ffn"):
        yield f"{prefix}hc_{part}_fn", Entry((mixes, spec.streams * hidden), Storage.F32)
        yield f"{prefix}hc_{part}_base", Entry((mixes,), Storage.F32)
        yield f"{prefix}hc_{part}_scale", Entry((3,), Storage.F32)
    ffn = f"{prefix}ffn."
    yield f"{ffn}gate.weight", Entry((num_experts, hidden), Storage.BF16)
    yield f"{ffn}gate.bias", Entry((num_experts,), Storage.F32)
    yield f"{ffn}gate.bias_vl", Entry((num_experts,), Storage.F32)
    yield from _mlp(f"{ffn}shared_experts.", spec, Storage.FP8)
    for expert in range(num_experts):
        yield from _mlp(f"{ffn}experts.{expert}.", spec, Storage.FP4)


def _mlp(prefix: str, spec: ModelSpec, storage: Storage) -> Named:
    yield f"{prefix}w1.weight", Entry((spec.expert_dim, spec.hidden_size), storage)
    yield f"{prefix}w2.weight", Entry((spec.hidden_size, spec.expert_dim), storage)
    yield f"{prefix}w3.weight", Entry((spec.expert_dim, spec.hidden_size), storage)


def _selection(prefix: str, spec: ModelSpec, index: int) -> Named:
    """Compressor and indexer, where the schedule puts them."""
    layer = spec.layers[index]
    compressor, indexer = f"{prefix}attn.compressor.", f"{prefix}attn.indexer."
    if layer.owns_cache:
        yield f"{compressor}wkv.weight", Entry((spec.head_dim, spec.hidden_size), Storage.BF16)
        yield f"{compressor}norm.weight", Entry((spec.head_dim,), Storage.BF16)
        if layer.ratio > 1:
            shape = (spec.head_dim, spec.hidden_size)
            yield f"{compressor}wgate.weight", Entry(shape, Storage.BF16)
        yield f"{indexer}wk.weight", Entry((spec.index_head_dim, spec.head_dim), Storage.BF16)
        yield f"{indexer}k_norm.weight", Entry((spec.index_head_dim,), Storage.BF16)
    if layer.selects:
        shape = (spec.index_heads * spec.index_head_dim, spec.q_lora_rank)
        yield f"{indexer}wq_b.weight", Entry(shape, Storage.FP8)
        shape = (spec.index_heads, spec.hidden_size)
        yield f"{indexer}weights_proj.weight", Entry(shape, Storage.BF16)


def _engram(prefix: str, spec: ModelSpec, engram: EngramSpec, table: int) -> Named:
    hidden, streams = spec.hidden_size, spec.streams
    width = engram.rows_per_token * engram.head_dim
    yield (
        f"{prefix}engram.embed.weight",
        Entry((engram.rows[table], engram.head_dim), Storage.TABLE),
    )
    yield f"{prefix}engram.wkv.weight", Entry(((streams + 1) * hidden, width), Storage.FP8)
    yield f"{prefix}engram.q_weight", Entry((streams, hidden), Storage.BF16)
    yield f"{prefix}engram.k_weight", Entry((streams, hidden), Storage.BF16)


def _dspark(spec: ModelSpec, dspark: DsparkSpec) -> Named:
    hidden, rank, last = spec.hidden_size, dspark.markov_rank, dspark.layers - 1
    for layer in range(dspark.layers):
        yield from _block(f"mtp.{layer}.", spec, dspark.experts)
    width = len(dspark.target_layers) * hidden
    yield "mtp.0.main_proj.weight", Entry((hidden, width), Storage.FP8)
    yield "mtp.0.main_norm.weight", Entry((hidden,), Storage.BF16)
    yield f"mtp.{last}.norm.weight", Entry((hidden,), Storage.BF16)
    for name in ("embed", "head"):
        shape = (spec.vocab_size, rank)
        yield f"mtp.{last}.markov_head.{name}.weight", Entry(shape, Storage.BF16)
    yield f"mtp.{last}.confidence_head.proj.weight", Entry((1, hidden + rank), Storage.BF16)


def _vision(spec: ModelSpec, vision: VisionSpec) -> Named:
    width, inner, hidden = vision.hidden_size, vision.intermediate_size, spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "image_start": (hidden,),
        "image_end": (hidden,),
        "image_newline": (hidden,),
        "vision.patch_embed.proj.weight": (width, 3 * vision.patch_size**2),
        "vision.patch_embed.proj.bias": (width,),
        "vision.norm.weight": (width,),
        "aligner.w1.weight": (hidden, width * vision.downsample**2),
        "aligner.w1.bias": (hidden,),
        "aligner.w2.weight": (hidden, hidden),
        "aligner.w2.bias": (hidden,),
    }
    for block in range(vision.layers):
        prefix = f"vision.blocks.{block}."
        shapes |= {
            f"{prefix}norm1.weight": (width,),
            f"{prefix}norm2.weight": (width,),
            f"{prefix}attn.wqkv.weight": (3 * width, width),
            f"{prefix}attn.wqkv.bias": (3 * width,),
            f"{prefix}attn.wo.weight": (width, width),
            f"{prefix}attn.wo.bias": (width,),
            f"{prefix}mlp.w1.weight": (2 * inner, width),
            f"{prefix}mlp.w2.weight": (width, inner),
        }
    for name, shape in shapes.items():
        yield name, Entry(shape, Storage.BF16)
