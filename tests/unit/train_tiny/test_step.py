"""A training step computes what the model computes, document by document."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F
from train_tiny import operations, parameters
from train_tiny.memory import BinMemory, Bins
from train_tiny.shards import PROMPT_WEIGHT, Batch, Document
from train_tiny.step import Model, index_loss, run

from diptych.model import decoder, moe
from diptych.model.dense import DenseMemory, rows_of
from diptych.model.numerics import NUMERICS

GRAIN = 128


def loss_alone(model: Model, documents: list[Document], mode: str) -> float:
    """The weighted mean loss, each document by itself through the model's own memory."""
    total, weight = 0.0, 0.0
    weights = parameters.weights_of(
        model.spec, model.parameters, model.hashing, as_stored=mode == "cache"
    )
    for document in documents:
        ids = document.ids.astype(int).tolist()
        rows, owners = rows_of(model.hashing, [ids], [0])
        memory = DenseMemory(model.spec, NUMERICS[mode], 1)
        memory.begin(owners, rows.positions)
        hidden = decoder.hidden(model.spec, weights, NUMERICS[mode], rows, memory)
        logits = decoder.logits(weights, NUMERICS[mode], hidden)[: len(ids) - 1]
        losses = F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
        wanted = torch.from_numpy(document.learn[1:]).float().clamp_min(PROMPT_WEIGHT)
        total += float((losses * wanted).sum())
        weight += float(wanted.sum())
    return total / weight


@pytest.mark.parametrize("mode", ["exact", "cache"])
def test_bins_lose_what_each_document_loses_alone(
    model: Model, documents: list[Document], bins: Batch, mode: str
) -> None:
    with torch.no_grad():
        together = run(model, bins, "cpu", rounded=mode == "cache")
        alone = loss_alone(model, documents, mode)
    assert together.loss.item() == pytest.approx(alone, rel=2e-5 if mode == "exact" else 2e-4)


def test_every_parameter_learns_from_one_batch(model: Model, bins: Batch) -> None:
    outcome = run(model, bins, "cpu", rounded=True, explore=8)
    (outcome.loss + outcome.index_loss).backward()
    for name, parameter in model.parameters.items():
        if parameters.is_trained(name):
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0 or ".experts." in name, name


def test_a_document_does_not_see_its_neighbours(model: Model, bins: Batch) -> None:
    with torch.no_grad():
        before = run(model, only_first(bins), "cpu", rounded=False).loss.item()
        bins.ids[bins.length // 2 : bins.length] = 7  # of the first bin, behind its first document
        after = run(model, only_first(bins), "cpu", rounded=False).loss.item()
    assert before == pytest.approx(after, rel=1e-6)


def only_first(bins: Batch) -> Batch:
    """The same rows; only the first document counts."""
    weights = bins.weights.copy()
    weights[70:] = 0
    return dataclasses.replace(bins, weights=weights)


def test_index_tiles_of_bins_iterate_as_the_protocol_says(model: Model, bins: Batch) -> None:
    places = Bins(bins.length, torch.from_numpy(bins.positions))
    memory = BinMemory(model.spec, NUMERICS["exact"], places)
    width = model.spec.index_head_dim
    keys = torch.arange(len(bins.ids) * width).float().view(-1, width)
    layer = model.spec.kv_sources[0]
    memory.append(layer.index, torch.zeros(len(keys), model.spec.head_dim), keys)
    [tile] = memory.index_tiles(layer.index)
    assert tile.shape == (len(keys), bins.length // layer.ratio, width)
    assert torch.equal(tile[bins.length][0], keys[bins.length + layer.ratio - 1])


def test_all_experts_at_once_give_what_the_chosen_ones_give(model: Model) -> None:
    spec = model.spec
    weights = parameters.weights_of(spec, model.parameters, model.hashing, as_stored=False)
    x = torch.randn(64, spec.hidden_size, generator=torch.Generator().manual_seed(0))
    for layer in weights.layers:
        chosen, picked = moe.route(layer.moe, spec, x)
        for mode in ("exact", "served"):
            inputs = (layer.moe, spec, NUMERICS[mode], x, chosen, picked)
            wanted = moe.mixture(*inputs)
            error = (operations.mixture(*inputs) - wanted).norm() / wanted.norm()
            assert error < (1e-5 if mode == "exact" else 1e-2)


def test_a_source_of_candidates_learns_from_those_who_choose_among_them(model: Model) -> None:
    spec = model.spec
    source = spec.candidate_source
    (behind,) = (x.index for x in spec.layers if x.candidate_source == source)
    record = operations.Record()
    for layer, chosen in ((source, [0, 1]), (behind, [2, 3])):
        record.scores[layer] = torch.zeros(1, 5, requires_grad=True)
        record.selected[layer] = torch.tensor([chosen])
    for each in spec.layers:
        weight = [0.9, 0.1] if each.index_source == behind else [0.5, 0.5]
        record.weights[each.index] = torch.tensor([weight])
    index_loss(spec, record, torch.ones(1)).backward()
    gradient = record.scores[source].grad[0].tolist()
    assert gradient == pytest.approx([0.0, 0.0, -0.4, 0.4, 0.0])


def test_some_candidate_blocks_are_drawn_and_all_belong_to_the_document() -> None:
    scores = torch.arange(64.0).repeat(200, 1)
    scores[:, :8] = -torch.inf  # of another document
    visible = torch.full((200,), 64)
    kept = [operations._candidates(explore)(scores, visible, 8, 4) for explore in (False, True)]
    best = torch.arange(64) >= 32
    assert (kept[0] == best).all()
    assert not kept[1][:, :8].any() and kept[1][:, 40:].all()
    drawn = kept[1][:, 8:40].view(200, 4, 8)
    assert (drawn.all(2) == drawn.any(2)).all() and (drawn.any(2).sum(1) == 1).all()
    assert drawn.any(2).any(0).all(), "each of the others comes at times"
