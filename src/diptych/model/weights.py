"""The weights of a model as plain values, and how a checkpoint becomes them.

`assemble` names every tensor once and puts it in its place; where tensors come from is its
argument. Loading a folder, training from a parameter dictionary and a generated test model
differ in nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from diptych.core.errors import Misconfigured
from diptych.model.attention import AttentionWeights
from diptych.model.checkpoint import Checkpoint
from diptych.model.compressor import CompressorWeights
from diptych.model.engram import EngramWeights, Table
from diptych.model.indexer import IndexerWeights
from diptych.model.inventory import Entry, Storage, inventory
from diptych.model.mhc import MixWeights
from diptych.model.moe import MoeWeights
from diptych.model.ngrams import Hashing, compression_map
from diptych.model.numerics import Numerics
from diptych.model.quant import FP8_G32, MXFP4_G32, decode_fp8_blocks, round_bf16
from diptych.model.schedule import LayerSpec
from diptych.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer."""

    attn_norm: Tensor  # [D]
    ffn_norm: Tensor  # [D]
    attn: AttentionWeights
    moe: MoeWeights
    hc_attn: MixWeights
    hc_ffn: MixWeights
    engram: EngramWeights | None


@dataclass(frozen=True, slots=True)
class Weights:
    """The text model."""

    embed: Tensor  # [V, D]
    norm: Tensor  # [D]
    head: Tensor  # [V, D]
    layers: tuple[LayerWeights, ...]
    hashing: Hashing | None  # n-grams to table rows; None without Engram layers


def load(folder: Path | str, spec: ModelSpec, numerics: Numerics, device: str = "cpu") -> Weights:
    """Read a checkpoint folder of the released names: FP8 / FP4 formats, or plain floats.

    Misconfigured for a missing, extra, mis-shaped or mis-typed tensor, by name. Engram tables stay
    mapped as stored; all else is dequantised to the dtype of `numerics`.
    """
    checkpoint = Checkpoint.open(folder)
    entries = inventory(spec)
    check(checkpoint, entries, spec)

    def dense(name: str) -> Tensor:
        values = dequantise(checkpoint, name, entries[name], quantised=spec.quantised)
        if numerics.rounds_activations and entries[name].storage is not Storage.F32:
            values = round_bf16(values)  # a no-op but for checkpoints wider than the release's
        return values.to(device, numerics.dtype, copy=True).contiguous()

    def table(name: str) -> Table:
        scales = checkpoint.read(scale_name(name)) if spec.quantised else None
        return Table(checkpoint.read(name), scales, numerics.dtype)

    hashing = Hashing.of(spec.engram, compression_map(folder, spec)) if spec.engram else None
    return assemble(spec, dense, table, hashing)


def assemble(
    spec: ModelSpec,
    dense: Callable[[str], Tensor],
    table: Callable[[str], Table],
    hashing: Hashing | None,
) -> Weights:
    """Put tensors in their places; `dense` and `table` give them by released name."""
    return Weights(
        embed=dense("embed.weight"),
        norm=dense("norm.weight"),
        head=dense("head.weight"),
        layers=tuple(_layer(spec, layer, dense, table) for layer in spec.layers),
        hashing=hashing,
    )


def _layer(
    spec: ModelSpec,
    layer: LayerSpec,
    dense: Callable[[str], Tensor],
    table: Callable[[str], Table],
) -> LayerWeights:
    prefix = f"layers.{layer.index}."

    def get(name: str) -> Tensor:
        return dense(prefix + name)

    def stacked(name: str) -> Tensor:
        names = (f"ffn.experts.{e}.{name}.weight" for e in range(spec.num_experts))
        return torch.stack([get(n) for n in names])

    def mix(part: str) -> MixWeights:
        return MixWeights(get(f"hc_{part}_fn"), get(f"hc_{part}_base"), get(f"hc_{part}_scale"))

    compressor = (
        CompressorWeights(
            wkv=get("attn.compressor.wkv.weight"),
            wgate=get("attn.compressor.wgate.weight") if layer.ratio > 1 else None,
            norm=get("attn.compressor.norm.weight"),
            wk=get("attn.indexer.wk.weight"),
            k_norm=get("attn.indexer.k_norm.weight"),
        )
        if layer.owns_cache
        else None
    )
    indexer = (
        IndexerWeights(
            wq_b=get("attn.indexer.wq_b.weight"),
            weights_proj=get("attn.indexer.weights_proj.weight"),
        )
        if layer.selects
        else None
    )
    engram = (
        EngramWeights(
            table=table(f"{prefix}engram.embed.weight"),
            wkv=get("engram.wkv.weight"),
            q_weight=get("engram.q_weight"),
            k_weight=get("engram.k_weight"),
        )
        if layer.engram is not None
        else None
    )
    return LayerWeights(
        attn_norm=get("attn_norm.weight"),
        ffn_norm=get("ffn_norm.weight"),
        attn=AttentionWeights(
            wq_a=get("attn.wq_a.weight"),
            q_norm=get("attn.q_norm.weight"),
            wq_b=get("attn.wq_b.weight"),
            wkv=get("attn.wkv.weight"),
            kv_norm=get("attn.kv_norm.weight"),
            wo_a=get("attn.wo_a.weight"),
            wo_b=get("attn.wo_b.weight"),
            sink=get("attn.attn_sink"),
            compressor=compressor,
            indexer=indexer,
        ),
        moe=MoeWeights(
            gate=get("ffn.gate.weight"),
            bias=get("ffn.gate.bias"),
            bias_vl=get("ffn.gate.bias_vl"),
            w1=stacked("w1"),
            w2=stacked("w2"),
            w3=stacked("w3"),
            shared_w1=get("ffn.shared_experts.w1.weight"),
            shared_w2=get("ffn.shared_experts.w2.weight"),
            shared_w3=get("ffn.shared_experts.w3.weight"),
        ),
        hc_attn=mix("attn"),
        hc_ffn=mix("ffn"),
        engram=engram,
    )


def scale_name(name: str) -> str:
    """The tensor that holds the scales of a quantised weight."""
    return name.removesuffix(".weight") + ".scale"


def dequantise(checkpoint: Checkpoint, name: str, entry: Entry, *, quantised: bool) -> Tensor:
    """A tensor's values as float32 (or the wider float it is stored in)."""
    stored = checkpoint.read(name)
    if not quantised or entry.storage in (Storage.BF16, Storage.F32):
        return stored if stored.dtype == torch.float64 else stored.float()
    scales = checkpoint.read(scale_name(name))
    if entry.storage is Storage.FP8:
        return decode_fp8_blocks(stored, scales)
    rows = MXFP4_G32 if entry.storage is Storage.FP4 else FP8_G32
    return rows.decode(stored, scales)


def check(checkpoint: Checkpoint, entries: dict[str, Entry], spec: ModelSpec) -> None:
    """Compare what is stored with what the model needs; Misconfigured names a difference."""
    expected: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    for name, entry in entries.items():
        expected |= stored_as(name, entry, quantised=spec.quantised)
    drafts = spec.dspark.layers if spec.dspark else 0
    ignored = {f"mtp.{i}.{part}.weight" for i in range(drafts) for part in ("embed", "head")}
    for name, (shape, dtypes) in expected.items():
        found = checkpoint.tensors.get(name)
        if found is None:
            raise Misconfigured(f"{checkpoint.folder}: tensor {name}: missing; expected {shape}")
        if found.shape != shape:
            raise Misconfigured(
                f"{found.file}: tensor {name}: expected shape {shape}, found {found.shape}"
            )
        if found.dtype not in dtypes:
            raise Misconfigured(
                f"{found.file}: tensor {name}: expected {' or '.join(dtypes)}, found {found.dtype}"
            )
    for name, found in checkpoint.tensors.items():
        if name not in expected and name not in ignored:
            raise Misconfigured(f"{found.file}: tensor {name}: not part of this model")


def stored_as(
    name: str, entry: Entry, *, quantised: bool
) -> dict[str, tuple[tuple[int, ...], tuple[str, ...]]]:
    """Stored tensors, shapes and dtypes behind one logical tensor."""
    if not quantised:
        return {name: (entry.shape, ("F32", "BF16"))}
    if entry.storage in (Storage.BF16, Storage.F32):
        return {name: (entry.shape, (entry.storage.upper(),))}
    rows, columns = entry.shape
    if entry.storage is Storage.FP8:
        scales = (-(-rows // 32), -(-columns // 32))
    else:
        scales = (rows, -(-columns // 32))
    packed = entry.storage is Storage.FP4
    return {
        name: ((rows, columns // 2), ("I8",)) if packed else (entry.shape, ("F8_E4M3",)),
        scale_name(name): (scales, ("F8_E8M0",)),
    }
