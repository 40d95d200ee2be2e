"""Attention: one softmax over a sliding window, selected compressed entries, and a sink.

Keys are values, and all heads share them. A layer's place in the schedule decides where its
compressed entries come from: its own compressor or an earlier one's, its own selection or an
earlier one's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model import indexer
from diptych.model.compressor import CompressorWeights
from diptych.model.indexer import IndexerWeights
from diptych.model.layers import EXP_LIMIT, linear, rms_norm, take
from diptych.model.memory import Memory
from diptych.model.numerics import Numerics
from diptych.model.rope import Turn
from diptych.model.schedule import LayerSpec
from diptych.model.spec import ModelSpec

KEY_GROUP = 16  # a row's keys are padded to a multiple of this
NO_KEY = -1e30  # stands for the largest score where there is none

Trace = Callable[[str, int, Tensor], None]  # name of the value, layer, value


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Of every layer."""

    wq_a: Tensor  # [q rank, D]
    q_norm: Tensor  # [q rank]
    wq_b: Tensor  # [H d, q rank]
    wkv: Tensor  # [d, D]
    kv_norm: Tensor  # [d]
    wo_a: Tensor  # [groups * o rank, H d / groups], block-diagonal
    wo_b: Tensor  # [D, groups * o rank]
    sink: Tensor  # [H]
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class Selection:
    """What a layer that selects passes to the layers behind it, within one forward."""

    entries: Tensor  # [T, k, d] gathered from the compressed cache
    present: Tensor  # [T, k] bool
    candidates: Tensor | None  # [T, n] bool: entries that layers behind the source may choose from


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of a forward stand, as one kind of layer sees it."""

    turn: Turn  # of the row's position
    entry_turn: Turn  # of the first position of the entry that ends at the row
    visible: Tensor  # [T] entries that are complete at the row
    most_visible: int  # the largest of them

    def narrow(self, kept: Tensor) -> "Place":
        """That of the kept rows."""
        visible = take(self.visible, kept)
        return Place(
            self.turn.narrow(kept), self.entry_turn.narrow(kept), visible, int(visible.max())
        )


def attend(
    weights: AttentionWeights,
    spec: ModelSpec,
    numerics: Numerics,
    layer: LayerSpec,
    x: Tensor,
    place: Place,
    memory: Memory,
    selection: Selection | None,
    trace: Trace | None = None,
) -> tuple[Tensor, Selection | None]:
    """x [T, D] -> the sublayer's output [T, D], and the selection for the layers behind.

    The entries that end at these rows are stored already (`compress`).
    """
    seen = numerics.fp8(x)
    latent = numerics.bf16(linear(seen, weights.wq_a))
    latent = numerics.fp8(numerics.bf16(rms_norm(latent, weights.q_norm, spec.norm_eps)))
    query = numerics.bf16(linear(latent, weights.wq_b)).view(len(x), spec.num_heads, -1)
    query = numerics.bf16(place.turn.rotate(query))

    key = numerics.bf16(linear(seen, weights.wkv))
    key = numerics.bf16(rms_norm(key, weights.kv_norm, spec.norm_eps))
    keys, present = memory.window(layer.index, numerics.bf16(place.turn.rotate(key)))

    if weights.indexer:
        chosen, candidates = choose(
            weights.indexer, spec, numerics, layer, x, latent, place, memory, selection, trace
        )
        assert layer.kv_source is not None
        selection = Selection(
            entries=memory.entries(layer.kv_source, chosen),
            present=chosen != indexer.NOTHING,
            candidates=candidates,
        )
    if layer.ratio and selection:
        keys = torch.cat((keys, selection.entries), 1)
        present = torch.cat((present, selection.present), 1)
    output = numerics.bf16(sparse_attention(numerics, query, keys, present, weights.sink))
    output = numerics.bf16(place.turn.unrotate(output))
    return project(weights, spec, numerics, output), selection


def choose(
    weights: IndexerWeights,
    spec: ModelSpec,
    numerics: Numerics,
    layer: LayerSpec,
    x: Tensor,
    latent: Tensor,
    place: Place,
    memory: Memory,
    selection: Selection | None,
    trace: Trace | None,
) -> tuple[Tensor, Tensor | None]:
    """The entries each row attends to [T, k], and the candidates for layers behind (or None: all).

    Where no row sees more entries than it may select there is nothing to score.
    """
    if trace is None and place.most_visible <= spec.index_topk:
        return indexer.select_all(place.visible, spec.index_topk), None
    assert layer.kv_source is not None
    query, head_weights = indexer.index_query(weights, spec, numerics, x, latent, place.turn)
    tiles = memory.index_tiles(layer.kv_source)
    scores = indexer.score(query, head_weights, tiles, place.visible)
    if trace is not None:
        trace("index_scores", layer.index, scores)
    allowed = None
    if layer.index == spec.candidate_source:
        allowed = indexer.candidates(
            scores, place.visible, spec.candidate_block_size, spec.candidate_blocks
        )
        if trace is not None:
            trace("candidates", layer.index, allowed)
    elif layer.candidate_source is not None and selection and selection.candidates is not None:
        allowed = selection.candidates
        scores = scores.masked_fill(~allowed, -torch.inf)
    chosen = indexer.select(scores, spec.index_topk)
    if trace is not None:
        trace("selected", layer.index, chosen)
    return chosen, allowed


def sparse_attention(
    numerics: Numerics, query: Tensor, keys: Tensor, present: Tensor, sink: Tensor
) -> Tensor:
    """query [T, H, d], each row's own keys [T, K, d], present [T, K], sink [H] -> [T, H, d].

    The sink takes part in the softmax and has no value. A row without keys gives zeros.
    """
    padding = -keys.shape[1] % KEY_GROUP
    if padding:
        keys = torch.nn.functional.pad(keys, (0, 0, 0, padding))
        present = torch.nn.functional.pad(present, (0, padding))
    scores = torch.bmm(query, keys.transpose(1, 2)) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~present.unsqueeze(1), -torch.inf)
    top = scores.detach().amax(2, keepdim=True).clamp_min(NO_KEY)
    weight = torch.exp(scores - top)
    sink_weight = torch.exp((sink.view(1, -1, 1) - top).clamp_max(EXP_LIMIT))
    total = weight.sum(2, keepdim=True) + sink_weight
    return torch.bmm(numerics.bf16(weight), keys) / total


def project(
    weights: AttentionWeights, spec: ModelSpec, numerics: Numerics, output: Tensor
) -> Tensor:
    """Heads [T, H, d] -> [T, D] through a low rank: each group of heads by itself, then all."""
    groups = output.flatten(1).chunk(spec.o_groups, 1)
    matrices = weights.wo_a.chunk(spec.o_groups, 0)
    parts = [linear(group, matrix) for group, matrix in zip(groups, matrices, strict=True)]
    low_rank = numerics.bf16(torch.cat(parts, 1))
    return numerics.bf16(linear(numerics.fp8(low_rank), weights.wo_b))
