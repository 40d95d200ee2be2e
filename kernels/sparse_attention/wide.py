"""Prefill on Hopper: widen every record once, then gather float16 keys (64 heads of 512 channels).

Many rows select the same records, so widening per row (as `hopper.attend` does) repeats work. Here
`widen_records` writes K / 128 in float16, even channels then odd, into one table, and `attend`
copies rows of it straight into shared memory, a block ahead.
"""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from diptych.kernels.sparse_attention.hopper import bf16_bits
from diptych.kernels.sparse_attention.kernel import load_entries, load_window

# triton 3.9 renamed it
start_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@triton.jit
def widen_records(
    records_ptr,
    out_ptr,
    count,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    FP4: tl.constexpr,
    ASM: tl.constexpr,
):
    """records: [count, ...], FP4 or FP8 as for `kernel.attend` -> out [count, 2 HALF] float16."""
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    valid = at < count
    if FP4:
        even, odd = load_entries(records_ptr, at, valid, BLOCK, HALF, ASM)
    else:
        even, odd = load_window(records_ptr, at, valid, BLOCK, HALF, ASM)
    to = out_ptr + at[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    tl.store(to, even, valid[:, None])
    tl.store(to + HALF, odd, valid[:, None])


@gluon.jit
def fill(even_smem, odd_smem, table_ptr, index_smem, HALF: gl.constexpr):
    """Start copying the records numbered in index_smem; absent ones copy record 0."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    at = gl.maximum(index_smem.load(gl.SliceLayout(1, layout)), 0).to(gl.int64)
    channel = gl.arange(0, HALF, layout=gl.SliceLayout(0, layout))
    row_at = table_ptr + gl.expand_dims(at * (2 * HALF), 1) + gl.expand_dims(channel, 0)
    start_copy(even_smem, row_at)
    start_copy(odd_smem, row_at + HALF)


@gluon.jit
def attend(
    q_ptr,
    table_ptr,
    window_index_ptr,
    entry_index_ptr,
    sink_ptr,
    out_ptr,
    scale,
    num_window,
    HEADS: gl.constexpr,
    HALF: gl.constexpr,
    WINDOW: gl.constexpr,
    ENTRIES: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """Grid (rows,). table: [num_window + entries, 2 HALF] float16; else as in `hopper.attend`."""
    row = gl.program_id(0).to(gl.int64)
    smem: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK // 2, 16])
    value: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, HALF // 2, 16])
    per_head: gl.constexpr = gl.SliceLayout(1, score)
    per_row: gl.constexpr = gl.SliceLayout(1, value)
    wide: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [8, 1], [1, 0])
    line: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    window_blocks: gl.constexpr = WINDOW // BLOCK
    blocks: gl.constexpr = window_blocks + ENTRIES // BLOCK

    q_even = gl.allocate_shared_memory(gl.float16, [HEADS, HALF], smem)
    q_odd = gl.allocate_shared_memory(gl.float16, [HEADS, HALF], smem)
    k_even = gl.allocate_shared_memory(gl.float16, [2, BLOCK, HALF], smem)
    k_odd = gl.allocate_shared_memory(gl.float16, [2, BLOCK, HALF], smem)
    p_smem = gl.allocate_shared_memory(gl.float16, [HEADS, BLOCK], smem)
    numbers = gl.allocate_shared_memory(
        gl.int32, [blocks, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    spot = gl.arange(0, BLOCK, layout=line)
    for block in gl.static_range(blocks):
        if block < window_blocks:
            at = gl.load(window_index_ptr + row * WINDOW + block * BLOCK + spot)
        else:
            offset = (block - window_blocks) * BLOCK
            at = gl.load(entry_index_ptr + row * ENTRIES + offset + spot)
            at = gl.where(at < 0, at, at + num_window)
        numbers.index(block).store(at)
    fill(k_even.index(0), k_odd.index(0), table_ptr, numbers.index(0), HALF)
    async_copy.commit_group()

    h = gl.arange(0, HEADS, layout=gl.SliceLayout(1, wide))
    j = gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
    q_at = q_ptr + row * (HEADS * HALF) + gl.expand_dims(h * HALF, 1) + gl.expand_dims(j, 0)
    both = gl.load(q_at)
    q_even.store((both << 16).to(gl.float32, bitcast=True).to(gl.float16))
    q_odd.store((both & -65536).to(gl.float32, bitcast=True).to(gl.float16))

    peak = gl.full([HEADS], -1e30, gl.float32, layout=per_head)
    total = gl.full([HEADS], 0.0, gl.float32, layout=per_head)
    zero = gl.full([HEADS, BLOCK], 0.0, gl.float32, layout=score)
    even_sum = gl.full([HEADS, HALF], 0.0, gl.float32, layout=value)
    odd_sum = gl.full([HEADS, HALF], 0.0, gl.float32, layout=value)
    for block in range(blocks):
        now = block % 2
        async_copy.wait_group(0)
        fence_async_shared()
        s = warpgroup_mma(
            q_even, k_even.index(now).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        s = warpgroup_mma(q_odd, k_odd.index(now).permute((1, 0)), s, is_async=True)
        if block + 1 < blocks:
            fill(
                k_even.index(1 - now),
                k_odd.index(1 - now),
                table_ptr,
                numbers.index(block + 1),
                HALF,
            )
        async_copy.commit_group()
        valid = numbers.index(block).load(gl.SliceLayout(0, score)) >= 0
        scores = warpgroup_mma_wait(0, deps=[s])
        scores = gl.where(gl.expand_dims(valid, 0), scores * scale, -float("inf"))
        top = gl.maximum(peak, gl.max(scores, 1))
        fade = gl.exp2(peak - top)
        p = gl.exp2(scores - gl.expand_dims(top, 1))
        total = total * fade + gl.sum(p, 1)
        peak = top
        p_smem.store(p.to(gl.float16))
        fence_async_shared()
        fade_row = gl.expand_dims(gl.convert_layout(fade, per_row), 1)
        even = warpgroup_mma(p_smem, k_even.index(now), even_sum * fade_row, is_async=True)
        odd = warpgroup_mma(p_smem, k_odd.index(now), odd_sum * fade_row, is_async=True)
        even_sum, odd_sum = warpgroup_mma_wait(0, deps=[even, odd])

    head = gl.expand_dims(gl.arange(0, HEADS, layout=per_row), 1)
    channel = gl.expand_dims(gl.arange(0, HALF, layout=gl.SliceLayout(0, value)), 0)
    sink = gl.load(sink_ptr + gl.arange(0, HEADS, layout=per_head)) * 1.4426950408889634
    total += gl.exp2(gl.minimum(sink - peak, 100.0))
    factor = gl.convert_layout(128.0 / gl.where(total > 0, total, 1.0), per_row)
    factor = gl.expand_dims(factor, 1)
    low = (bf16_bits(even_sum * factor) >> 16) & 0xFFFF
    high = bf16_bits(odd_sum * factor)
    gl.store(out_ptr + (row * HEADS + head) * HALF + channel, low | high)
