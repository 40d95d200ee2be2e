"""Choose tile shapes and launch the kernels of `kernel.py`."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from diptych.kernels.activations import launch_overlap, quantise
from diptych.kernels.fp8_linear import kernel
from diptych.kernels.fp8_linear.packing import PackedLinear

PROGRAMS = 264  # two a multiprocessor of an H200


@dataclass(frozen=True, slots=True)
class Settings:
    """Tile of weight rows and activation rows; `shares` of k. Fixed shares give fixed bits."""

    tile: int
    columns: int
    warps: int
    stages: int
    shares: int = 1
    block: int = 128
    compiled: bool = True


def settings_for(rows: int, n: int, k: int) -> Settings:
    """Few rows: split k until the chip is full. Many rows: large tiles. Measured on one H200."""
    if rows <= 64:
        columns = 16 if rows <= 16 else 32 if rows <= 32 else 64
        shares = max(1, min(PROGRAMS // triton.cdiv(n, 64), k // 512))
        return Settings(64, columns, 4, 5, shares)
    if triton.cdiv(n, 128) * triton.cdiv(rows, 256) < PROGRAMS:
        return Settings(128, 128, 4, 4)
    return Settings(128, 256, 8, 4)


def fp8_linear(
    x: Tensor, packed: PackedLinear, settings: Settings | None = None, out: Tensor | None = None
) -> Tensor:
    """x: [rows, k] bf16 -> [rows, n] bf16."""
    rows, k = x.shape
    n = packed.data.shape[0]
    s = settings or settings_for(rows, n, k)
    if k % s.block:
        raise ValueError(f"k must be a multiple of {s.block}, not {k}")
    xq, x_scale = quantise(x, s.compiled, leads=True)
    out = torch.empty(rows, n, dtype=torch.bfloat16, device=x.device) if out is None else out
    partial = out
    if s.shares > 1:
        partial = torch.empty(s.shares, rows, n, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(n, s.tile) * triton.cdiv(rows, s.columns), s.shares)
    kernel.multiply[grid](
        xq,
        x_scale,
        packed.data,
        packed.scale,
        partial,
        rows,
        N=n,
        K=k,
        TILE=s.tile,
        COLUMNS=s.columns,
        BLOCK=s.block,
        SHARES=s.shares,
        STAGES=s.stages,
        COMPILED=s.compiled,
        num_warps=s.warps,
        **launch_overlap(s.compiled),
    )
    if s.shares > 1:
        kernel.join[(triton.cdiv(rows * n, 1024),)](
            partial,
            out,
            rows * n,
            SHARES=s.shares,
            BLOCK=1024,
            COMPILED=s.compiled,
            **launch_overlap(s.compiled),
        )
    return out
