"""The whole text model against the golden logits and what leads to them."""

from dataclasses import replace

import pytest
import torch

from diptych.model.numerics import NUMERICS

PROMPTS = ["n1", "n2", "n3", "n15", "n16", "n17", "n33", "n64", "n150", "mid_eos_bos", "mid_eos"]
CHECKPOINTS = ["tiny-text", "tiny-quant"]
LOGITS = {"rtol": 1e-5, "atol": 1e-4}


class Seen(dict):
    """A trace that keeps everything: (name, layer) -> value."""

    def __call__(self, name, layer, value):
        self[name, layer] = value


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("mode", ["exact", "exact64"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_logits_selections_routes_and_rows_match_golden(golden, model, checkpoint, mode, prompt):
    g, seen = golden(f"{checkpoint}/golden"), Seen()
    m = model(checkpoint, mode)
    ids = g[f"{prompt}.input_ids"].tolist()
    (logits,) = m.logits([ids], trace=seen)
    assert logits.dtype == m.numerics.dtype
    torch.testing.assert_close(logits.float(), g[f"{prompt}.logits"], **LOGITS)
    for layer in m.spec.layers:
        if layer.selects:
            check_selection(g.get(f"{prompt}.layer{layer.index}.topk"), seen, layer.index)
        chosen = seen["experts", layer.index][: len(ids)]
        order = g[f"{prompt}.router_ids"][layer.index].long()
        assert torch.equal(chosen.sort(1).values, order.sort(1).values)
        got, want = (
            torch.zeros(len(ids), m.spec.num_experts).scatter(1, where, what.float())
            for where, what in (
                (chosen, seen["expert_weights", layer.index][: len(ids)]),
                (order, g[f"{prompt}.router_weights"][layer.index]),
            )
        )
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    for table, layer in enumerate(m.spec.engram.layers):
        rows = seen["engram_rows", layer][: len(ids)]
        assert torch.equal(rows, g[f"{prompt}.engram_rows"][:, table])


def check_selection(want, seen, layer):
    """Golden files leave out the columns no row of a prompt can fill, and empty tensors."""
    if want is None:
        return
    got = seen["selected", layer][: len(want)]
    assert torch.equal(got[:, : want.shape[1]].int(), want)
    assert (got[:, want.shape[1] :] == -1).all()


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_logits_of_rounded_caches_match_golden(golden, model, checkpoint, prompt):
    g, seen = golden(f"{checkpoint}/golden"), Seen()
    m = model(checkpoint, "cache")
    want = g[f"{prompt}.logits_kvq"]
    (logits,) = m.logits([g[f"{prompt}.input_ids"].tolist()], trace=seen)
    torch.testing.assert_close(logits[: len(want)], want, rtol=0, atol=2e-3)
    for layer in m.spec.layers:
        if layer.selects:
            check_selection(g.get(f"{prompt}.layer{layer.index}.topk_kvq"), seen, layer.index)


@pytest.mark.parametrize("mode", ["exact", "exact64"])
@pytest.mark.parametrize("prompt", ["n33", "n64"])
def test_streams_scores_candidates_and_gates_match_golden(golden, model, mode, prompt):
    g, seen = golden("tiny-text/golden"), Seen()
    m = model("tiny-text", mode)
    ids = g[f"{prompt}.input_ids"].tolist()
    m.logits([ids], trace=seen)
    for index, layer in enumerate(g[f"{prompt}.residual_layers"].tolist()):
        got = seen["streams", layer][: len(ids)].float()
        torch.testing.assert_close(got, g[f"{prompt}.residual"][index], **LOGITS)
    for layer in m.spec.layers:
        if layer.selects:
            want = g[f"{prompt}.layer{layer.index}.index_scores"]
            got = seen["index_scores", layer.index][: len(ids), : want.shape[1]].float()
            torch.testing.assert_close(got, want, **LOGITS)
        if layer.engram is not None:
            got = seen["engram_gate", layer.index][: len(ids)].float()
            torch.testing.assert_close(
                got, g[f"{prompt}.layer{layer.index}.engram_gate"], rtol=1e-5, atol=1e-4
            )
    allowed = seen["candidates", m.spec.candidate_source][: len(ids), : len(ids)]
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    want = g[f"{prompt}.layer{m.spec.candidate_source}.candidate_mask"]
    assert torch.equal((allowed & causal).to(torch.uint8), want)


@pytest.mark.parametrize("mode", NUMERICS)
def test_looking_at_a_forward_does_not_change_it(golden, model, mode):
    ids = golden("tiny-text/golden")["n17.input_ids"].tolist()
    m = model("tiny-text", mode)
    assert torch.equal(m.logits([ids])[0], m.logits([ids], trace=Seen())[0])


def test_greedy_continuation_matches_golden(golden, model):
    g = golden("tiny-text/golden")
    m = model("tiny-text", "exact")
    for prompt in ("n3", "mid_eos"):
        ids = g[f"{prompt}.input_ids"].tolist()
        for token in g[f"{prompt}.greedy"].tolist()[:8]:
            assert int(m.logits([ids])[0][-1].argmax()) == token
            ids.append(token)


@pytest.mark.parametrize("prompt", ["n15", "n33", "n64", "n150", "mid_eos", "mid_eos_bos"])
def test_served_logits_stay_near_the_unrounded_ones(golden, model, prompt):
    g = golden("tiny-quant/golden")
    (served,) = model("tiny-quant", "served").logits([g[f"{prompt}.input_ids"].tolist()])
    exact = g[f"{prompt}.logits"]
    error = (served - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.25
    assert torch.cosine_similarity(served, exact, dim=1).min() > 0.8
    assert (served.argmax(1) == exact.argmax(1)).float().mean() > 0.6


def test_served_rounds_where_the_release_keeps_narrow_tensors(golden, model):
    seen = Seen()
    ids = golden("tiny-quant/golden")["n64.input_ids"].tolist()
    model("tiny-quant", "served").logits([ids], trace=seen)
    for (name, _), value in seen.items():
        if name == "streams":
            assert torch.equal(value, value.to(torch.bfloat16).float())


@pytest.mark.parametrize("mode", NUMERICS)
def test_rows_that_stop_at_the_border_do_not_change_those_that_go_on(golden, model, mode):
    m = model("tiny-text", mode)
    g = golden("tiny-text/golden")
    prompts = [g[f"{name}.input_ids"].tolist() for name in ("n17", "n150", "n64", "n1")]
    floors = [0, 122, 36, 0]
    masked = m.logits(prompts, floors=floors)
    for chunk in (None, 50):
        compact = m.logits(prompts, chunk, floors=floors, compact=True)
        for found, expected, floor in zip(compact, masked, floors, strict=True):
            tolerance = 1e-9 if mode == "exact64" else 0
            torch.testing.assert_close(found, expected[floor:], rtol=0, atol=tolerance)


def test_a_trace_behind_the_border_is_of_the_kept_rows(golden, model):
    m = model("tiny-text", "exact")
    ids = golden("tiny-text/golden")["n64.input_ids"].tolist()
    whole, kept = Seen(), Seen()
    m.logits([ids], trace=whole, floors=[40])
    m.logits([ids], trace=kept, floors=[40], compact=True)
    assert whole.keys() == kept.keys()
    for (name, layer), value in kept.items():
        first = 40 if layer >= m.spec.decoder_start else 0
        assert len(value) == (32 if first else 64)
        assert torch.equal(value[: 64 - first], whole[name, layer][first:])


def test_a_model_without_a_border_computes_every_layer_for_all_rows(model, golden):
    m = model("tiny-text", "exact")
    ids = golden("tiny-text/golden")["n33.input_ids"].tolist()
    half = replace(
        m,
        spec=replace(m.spec, layers=m.spec.layers[: m.spec.decoder_start]),
        weights=replace(m.weights, layers=m.weights.layers[: m.spec.decoder_start]),
    )
    assert half.spec.decoder_start == half.spec.num_layers
    (expected,), (found,) = half.logits([ids]), half.logits([ids], floors=[20], compact=True)
    assert torch.equal(found, expected[20:])
