"""The shape of a model, read from `config.json`: every size and layer id comes from here."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from diptych.core.errors import Misconfigured
from diptych.model.fields import Fields
from diptych.model.schedule import LayerSpec, schedule

CONFIG_FILE = "config.json"
GROUP = 32  # values that share a scale in every quantised product


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotation of the last `dim` channels: one base plain, one with YaRN for compressed layers."""

    dim: int
    theta: float
    compress_theta: float
    factor: float
    beta_fast: float
    beta_slow: float
    original_length: int


@dataclass(frozen=True, slots=True)
class EngramSpec:
    """The hashed n-gram memory."""

    layers: tuple[int, ...]
    rows: tuple[int, ...]  # of each table
    max_ngram: int
    heads: int
    head_dim: int
    vocab_size: int  # lower end of the prime search
    pad_token_id: int
    compressed_vocab_size: int

    @property
    def rows_per_token(self) -> int:
        return (self.max_ngram - 1) * self.heads


@dataclass(frozen=True, slots=True)
class DsparkSpec:
    """The draft module; so far only its tensors are checked."""

    layers: int
    block_size: int
    noise_token_id: int
    target_layers: tuple[int, ...]
    markov_rank: int
    experts: int
    experts_per_token: int


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The image encoder; so far only its tensors are checked."""

    layers: int
    hidden_size: int
    heads: int
    intermediate_size: int
    patch_size: int
    downsample: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model of the DeepSeek-V4.1 family."""

    quantised: bool  # stored in the released FP8 / FP4 formats
    vocab_size: int
    hidden_size: int
    num_heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    index_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source: int | None
    candidate_blocks: int
    candidate_block_size: int
    fp4_entries: bool
    num_experts: int
    experts_per_token: int
    expert_dim: int
    routed_scale: float
    swiglu_limit: float
    streams: int
    sinkhorn_iters: int
    hc_eps: float
    norm_eps: float
    max_positions: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]
    engram: EngramSpec | None
    dspark: DsparkSpec | None
    vision: VisionSpec | None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def kv_sources(self) -> tuple[LayerSpec, ...]:
        """The layers that own a compressed cache."""
        return tuple(layer for layer in self.layers if layer.owns_cache)

    @property
    def decoder_start(self) -> int:
        """The border, first layer of the decoder half: the first with ratio 1 (or behind all).

        It owns a compressed cache, the last one: behind it a layer keeps only its window.
        """
        return next((layer.index for layer in self.layers if layer.ratio == 1), len(self.layers))

    @property
    def draft_tokens(self) -> int:
        """Tokens a draft may add behind the accepted ones."""
        return self.dspark.block_size if self.dspark else 0

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read and check `folder/config.json`; Misconfigured names file, key and expectation."""
        path = Path(folder) / CONFIG_FILE
        try:
            raw = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise Misconfigured(f"{path}: not a readable JSON file: {error}") from error
        return cls.parse(raw, str(path))

    @classmethod
    def parse(cls, raw: object, file: str = CONFIG_FILE) -> Self:
        """Check a decoded configuration and give it names."""
        top = Fields.of(raw, file)
        text = top.section("text_config")
        top.require("model_type", "deepseek_v41")
        _require_constants(text)
        engram = _engram(text)
        dspark = _dspark(text)
        candidate = text.whole("candidate_source_layer_id", least=-1)
        spec = cls(
            quantised=_quantised(top),
            vocab_size=text.whole("vocab_size"),
            hidden_size=text.multiple("hidden_size", GROUP),
            num_heads=text.whole("num_attention_heads"),
            head_dim=text.multiple("head_dim", GROUP),
            q_lora_rank=text.multiple("q_lora_rank", GROUP),
            o_groups=text.whole("o_groups"),
            o_lora_rank=text.whole("o_lora_rank"),
            window=text.whole("sliding_window"),
            index_heads=text.whole("index_n_heads"),
            index_head_dim=text.multiple("index_head_dim", GROUP),
            index_topk=text.whole("index_topk"),
            candidate_source=None if candidate < 0 else candidate,
            candidate_blocks=text.whole("candidate_topk_blocks"),
            candidate_block_size=text.whole("candidate_block_size"),
            fp4_entries=text.flag("use_fp4_sparse_kv", default=True),
            num_experts=text.whole("n_routed_experts"),
            experts_per_token=text.whole("num_experts_per_tok"),
            expert_dim=text.multiple("moe_intermediate_size", GROUP),
            routed_scale=text.number("routed_scaling_factor"),
            swiglu_limit=text.number("swiglu_limit"),
            streams=text.whole("hc_mult"),
            sinkhorn_iters=text.whole("hc_sinkhorn_iters"),
            hc_eps=text.number("hc_eps"),
            norm_eps=text.number("rms_norm_eps"),
            max_positions=text.whole("max_position_embeddings"),
            bos_token_id=top.whole("bos_token_id", least=0),
            eos_token_id=top.whole("eos_token_id", least=0),
            pad_token_id=top.whole("pad_token_id", least=0),
            image_token_id=top.whole("image_token_id", least=0),
            rope=_rope(text),
            layers=schedule(
                text, candidate, engram.layers if engram else (), dspark.layers if dspark else 0
            ),
            engram=engram,
            dspark=dspark,
            vision=_vision(top),
        )
        _check_relations(spec, text)
        return spec


def _require_constants(text: Fields) -> None:
    """Switches of the family that this code knows in one position only."""
    text.require("model_type", "deepseek_v41_text")
    text.require("num_key_value_heads", 1)
    text.require("n_shared_experts", 1)
    text.require("scoring_func", "sqrtsoftplus")
    text.require("topk_method", "noaux_tc")
    text.require("norm_topk_prob", True)
    text.require("hidden_act", "silu")
    text.require("tie_word_embeddings", False)
    text.require("attention_bias", False)
    text.require_if_present("attention_dropout", 0.0)
    text.require_if_present("hc_shifted", True)
    text.require_if_present("dspark_target_attn_input", True)
    text.require_if_present("gate_temp", 1.0)
    text.require_if_present("index_k_source_layer_ids", text.whole_list("kv_source_layer_ids"))


def _quantised(top: Fields) -> bool:
    if not top.has("quantization_config"):
        return False
    quant = top.section("quantization_config")
    quant.require("quant_method", "fp8")
    quant.require("activation_scheme", "dynamic")
    quant.require("weight_block_size", [GROUP, GROUP])
    quant.require("scale_fmt", "ue8m0")
    quant.require("expert_dtype", "fp4")
    return True


def _rope(text: Fields) -> RopeSpec:
    scaling = text.section("rope_scaling")
    scaling.require("rope_type", "yarn")
    return RopeSpec(
        dim=text.multiple("qk_rope_head_dim", 2),
        theta=text.number("rope_theta"),
        compress_theta=text.number("compress_rope_theta"),
        factor=scaling.number("factor"),
        beta_fast=scaling.number("beta_fast"),
        beta_slow=scaling.number("beta_slow"),
        original_length=scaling.whole("original_max_position_embeddings"),
    )


def _engram(text: Fields) -> EngramSpec | None:
    layers = text.whole_list("engram_layer_ids")
    rows = text.whole_list("engram_num_embeddings")
    if len(layers) != len(rows):
        raise text.wrong("engram_num_embeddings", f"one row count for each of {layers}")
    if layers != sorted(set(layers)):
        raise text.wrong("engram_layer_ids", "ascending layers")
    if not layers:
        return None
    return EngramSpec(
        layers=tuple(layers),
        rows=tuple(rows),
        max_ngram=text.whole("engram_max_ngram_size", least=2),
        heads=text.whole("engram_n_heads"),
        head_dim=text.multiple("engram_head_dim", GROUP),
        vocab_size=text.whole("engram_vocab_size"),
        pad_token_id=text.whole("engram_pad_token_id", least=0),
        compressed_vocab_size=text.whole("engram_compressed_vocab_size"),
    )


def _dspark(text: Fields) -> DsparkSpec | None:
    layers = text.whole("num_nextn_predict_layers", least=0)
    if not layers:
        return None
    return DsparkSpec(
        layers=layers,
        block_size=text.whole("dspark_block_size"),
        noise_token_id=text.whole("dspark_noise_token_id", least=0),
        target_layers=tuple(text.whole_list("dspark_target_layer_ids")),
        markov_rank=text.whole("dspark_markov_rank"),
        experts=text.whole("dspark_n_routed_experts"),
        experts_per_token=text.whole("dspark_num_experts_per_tok"),
    )


def _vision(top: Fields) -> VisionSpec | None:
    if not top.has("vision_config"):
        return None
    vision = top.section("vision_config")
    vision.require("model_type", "deepseek_v41_vision")
    return VisionSpec(
        layers=vision.whole("num_hidden_layers"),
        hidden_size=vision.whole("hidden_size"),
        heads=vision.whole("num_attention_heads"),
        intermediate_size=vision.whole("intermediate_size"),
        patch_size=vision.whole("patch_size"),
        downsample=vision.whole("downsample_ratio"),
    )


def _check_relations(spec: ModelSpec, text: Fields) -> None:
    """Rules that tie fields together."""
    if spec.num_heads % spec.o_groups:
        raise text.wrong("num_attention_heads", f"a multiple of o_groups = {spec.o_groups}")
    if spec.o_groups * spec.o_lora_rank % GROUP:
        raise text.wrong("o_lora_rank", f"o_groups x o_lora_rank a multiple of {GROUP}")
    if spec.rope.dim > min(spec.head_dim, spec.index_head_dim):
        raise text.wrong("qk_rope_head_dim", "at most head_dim and index_head_dim")
    if spec.experts_per_token > spec.num_experts:
        raise text.wrong("num_experts_per_tok", f"at most n_routed_experts = {spec.num_experts}")
    covered = spec.candidate_blocks * spec.candidate_block_size
    if spec.candidate_source is not None and covered < spec.index_topk + spec.candidate_block_size:
        raise text.wrong(
            "candidate_topk_blocks",
            "candidate_topk_blocks x candidate_block_size >= index_topk + candidate_block_size",
        )
    split = spec.decoder_start
    if any(source.index > split for source in spec.kv_sources):
        raise text.wrong("kv_source_layer_ids", f"none behind {split}, the first of ratio 1")
    if spec.engram and any(layer >= split for layer in spec.engram.layers):
        raise text.wrong("engram_layer_ids", f"encoder layers, below {split}")
    if spec.dspark and any(not split <= t < spec.num_layers for t in spec.dspark.target_layers):
        raise text.wrong(
            "dspark_target_layer_ids", f"decoder layers, {split}..{spec.num_layers - 1}"
        )
