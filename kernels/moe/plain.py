"""Routed experts the plain way: checkpoint layout, bfloat16 products, group scales in the loop.

It serves experts that cannot be packed (a row's scales span more than 11 binades) and shows in the
benchmark what packing brings.
"""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from diptych.kernels.formats import fake_fp8
from diptych.kernels.moe import launch
from diptych.kernels.moe.reference import Experts
from diptych.kernels.triton_formats import fp4_value, product, to_bf16


@triton.jit
def plain_product(
    x_ptr,
    w_ptr,
    s_ptr,
    order_ptr,
    tiles_ptr,
    out_ptr,
    SLOTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GATHER: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """x: [tokens or places, K] bf16; w: [experts, N, K / 2]; s: [experts, N, K / 32].

    GATHER: x by token -> out [places, N] bf16; otherwise x by place -> out [pairs, N] bf16.
    """
    row_tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    column_tile = tl.program_id(0) // row_tiles
    if column_tile >= tl.load(tiles_ptr):
        return
    tile = tiles_ptr + (1 + column_tile) * 4
    expert = tl.load(tile).to(tl.int64)
    used = tl.load(tile + 2)
    n = (tl.program_id(0) % row_tiles) * ROWS + tl.arange(0, ROWS)
    inside = tl.minimum(n, N - 1)
    column = tl.arange(0, COLUMNS)
    place = tl.load(tile + 1) + tl.minimum(column, used - 1)
    pair = tl.load(order_ptr + place)
    source = pair // SLOTS if GATHER else place
    k = tl.arange(0, 16)
    w_at = w_ptr + expert * (N * K // 2) + inside[:, None] * (K // 2) + k[None, :]
    s_at = s_ptr + expert * (N * K // 32) + inside * (K // 32)
    x_at = x_ptr + source.to(tl.int64)[:, None] * K + 2 * k[None, :]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in range(K // 32):
        pairs = tl.load(w_at + i * 16).to(tl.int32)
        scale = (tl.load(s_at + i).to(tl.int32) << 23).to(tl.float32, bitcast=True)
        even = to_bf16(fp4_value(pairs & 15) * scale[:, None], COMPILED)
        odd = to_bf16(fp4_value(pairs >> 4) * scale[:, None], COMPILED)
        acc = product(even, tl.trans(tl.load(x_at + i * 32)), acc, COMPILED)
        acc = product(odd, tl.trans(tl.load(x_at + i * 32 + 1)), acc, COMPILED)
    out_row = place if GATHER else pair
    at = out_row.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(out_ptr + at, to_bf16(acc, COMPILED), (column < used)[None, :] & (n < N)[:, None])


def expert_pairs(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, compiled: bool = True
) -> Tensor:
    """As `launch.expert_pairs`, on weights as the checkpoint stores them."""
    columns = 16 if ids.numel() <= 8 * experts.count else 64
    shape = launch.Shape(64, columns, 4, 3)
    settings = replace(
        launch.settings_for(ids.numel(), experts.count), small=0, direct=False, overlap=False
    )
    routing = launch.sort(ids, experts.first, experts.count, columns, settings)

    def multiply(source: Tensor, weight: Tensor, scale: Tensor, out: Tensor, gather: bool) -> None:
        _, n, half = weight.shape
        plain_product[(triton.cdiv(n, shape.rows) * routing.bound,)](
            source,
            weight,
            scale,
            routing.order,
            routing.tiles,
            out,
            SLOTS=ids.shape[1],
            N=n,
            K=half * 2,
            ROWS=shape.rows,
            COLUMNS=columns,
            GATHER=gather,
            COMPILED=compiled,
            num_warps=shape.warps,
        )

    gate = x.new_empty(ids.numel(), experts.w1.shape[1])
    up = torch.empty_like(gate)
    xq = fake_fp8(x).bfloat16()
    multiply(xq, experts.w1, experts.s1, gate, True)
    multiply(xq, experts.w3, experts.s3, up, True)
    a = gate.float().clamp(max=experts.limit)
    b = up.float().clamp(-experts.limit, experts.limit)
    scale = weights.flatten()[routing.order.long().clamp(0, ids.numel() - 1)]
    u = fake_fp8((a * torch.sigmoid(a) * b * scale[:, None]).bfloat16()).bfloat16()
    out = torch.empty(*ids.shape, x.shape[1], dtype=torch.bfloat16, device=x.device)
    multiply(u, experts.w2, experts.s2, out, False)
    return out
