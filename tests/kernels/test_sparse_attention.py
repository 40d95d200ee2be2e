"""Sparse attention: kernels against the reference, over the case list the benchmark walks."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from diptych.kernels.sparse_attention import cases, launch, reference


def error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("case", cases.SMALL, ids=str)
def test_kernels_match_the_reference(case: cases.Case, shares: int) -> None:
    inputs = case.make()
    out = torch.full_like(inputs[0], torch.nan)
    got = launch.sparse_attention(*inputs, launch.Settings(shares, block=16, asm=False), out)
    assert error(got, reference.sparse_attention(*inputs, dtype=torch.float64)) < 2.5e-3


def test_index_lists_must_fill_blocks() -> None:
    inputs = list(cases.SMALL[0].make())
    inputs[2] = inputs[2][:, :30]
    with pytest.raises(ValueError, match="multiple of 16"):
        launch.sparse_attention(*inputs, launch.Settings(1, block=16, asm=False))


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases.DECODE, ids=str)
def test_kernels_match_at_released_sizes(case: cases.Case) -> None:
    inputs = case.make("cuda")
    out = torch.full_like(inputs[0], torch.nan)
    got = launch.sparse_attention(*inputs, out=out)
    assert error(got, reference.sparse_attention(*inputs, dtype=torch.float64)) < 2.5e-3


@pytest.mark.gpu
def test_the_prefill_form_matches_the_reference() -> None:
    case = replace(cases.PREFILL[0], name="prefill-66", rows=66, absent=0.2, empty=True)
    inputs = case.make("cuda")
    out = torch.full_like(inputs[0], torch.nan)
    settings = launch.Settings(1, explicit=True, widened=True, block=64)
    got = launch.sparse_attention(*inputs, settings, out)
    assert error(got, reference.sparse_attention(*inputs, dtype=torch.float64)) < 2.5e-3
