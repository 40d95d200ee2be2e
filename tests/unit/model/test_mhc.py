"""Residual streams against the golden cases and a vector worked out by hand."""

import dataclasses

import pytest
import torch

from diptych.model.mhc import MixWeights, collapse, expand, mix, split


@pytest.fixture
def spec(model):
    return model("tiny-text", "exact").spec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", ["normal", "extreme"])
def test_mixing_collapsing_and_expanding_match_golden(golden, spec, case, dtype):
    g = {
        k.removeprefix(f"{case}."): v.to(dtype)
        for k, v in golden("ops/mhc").items()
        if k.startswith(case)
    }
    weights = MixWeights(g["fn"], g["base"], g["scale"])
    got = mix(weights, spec, g["streams"])
    near = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(got.pre, g["pre"], **near)
    torch.testing.assert_close(got.post, g["post"], **near)
    torch.testing.assert_close(got.comb.permute(2, 0, 1), g["comb"], **near)
    torch.testing.assert_close(collapse(g["streams"], g["prev_pre"]), g["collapsed"], **near)
    torch.testing.assert_close(expand(g["sublayer_out"], g["streams"], got), g["expanded"], **near)


def test_coefficients_of_a_known_vector(spec):
    c = [0.1 * (7 * i % 11) - 0.5 for i in range(16)]
    scores = torch.tensor([[0.5, -1, 2, 0, 0.25, -0.5, 1.5, -2, *c]])
    weights = MixWeights(
        fn=torch.empty(0),
        base=torch.tensor([0.1 * i - 1 for i in range(24)]),
        scale=torch.tensor([1.5, 0.5, 2.0]),
    )
    got = split(weights, dataclasses.replace(spec, hc_eps=1e-6, sinkhorn_iters=20), scores)
    near = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(
        got.pre, torch.tensor([[0.4378245, 0.0831737, 0.9002506, 0.3318132]]), **near
    )
    torch.testing.assert_close(
        got.post, torch.tensor([[0.7668670, 0.6416426, 1.1732352, 0.4283301]]), **near
    )
    expected = torch.tensor(
        [
            [0.1043104, 0.2789410, 0.1043098, 0.5124379],
            [0.3520315, 0.1043101, 0.3520319, 0.1916256],
            [0.1916257, 0.5124379, 0.1916255, 0.1043099],
            [0.3520315, 0.1043101, 0.3520319, 0.1916256],
        ]
    )
    torch.testing.assert_close(got.comb[:, :, 0], expected, **near)
