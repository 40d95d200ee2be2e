"""One forward of the project's model over bins, and what training wants to hear from it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from diptych.model import decoder
from diptych.model.memory import Rows
from diptych.model.ngrams import Hashing
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec
from train_tiny.memory import BinMemory, Bins
from train_tiny.operations import Record, Sinkhorn, replaced
from train_tiny.parameters import weights_of
from train_tiny.shards import Batch

_NOWHERE = -1e30  # a score that no softmax sees


@dataclass(frozen=True, slots=True)
class Model:
    """The shape, where its parameters lie, and how it computes."""

    spec: ModelSpec
    parameters: Mapping[str, Tensor]
    hashing: Hashing
    sinkhorn: Sinkhorn | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one batch. Rates are over tokens that the assistant says."""

    loss: Tensor  # mean over weighted tokens
    index_loss: Tensor
    said: Tensor  # mean loss over what the assistant says
    right: Tensor  # share of it that the most likely token hits
    experts: dict[int, Tensor]  # by layer: rows each expert got


def on(hashing: Hashing, device: str) -> Hashing:
    """The hash functions on a device."""
    return replace(
        hashing,
        token_map=hashing.token_map.to(device),
        multipliers=hashing.multipliers.to(device),
        primes=hashing.primes.to(device),
        offsets=hashing.offsets.to(device),
    )


def grams(hashing: Hashing, ids: Tensor, positions: Tensor) -> Tensor:
    """Compressed ids of each row and of those before it in its document [T, n]."""
    compressed = hashing.token_map[ids]
    columns = [compressed]
    for back in range(1, hashing.multipliers.shape[1]):
        shifted = F.pad(compressed, (back, 0))[: len(ids)]
        columns.append(torch.where(positions >= back, shifted, hashing.pad))
    return torch.stack(columns, 1)


def run(model: Model, batch: Batch, device: str, *, rounded: bool, explore: int = 0) -> Outcome:
    """Losses of a batch; with gradients where they are enabled."""
    ids, positions, targets, wanted = (
        torch.from_numpy(x).to(device, non_blocking=True)
        for x in (batch.ids, batch.positions, batch.targets, batch.weights)
    )
    spec, bins, record = model.spec, Bins(batch.length, positions), Record()
    numerics = NUMERICS["cache" if rounded else "exact"]
    weights = weights_of(spec, model.parameters, model.hashing, as_stored=rounded)
    memory = BinMemory(spec, numerics, bins)
    rows = Rows(ids, positions, grams(model.hashing, ids, positions))
    with replaced(
        spec,
        bins,
        memory,
        record,
        explore=explore,
        wide=model.sinkhorn is not None,
        sinkhorn=model.sinkhorn,
    ):
        hidden = decoder.hidden(spec, weights, numerics, rows, memory, record.trace)
    logits = decoder.logits(weights, numerics, hidden)
    losses = F.cross_entropy(logits, targets, reduction="none")
    spoken = (wanted == 1).float()
    hits = (logits.detach().argmax(1) == targets).float()
    real = (wanted > 0).float()
    return Outcome(
        loss=(losses * wanted).sum() / wanted.sum(),
        index_loss=index_loss(spec, record, real),
        said=(losses.detach() * spoken).sum() / spoken.sum(),
        right=(hits * spoken).sum() / spoken.sum(),
        experts={
            layer: F.one_hot(chosen, spec.num_experts).sum(1).float().mul(real.unsqueeze(1)).sum(0)
            for layer, chosen in record.experts.items()
        },
    )


def index_loss(spec: ModelSpec, record: Record, real: Tensor) -> Tensor:
    """How far each indexer is from the attention it serves, over the entries that were selected.

    The target is the weight that all heads of all layers sharing a selection gave to its entries. A
    source of candidates learns the weights of those who select among them, too: what it scores low
    they can never have.
    """
    total = real.new_zeros(())
    for source, chosen in record.selected.items():
        width = chosen.shape[1]
        sharing = [layer.index for layer in spec.layers if layer.index_source == source]
        target = torch.stack([record.weights[layer][:, :width] for layer in sharing]).mean(0)
        narrowed_by = spec.layers[source].candidate_source
        for scorer in (source,) if narrowed_by is None else (source, narrowed_by):
            scores = record.scores[scorer].gather(1, chosen.clamp_min(0))
            scores = scores.masked_fill((chosen < 0) | (scores == -torch.inf), _NOWHERE)
            told = torch.log_softmax(scores, 1).clamp_min(-100.0)
            total = total - (target * told).sum(1).mul(real).sum() / real.sum()
    return total
