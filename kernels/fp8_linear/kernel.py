"""Dense FP8 projection on Hopper: both operands carry one power of two a row, so k runs unscaled.

`pack` folds the 32 x 32 block scales of the weights into one scale a row; `quantise` does it for
activations. With few rows the weights are read once by many programs, each a share of k, and
`join` adds the shares in order; with many rows it is a plain product.
"""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

import triton
import triton.language as tl

from diptych.kernels.triton_formats import (
    let_next_start,
    product,
    to_bf16,
    wait_for_previous,
)


@triton.jit
def multiply(
    x_ptr,
    x_scale_ptr,
    w_ptr,
    w_scale_ptr,
    out_ptr,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARES: tl.constexpr,
    STAGES: tl.constexpr,
    COMPILED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """TILE weight rows times COLUMNS activation rows, one share of k.

    x: [rows, K] E4M3; w: [N, K] E4M3; scales float32 -> out [rows, N] bf16, or float32 partial sums
    [SHARES, rows, N]. Grid: (weight tiles * activation tiles, SHARES), weight tiles fastest.
    """
    let_next_start(OVERLAP)
    tiles: tl.constexpr = (N + TILE - 1) // TILE
    n = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE)
    m = (tl.program_id(0) // tiles) * COLUMNS + tl.arange(0, COLUMNS)
    share = tl.program_id(1)
    k = tl.arange(0, BLOCK)
    n_in = tl.minimum(n, N - 1)
    m_in = tl.minimum(m, rows - 1)
    steps: tl.constexpr = K // BLOCK
    first = share * steps // SHARES
    last = (share + 1) * steps // SHARES
    wait_for_previous(OVERLAP)
    w_at = w_ptr + n_in.to(tl.int64)[:, None] * K + k[None, :]
    x_at = x_ptr + m_in.to(tl.int64)[:, None] * K + k[None, :]
    acc = tl.zeros([TILE, COLUMNS], tl.float32)
    for i in tl.range(first, last, num_stages=STAGES):
        w = tl.load(w_at + i * BLOCK)
        x = tl.load(x_at + i * BLOCK)
        acc = product(w, tl.trans(x), acc, COMPILED)
    acc *= tl.load(w_scale_ptr + n_in)[:, None] * tl.load(x_scale_ptr + m_in)[None, :]
    inside = (n < N)[:, None] & (m < rows)[None, :]
    at = m.to(tl.int64)[None, :] * N + n[:, None]
    if SHARES == 1:
        tl.store(out_ptr + at, to_bf16(acc, COMPILED), inside)
    else:
        tl.store(out_ptr + share.to(tl.int64) * rows * N + at, acc, inside)


@triton.jit
def join(
    partial_ptr,
    out_ptr,
    size,
    SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
    COMPILED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out = partial sums added in order. partial: [SHARES, size] float32 -> [size] bf16."""
    let_next_start(OVERLAP)
    wait_for_previous(OVERLAP)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for share in tl.static_range(SHARES):
        total += tl.load(partial_ptr + share * size + at, at < size, other=0.0)
    tl.store(out_ptr + at, to_bf16(total, COMPILED), at < size)
