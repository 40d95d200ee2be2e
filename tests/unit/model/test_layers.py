"""Small operations against the library's own, in values and in gradients."""

import pytest
import torch
import torch.nn.functional as F

from diptych.model.layers import linear, rms_norm, sigmoid, silu, softplus


@pytest.mark.parametrize(
    ("ours", "theirs"), [(sigmoid, torch.sigmoid), (silu, F.silu), (softplus, F.softplus)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_composed_functions_agree_with_the_library(ours, theirs, dtype):
    x = torch.cat((torch.linspace(-70, 70, 1001), torch.zeros(1))).to(dtype).requires_grad_()
    tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-30}
    torch.testing.assert_close(ours(x), theirs(x), **tolerance)
    (ours_gradient,) = torch.autograd.grad(ours(x).sum(), x)
    (theirs_gradient,) = torch.autograd.grad(theirs(x).sum(), x)
    torch.testing.assert_close(ours_gradient, theirs_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [sigmoid, silu, softplus])
def test_extreme_inputs_stay_finite_forward_and_back(function):
    x = torch.tensor([-1e30, -1e4, -200.0, 200.0, 1e4, 1e30], requires_grad=True)
    out = function(x)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_norm_survives_an_all_zero_row():
    assert not rms_norm(torch.zeros(32, 96), torch.ones(96), 1e-20).any()


@pytest.mark.parametrize("outputs", [1, 3, 8, 12, 96])
def test_products_of_any_width_are_products(outputs, generator):
    x = torch.randn(32, 64, generator=generator, dtype=torch.float64)
    w = torch.randn(outputs, 64, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(linear(x, w), x @ w.t(), rtol=0, atol=1e-12)
