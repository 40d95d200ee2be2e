"""Indexer: which compressed entries a row attends to."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.layers import linear
from diptych.model.numerics import Numerics
from diptych.model.rope import Turn
from diptych.model.spec import ModelSpec

NOTHING = -1  # an absent entry of a selection


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """Of a layer that selects entries."""

    wq_b: Tensor  # [index heads * i, q rank]
    weights_proj: Tensor  # [index heads, D]


def index_query(
    weights: IndexerWeights,
    spec: ModelSpec,
    numerics: Numerics,
    x: Tensor,
    latent: Tensor,
    turn: Turn,
) -> tuple[Tensor, Tensor]:
    """x [T, D], query latent [T, rank] as products see it -> queries [T, h, i], weights [T, h]."""
    query = numerics.bf16(linear(latent, weights.wq_b)).view(len(x), spec.index_heads, -1)
    query = numerics.index_query(numerics.bf16(turn.rotate(query)))
    scale = (spec.index_head_dim * spec.index_heads) ** -0.5
    return query, numerics.bf16(linear(x, weights.weights_proj)) * scale


def score(query: Tensor, weights: Tensor, tiles: Iterable[Tensor], visible: Tensor) -> Tensor:
    """Scores [T, n] of all entries in `tiles` ([T, w, i] each); -inf from entry visible[t] on."""
    parts = []
    for keys in tiles:
        products = torch.bmm(query, keys.transpose(1, 2))  # [T, h, w]
        parts.append((torch.relu(products) * weights.unsqueeze(-1)).sum(1))
    scores = torch.cat(parts, 1)
    entries = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill(entries >= visible.unsqueeze(1), -torch.inf)


def select(scores: Tensor, count: int) -> Tensor:
    """The `count` best finite scores of each row, ascending by entry, then NOTHING: [T, count]."""
    kept = best(scores, count)
    place = torch.where(kept, kept.cumsum(1) - 1, count)  # those not kept pile up in a spare column
    entries = torch.arange(scores.shape[1], device=scores.device).expand_as(place)
    listed = torch.full((len(scores), count + 1), NOTHING, device=scores.device)
    return listed.scatter(1, place, entries)[:, :count].contiguous()


def best(scores: Tensor, count: int) -> Tensor:
    """Where the `count` highest scores of each row stand [T, n]; ties go to the lower entry.

    Scores of -inf are never kept.
    """
    scores = scores.detach()
    least = torch.topk(scores, min(count, scores.shape[1]), dim=1).values[:, -1:]
    above, equal = scores > least, scores == least
    room = count - above.sum(1, keepdim=True)
    return (above | (equal & (equal.cumsum(1) <= room))) & (scores > -torch.inf)


def select_all(visible: Tensor, count: int) -> Tensor:
    """What `select` gives when every row sees at most `count` entries."""
    entries = torch.arange(count, device=visible.device).expand(visible.shape[0], -1)
    return entries.masked_fill(entries >= visible.unsqueeze(1), NOTHING)


def candidates(scores: Tensor, visible: Tensor, block_size: int, count: int) -> Tensor:
    """The first level of a two-level selection: entries [T, n] in the `count` best blocks of a row.

    A block is as good as its best entry; the newest, perhaps partial one always stays.
    """
    n = scores.shape[1]
    padded = torch.nn.functional.pad(scores.detach(), (0, -n % block_size), value=-torch.inf)
    tops = padded.view(len(padded), -1, block_size).amax(2)
    newest = torch.div(visible - 1, block_size, rounding_mode="floor").unsqueeze(1)
    blocks = torch.arange(tops.shape[1], device=tops.device)
    kept = best(tops.masked_fill(blocks == newest, torch.inf), count)
    return kept.repeat_interleave(block_size, 1)[:, :n]
