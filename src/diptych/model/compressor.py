"""Compressor: one or two tokens become an entry of the compressed cache, and the key to find it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.layers import linear, rms_norm
from diptych.model.memory import Memory
from diptych.model.numerics import Numerics
from diptych.model.rope import Turn
from diptych.model.schedule import LayerSpec
from diptych.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    """Of a layer that owns a compressed cache; the index key is made from its latent."""

    wkv: Tensor  # [d, D]
    wgate: Tensor | None  # [d, D], where two tokens share an entry
    norm: Tensor  # [d]
    wk: Tensor  # [i, d]
    k_norm: Tensor  # [i]


def pool(value: Tensor, score: Tensor, earlier_value: Tensor, earlier_score: Tensor) -> Tensor:
    """Two tokens' values [T, d] as one: a softmax over the two scores, channel by channel."""
    top = torch.maximum(score, earlier_score).detach()
    now, earlier = torch.exp(score - top), torch.exp(earlier_score - top)
    return (earlier * earlier_value + now * value) / (earlier + now)


def latent(
    weights: CompressorWeights,
    spec: ModelSpec,
    numerics: Numerics,
    layer: LayerSpec,
    x: Tensor,
    memory: Memory,
) -> Tensor:
    """x [T, D] -> [T, d]: the entry that ends at each row, not rotated yet.

    With ratio 2 only rows at odd positions end an entry; what the others compute is ignored.
    """
    value = linear(x, weights.wkv)
    if weights.wgate is not None:
        score = linear(x, weights.wgate)
        value = pool(value, score, *memory.previous(layer.index, value, score))
    return numerics.bf16(rms_norm(numerics.bf16(value), weights.norm, spec.norm_eps))


def compress(
    weights: CompressorWeights,
    spec: ModelSpec,
    numerics: Numerics,
    layer: LayerSpec,
    x: Tensor,
    turn: Turn,
    memory: Memory,
) -> None:
    """Store the entries and index keys that end at these rows, turned to their first token."""
    entry = latent(weights, spec, numerics, layer, x, memory)
    key = numerics.bf16(linear(entry, weights.wk))
    key = numerics.bf16(rms_norm(key, weights.k_norm, spec.norm_eps))
    memory.append(
        layer.index,
        entry=numerics.bf16(turn.rotate(entry)),
        index_key=numerics.bf16(turn.rotate(key)),
    )
