"""The iterations of the residual mix as one kernel each way; the definition's loop is its judge.

Launched one by one, twenty iterations of two divisions and two sums, and their gradients, take
longer than the layer around them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64  # rows a program


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x_at, out_at, sums_at, rows, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = tl.arange(0, 4), tl.arange(0, 4)
    cell = row[:, None, None] * 16 + i[None, :, None] * 4 + j[None, None, :]
    inside = row[:, None, None] < rows
    c = tl.load(x_at + cell, mask=inside, other=0.0)
    c = tl.exp(c - tl.max(c, 2, keep_dims=True))
    c = c / tl.sum(c, 2, keep_dims=True) + eps
    for step in range(2 * ITERS - 1):
        at = sums_at + row[:, None] * (8 * ITERS) + step * 4 + tl.arange(0, 4)[None, :]
        if step % 2 == 0:
            s = tl.sum(c, 1) + eps
            c = c / s[:, None, :]
        else:
            s = tl.sum(c, 2) + eps
            c = c / s[:, :, None]
        tl.store(at, s, mask=row[:, None] < rows)
    tl.store(out_at + cell, c, mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    out_at, sums_at, g_at, gx_at, rows, eps, ITERS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = tl.arange(0, 4), tl.arange(0, 4)
    cell = row[:, None, None] * 16 + i[None, :, None] * 4 + j[None, None, :]
    inside = row[:, None, None] < rows
    c = tl.load(out_at + cell, mask=inside, other=0.25)
    g = tl.load(g_at + cell, mask=inside, other=0.0)
    for back in range(2 * ITERS - 1):
        step = 2 * ITERS - 2 - back
        at = sums_at + row[:, None] * (8 * ITERS) + step * 4 + tl.arange(0, 4)[None, :]
        s = tl.load(at, mask=row[:, None] < rows, other=1.0)
        if step % 2 == 0:
            g = (g - tl.sum(g * c, 1)[:, None, :]) / s[:, None, :]
            c = c * s[:, None, :]
        else:
            g = (g - tl.sum(g * c, 2)[:, :, None]) / s[:, :, None]
            c = c * s[:, :, None]
    p = c - eps
    tl.store(gx_at + cell, p * (g - tl.sum(g * p, 2)[:, :, None]), mask=inside)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, iters: int, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        x = x.contiguous()
        out, sums = torch.empty_like(x), x.new_empty(len(x), 2 * iters, 4)
        grid = (triton.cdiv(len(x), _BLOCK),)
        _forward[grid](x, out, sums, len(x), eps, ITERS=iters, BLOCK=_BLOCK)
        ctx.save_for_backward(out, sums)
        ctx.iters, ctx.eps = iters, eps
        return out

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        out, sums = ctx.saved_tensors
        gx = torch.empty_like(out)
        grid = (triton.cdiv(len(out), _BLOCK),)
        _backward[grid](
            out, sums, g.contiguous(), gx, len(out), ctx.eps, ITERS=ctx.iters, BLOCK=_BLOCK
        )
        return gx, None, None


def sinkhorn(scores: Tensor, iters: int, eps: float) -> Tensor:
    """Scores [T, 4, 4] -> doubly stochastic [T, 4, 4], rows from stream i, columns to stream j."""
    return _Sinkhorn.apply(scores, iters, eps)  # type: ignore[no-any-return]
