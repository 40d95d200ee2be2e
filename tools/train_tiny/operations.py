"""Operations of the model as a training step computes them: whole bins, every expert, no waiting.

`replaced` puts them in the place of the model's own while it is open; the model stays the one
definition. Each gives what the original gives (tests compare them), some with more: the attention
tells how much weight its heads gave to each selected entry, which is what an indexer learns from.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from diptych.model import attention, decoder, indexer, mhc, moe
from diptych.model.attention import Place
from diptych.model.indexer import IndexerWeights
from diptych.model.layers import linear, sigmoid, silu
from diptych.model.mhc import Mix, MixWeights
from diptych.model.moe import MoeWeights
from diptych.model.numerics import Numerics
from diptych.model.rope import Turn, frequencies, turn
from diptych.model.spec import ModelSpec
from train_tiny.memory import BinMemory, Bins, Tiles

Sinkhorn = Callable[[Tensor, int, float], Tensor]


@dataclass(slots=True)
class Record:
    """What one forward tells besides its logits."""

    scores: dict[int, Tensor] = field(default_factory=dict)  # by selecting layer [T, n]
    selected: dict[int, Tensor] = field(default_factory=dict)  # [T, k]
    weights: dict[int, Tensor] = field(default_factory=dict)  # by layer [T, k]: mean over heads
    experts: dict[int, Tensor] = field(default_factory=dict)  # by layer [T, choices]

    def trace(self, name: str, layer: int, value: Tensor) -> None:
        """The `trace` of a forward."""
        match name:
            case "index_scores":
                self.scores[layer] = value
            case "selected":
                self.selected[layer] = value
            case "experts":
                self.experts[layer] = value


@contextmanager
def replaced(
    spec: ModelSpec,
    bins: Bins,
    memory: BinMemory,
    record: Record,
    *,
    explore: int = 0,
    wide: bool = True,
    sinkhorn: Sinkhorn | None = None,
) -> Iterator[None]:
    """The model computes with these operations inside.

    `explore`: random entries a selection, and then a quarter of the candidate blocks are random,
    too. `wide`: all experts at once, quicker on a GPU only.
    """
    new: Sequence[tuple[object, str, object]] = (
        (decoder, "place", _place(bins)),
        (indexer, "score", score),
        (indexer, "index_query", index_query),
        (indexer, "select", _select(explore)),
        (indexer, "candidates", _candidates(explore > 0)),
        (attention, "sparse_attention", _attention(memory, record)),
        *([(moe, "mixture", mixture)] if wide else []),
        *([(mhc, "split", mix_split(sinkhorn))] if sinkhorn else []),
    )
    patches = [patch.object(module, name, value) for module, name, value in new]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in reversed(patches):
            each.stop()


_ORIGINAL_QUERY = indexer.index_query
_ORIGINAL_SELECT = indexer.select
_ORIGINAL_CANDIDATES = indexer.candidates


def _place(bins: Bins) -> Callable[[ModelSpec, Numerics, Tensor, int], Place]:
    """`decoder.place`, entries counted from the bin's start, and no wait for the largest."""

    def place(spec: ModelSpec, numerics: Numerics, positions: Tensor, ratio: int) -> Place:
        frequency = frequencies(spec.rope, compressed=ratio > 0)
        frequency = frequency.to(positions.device, non_blocking=True)
        here = turn(frequency, positions, numerics.dtype)
        start = here
        if ratio > 1:
            start = turn(frequency, positions - positions % ratio, numerics.dtype)
        visible = (bins.starts + positions + 1) // max(ratio, 1)
        return Place(here, start, visible, bins.length)

    return place


def index_query(
    weights: IndexerWeights,
    spec: ModelSpec,
    numerics: Numerics,
    x: Tensor,
    latent: Tensor,
    turn: Turn,
) -> tuple[Tensor, Tensor]:
    """The original; what an indexer learns does not reach the layers that feed it."""
    return _ORIGINAL_QUERY(weights, spec, numerics, x.detach(), latent.detach(), turn)


def score(query: Tensor, weights: Tensor, tiles: Tiles, visible: Tensor) -> Tensor:
    """`indexer.score` of whole bins: entries of other documents score -inf."""
    bins, entries, width = tiles.keys.shape
    rows = query.view(bins, -1, width)
    products = torch.relu(rows @ tiles.keys.transpose(1, 2)).view(len(query), -1, entries)
    scores = torch.bmm(weights.unsqueeze(1), products).squeeze(1)
    at = torch.arange(entries, device=query.device)
    outside = (at >= visible.unsqueeze(1)) | (at < tiles.first.unsqueeze(1))
    return scores.masked_fill(outside, -torch.inf)


def _candidates(explore: bool) -> Callable[[Tensor, Tensor, int, int], Tensor]:
    """`indexer.candidates` less what the document does not hold, a quarter of them drawn."""

    def candidates(scores: Tensor, visible: Tensor, block_size: int, count: int) -> Tensor:
        real, scores = scores > -torch.inf, scores.detach()
        if explore:
            kept = _ORIGINAL_CANDIDATES(scores, visible, block_size, count - count // 4)
            drawn = torch.rand_like(scores).masked_fill(~real, -torch.inf)
            scores = drawn.masked_fill(kept & real, 2.0)
        return _ORIGINAL_CANDIDATES(scores, visible, block_size, count) & real

    return candidates


def _select(explore: int) -> Callable[[Tensor, int], Tensor]:
    """`indexer.select`; `explore` of the entries are drawn from all that may be selected."""

    def select(scores: Tensor, count: int) -> Tensor:
        if not explore:
            return _ORIGINAL_SELECT(scores.detach(), count)
        scores = scores.detach()
        kept = indexer.best(scores, count - explore)
        drawn = torch.rand_like(scores).masked_fill(scores == -torch.inf, -torch.inf)
        return _ORIGINAL_SELECT(drawn.masked_fill(kept, 2.0), count)

    return select


def _attention(memory: BinMemory, record: Record) -> Callable[..., Tensor]:
    """`attention.sparse_attention`; the record learns how much each selected entry weighed."""

    def sparse_attention(
        numerics: Numerics, query: Tensor, keys: Tensor, present: Tensor, sink: Tensor
    ) -> Tensor:
        scores = torch.bmm(query, keys.transpose(1, 2)) * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~present.unsqueeze(1), -torch.inf)
        sinks = sink.view(1, -1, 1).expand(len(query), -1, 1)
        weight = torch.softmax(torch.cat((scores, sinks), 2), 2)[:, :, :-1]
        if keys.shape[1] > memory.spec.window:
            entries = weight.detach()[:, :, memory.spec.window :]
            record.weights[memory.layer] = entries.mean(1)
        return torch.bmm(numerics.bf16(weight), keys)

    return sparse_attention


def mixture(
    weights: MoeWeights,
    spec: ModelSpec,
    numerics: Numerics,
    x: Tensor,
    chosen: Tensor,
    picked: Tensor,
) -> Tensor:
    """`moe.mixture` as one wide network: each expert a section, of weight 0 where not chosen."""
    share = x.new_zeros(len(x), spec.num_experts).scatter(1, chosen, picked)
    share = F.pad(share, (0, 1), value=1.0)  # the shared expert
    x, limit = numerics.fp8(x), spec.swiglu_limit
    gate = numerics.bf16(linear(x, _wide(weights.w1, weights.shared_w1))).clamp_max(limit)
    up = numerics.bf16(linear(x, _wide(weights.w3, weights.shared_w3))).clamp(-limit, limit)
    inner = (_silu(gate) * up).view(len(x), -1, spec.expert_dim) * share.unsqueeze(2)
    inner = numerics.fp8(numerics.bf16(inner)).flatten(1)
    down = torch.cat((weights.w2, weights.shared_w2.unsqueeze(0))).transpose(0, 1).flatten(1)
    return numerics.bf16(linear(inner, down))


def _silu(x: Tensor) -> Tensor:
    """`layers.silu` in one kernel."""
    return F.silu(x) if x.is_cuda else silu(x)


def _wide(routed: Tensor, shared: Tensor) -> Tensor:
    return torch.cat((routed, shared.unsqueeze(0))).flatten(0, 1)


def mix_split(sinkhorn: Sinkhorn) -> Callable[[MixWeights, ModelSpec, Tensor], Mix]:
    """`mhc.split` with the iterations in one kernel."""

    def split(weights: MixWeights, spec: ModelSpec, scores: Tensor) -> Mix:
        m = spec.streams
        sizes = [m, m, m * m]
        scale = torch.cat([weights.scale[i : i + 1].expand(size) for i, size in enumerate(sizes)])
        pre, post, comb = torch.split(scores * scale + weights.base, sizes, 1)
        mixed = sinkhorn(comb.reshape(-1, m, m), spec.sinkhorn_iters, spec.hc_eps)
        return Mix(sigmoid(pre) + spec.hc_eps, 2 * sigmoid(post), mixed.permute(1, 2, 0))

    return split
