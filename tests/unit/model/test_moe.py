"""Router and experts against the golden cases."""

import dataclasses

import pytest
import torch

from diptych.model.moe import expert, mixture, route
from diptych.model.numerics import NUMERICS


@pytest.mark.parametrize("case", ["a", "b", "top1"])
def test_routing_matches_golden(golden, model, case):
    g = {k.removeprefix(f"{case}."): v for k, v in golden("ops/router").items()}
    m = model("tiny-text", "exact")
    spec = dataclasses.replace(m.spec, experts_per_token=int(g["topk"]), routed_scale=1.5)
    weights = dataclasses.replace(
        m.weights.layers[0].moe, gate=g["weight"], bias=g["bias"], bias_vl=g["bias_vl"]
    )
    chosen, picked = route(weights, spec, g["x"], g["image_mask"].bool())
    assert torch.equal(chosen.int(), g["ids"])
    torch.testing.assert_close(picked, g["weights"], rtol=1e-5, atol=1e-5)


def test_an_expert_clamps_weighs_and_projects_as_golden(golden):
    g = {name: tensor.double() for name, tensor in golden("ops/expert_mlp").items()}
    exact, limit = NUMERICS["exact64"], float(g["limit"])
    near = {"rtol": 1e-5, "atol": 1e-5}
    matrices = (g["w1"], g["w2"], g["w3"])
    torch.testing.assert_close(expert(exact, limit, g["x"], *matrices, None), g["out"], **near)
    weighted = expert(exact, limit, g["x"], *matrices, g["routing_weight"])
    torch.testing.assert_close(weighted, g["out_weighted"], **near)


def test_a_mixture_is_the_weighted_sum_of_its_experts(model, generator):
    m = model("tiny-text", "exact64")
    w, spec, exact = m.weights.layers[3].moe, m.spec, m.numerics
    x = torch.randn(64, spec.hidden_size, generator=generator, dtype=torch.float64)
    chosen, picked = route(w, spec, x)
    expected = expert(exact, spec.swiglu_limit, x, w.shared_w1, w.shared_w2, w.shared_w3, None)
    for t in range(len(x)):
        for e, weight in zip(chosen[t], picked[t], strict=True):
            row = x[t : t + 1]
            out = expert(
                exact, spec.swiglu_limit, row, w.w1[e], w.w2[e], w.w3[e], weight.view(1, 1)
            )
            expected[t] += out[0]
    got = mixture(w, spec, exact, x, chosen, picked)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_renaming_experts_changes_nothing(model, generator):
    m = model("tiny-text", "exact64")
    w, spec = m.weights.layers[0].moe, m.spec
    x = torch.randn(32, spec.hidden_size, generator=generator, dtype=torch.float64)
    order = torch.randperm(spec.num_experts, generator=generator)
    renamed = dataclasses.replace(
        w,
        **{name: getattr(w, name)[order] for name in ("gate", "bias", "bias_vl", "w1", "w2", "w3")},
    )
    want = mixture(w, spec, m.numerics, x, *route(w, spec, x))
    got = mixture(renamed, spec, m.numerics, x, *route(renamed, spec, x))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
