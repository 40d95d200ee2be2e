"""Dense FP8 projection: kernel against the reference, over the case list the benchmark walks."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diptych.kernels.fp8_linear import cases, launch, packing, reference


def error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("case", cases.SMALL, ids=str)
def test_kernel_matches_the_reference(case: cases.Case) -> None:
    x, weight, scale = case.make()
    settings = replace(launch.settings_for(case.rows, case.n, case.k), compiled=False)
    out = torch.full((case.rows, case.n), torch.nan, dtype=torch.bfloat16)
    got = launch.fp8_linear(x, packing.pack(weight, scale), settings, out)
    assert error(got, reference.fp8_linear(x, weight, scale, dtype=torch.float64)) < 2.5e-3


def test_packing_keeps_every_value_above_the_subnormals() -> None:
    _, weight, scale = cases.SMALL[1].make()
    packed = packing.pack(weight, scale)
    want = reference.dequantise(weight, scale)
    got = packed.data.float() * packed.scale[:, None]
    large = want.abs() >= packed.scale[:, None] * 2**-6
    assert torch.equal(got[large], want[large])
    assert bool(((got - want).abs() <= packed.scale[:, None] * 2**-10).all())


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases.RELEASED, ids=str)
def test_kernel_matches_at_released_sizes(case: cases.Case) -> None:
    x, weight, scale = case.make("cuda")
    out = torch.full((case.rows, case.n), torch.nan, dtype=torch.bfloat16, device="cuda")
    got = launch.fp8_linear(x, packing.pack(weight, scale), out=out)
    assert error(got, reference.fp8_linear(x, weight, scale)) < 5e-3  # FP8 accumulation: 14 bits
