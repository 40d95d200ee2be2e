"""Quantise activation rows to FP8, folding the scales of groups of 32 into one scale a row."""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diptych.kernels.triton_formats import (
    ceil_exponent,
    let_next_start,
    power_of_two,
    to_e4m3,
    wait_for_previous,
)


@triton.jit
def quantise_groups(x):
    """x: [groups, 32] float32, one row of activations -> E4M3 of that shape, the row's scale."""
    peak = tl.maximum(tl.max(tl.abs(x), 1), 1e-4)
    exponent = ceil_exponent(peak * (1.0 / 448.0))
    top = tl.max(exponent, 0)
    q = to_e4m3(x * power_of_two(254 - exponent)[:, None]).to(tl.float32)
    # 2^(exponent - top) may be below float32's normal range only where q vanishes anyway
    folded = q * power_of_two(tl.maximum(exponent - top + 127, 1))[:, None]
    return to_e4m3(folded), power_of_two(top)


@triton.jit
def quantise_rows(
    x_ptr, out_ptr, scale_ptr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, OVERLAP: tl.constexpr
):
    """FP8 per 32, then one scale a row. x: [rows, WIDTH] bf16 -> out E4M3, scale [rows] float32.

    GROUPS is WIDTH / 32 rounded up to a power of two.
    """
    let_next_start(OVERLAP)
    wait_for_previous(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, GROUPS)[:, None] * 32 + tl.arange(0, 32)[None, :]
    x = tl.load(x_ptr + row * WIDTH + at, at < WIDTH, other=0.0).to(tl.float32)
    q, scale = quantise_groups(x)
    tl.store(out_ptr + row * WIDTH + at, q, at < WIDTH)
    tl.store(scale_ptr + row, scale)


def launch_overlap(overlap: bool, leads: bool = False) -> dict[str, Any]:
    """Launch arguments for programmatic dependent launch.

    A call's first kernel waits for all before it (`leads`): the second may then read inputs early.
    The interpreter knows no `launch_pdl`.
    """
    if not overlap:
        return {"OVERLAP": False}
    return {"OVERLAP": True} if leads else {"OVERLAP": True, "launch_pdl": True}


def quantise(
    x: Tensor, overlap: bool, leads: bool = False, warps: int | None = None
) -> tuple[Tensor, Tensor]:
    """x: [rows, width] bf16 -> E4M3 [rows, width], scale [rows] float32.

    Both scales are powers of two, so only values below 2^-15 of a row's largest lose bits.
    """
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    groups = triton.next_power_of_2(width // 32)
    # alone, a row wants many threads; among many, programs that need no barrier are faster
    warps = warps or (8 if rows < 1024 else 1 if width < 4096 else 2)
    quantise_rows[(rows,)](
        x, out, scale, WIDTH=width, GROUPS=groups, num_warps=warps, **launch_overlap(overlap, leads)
    )
    return out, scale
