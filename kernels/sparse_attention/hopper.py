"""The decode kernel with explicit layouts, for 64 heads of 512 channels on Hopper.

What `kernel.py` cannot say in Triton: eight warps share one row's 64 heads, split by keys for the
scores and by channels for the sum; a block is widened into shared memory once and read by both
products; the next block is gathered and widened while the scores are multiplied.
"""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from diptych.kernels.sparse_attention.kernel import WIDEN_FP4, WIDEN_FP8

FP4 = gl.constexpr(WIDEN_FP4.value)
FP8 = gl.constexpr(WIDEN_FP8.value)


@gluon.jit
def fill_entries(
    even_smem, odd_smem, entries_ptr, index_smem, BLOCK: gl.constexpr, HALF: gl.constexpr
):
    """Gather FP4 records by the numbers in index_smem, widen, store: K / 128 in float16."""
    layout: gl.constexpr = gl.BlockedLayout([1, 2, 8], [2, 16, 1], [8, 1, 1], [2, 1, 0])
    by_group: gl.constexpr = gl.SliceLayout(2, layout)
    rows: gl.constexpr = gl.SliceLayout(1, by_group)
    record: gl.constexpr = HALF + HALF // 8
    at = index_smem.load(rows).to(gl.int64)
    start = gl.maximum(at, 0) * record
    group = gl.arange(0, HALF // 8, layout=gl.SliceLayout(0, by_group))
    byte = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    start2 = gl.expand_dims(start, 1)
    scale_at = start2 + (HALF + gl.expand_dims(group, 0))
    data2 = start2 + gl.expand_dims(group * 8, 0)
    data_at = gl.expand_dims(data2, 2) + gl.expand_dims(gl.expand_dims(byte, 0), 1)
    pairs = gl.load(entries_ptr + data_at)
    scale = gl.expand_dims(gl.load(entries_ptr + scale_at), 2)
    pairs, scale = gl.broadcast(pairs, scale)
    even, odd = gl.inline_asm_elementwise(
        FP4,
        "=r,=r,=r,=r,r,r",
        [pairs, scale],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=4,
    )
    even_smem.store(gl.reshape(even, [BLOCK, HALF]))
    odd_smem.store(gl.reshape(odd, [BLOCK, HALF]))


@gluon.jit
def fill_window(
    even_smem,
    odd_smem,
    window_ptr,
    window_bytes_ptr,
    index_smem,
    BLOCK: gl.constexpr,
    HALF: gl.constexpr,
):
    """Gather FP8 records, as int16 pairs of channels, widen, store: K / 128 in float16."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 8], [2, 8, 2], [8, 1, 1], [2, 1, 0])
    by_group: gl.constexpr = gl.SliceLayout(2, layout)
    rows: gl.constexpr = gl.SliceLayout(1, by_group)
    record: gl.constexpr = HALF + HALF // 32
    at = index_smem.load(rows).to(gl.int64)
    start2 = gl.expand_dims(gl.maximum(at, 0) * record, 1)
    group = gl.arange(0, HALF // 16, layout=gl.SliceLayout(0, by_group))
    pair = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    scale_at = 2 * (start2 + HALF) + gl.expand_dims(group, 0)
    data2 = start2 + gl.expand_dims(group * 16, 0)
    data_at = gl.expand_dims(data2, 2) + gl.expand_dims(gl.expand_dims(pair, 0), 1)
    pairs = gl.load(window_ptr + data_at)
    power = gl.load(window_bytes_ptr + scale_at).to(gl.int32) << 23
    scale = gl.expand_dims(power.to(gl.float32, bitcast=True).to(gl.float16), 2)
    pairs, scale = gl.broadcast(pairs, scale)
    even, odd = gl.inline_asm_elementwise(
        FP8,
        "=r,=r,r,r",
        [pairs, scale],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )
    even_smem.store(gl.reshape(even, [BLOCK, HALF]))
    odd_smem.store(gl.reshape(odd, [BLOCK, HALF]))


@gluon.jit
def bf16_bits(x):
    """Float32 rounded to bfloat16, in the upper half of an int32."""
    bits = x.to(gl.int32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536


@gluon.jit
def attend(
    q_ptr,
    window_ptr,
    window_bytes_ptr,
    window_index_ptr,
    entries_ptr,
    entry_index_ptr,
    sink_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    scale,
    SHARES: gl.constexpr,
    HEADS: gl.constexpr,
    HALF: gl.constexpr,
    WINDOW: gl.constexpr,
    ENTRIES: gl.constexpr,
    BLOCK: gl.constexpr,
):
    """Grid (SHARES, rows). Arguments as in `kernel.attend`; out is [rows, HEADS, HALF] int32."""
    row = gl.program_id(1).to(gl.int64)
    share = gl.program_id(0)
    smem: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    score: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK // 2, 16])
    value: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, HALF // 2, 16])
    per_head: gl.constexpr = gl.SliceLayout(1, score)
    per_row: gl.constexpr = gl.SliceLayout(1, value)
    wide: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [8, 1], [1, 0])

    q_even = gl.allocate_shared_memory(gl.float16, [HEADS, HALF], smem)
    q_odd = gl.allocate_shared_memory(gl.float16, [HEADS, HALF], smem)
    k_even = gl.allocate_shared_memory(gl.float16, [2, BLOCK, HALF], smem)
    k_odd = gl.allocate_shared_memory(gl.float16, [2, BLOCK, HALF], smem)
    p_smem = gl.allocate_shared_memory(gl.float16, [HEADS, BLOCK], smem)

    window_blocks: gl.constexpr = WINDOW // BLOCK
    blocks: gl.constexpr = window_blocks + ENTRIES // BLOCK
    first = share * blocks // SHARES
    last = (share + 1) * blocks // SHARES
    window_list = window_index_ptr + row * WINDOW
    entry_list = entry_index_ptr + row * ENTRIES

    # the numbers first: every gather starts from them
    line: gl.constexpr = gl.BlockedLayout([1], [32], [8], [0])
    numbers = gl.allocate_shared_memory(
        gl.int32, [blocks, BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    spot = gl.arange(0, BLOCK, layout=line)
    for block in gl.static_range(blocks):
        if block < window_blocks:
            numbers.index(block).store(gl.load(window_list + block * BLOCK + spot))
        else:
            at = entry_list + (block - window_blocks) * BLOCK + spot
            numbers.index(block).store(gl.load(at))

    h = gl.arange(0, HEADS, layout=gl.SliceLayout(1, wide))
    j = gl.arange(0, HALF, layout=gl.SliceLayout(0, wide))
    both = gl.load(
        q_ptr + row * (HEADS * HALF) + gl.expand_dims(h * HALF, 1) + gl.expand_dims(j, 0)
    )
    q_even.store((both << 16).to(gl.float32, bitcast=True).to(gl.float16))
    q_odd.store((both & -65536).to(gl.float32, bitcast=True).to(gl.float16))
    if first < window_blocks:
        fill_window(
            k_even.index(0),
            k_odd.index(0),
            window_ptr,
            window_bytes_ptr,
            numbers.index(first),
            BLOCK,
            HALF,
        )
    else:
        fill_entries(
            k_even.index(0),
            k_odd.index(0),
            entries_ptr,
            numbers.index(first),
            BLOCK,
            HALF,
        )
    fence_async_shared()

    peak = gl.full([HEADS], -1e30, gl.float32, layout=per_head)
    total = gl.full([HEADS], 0.0, gl.float32, layout=per_head)
    zero = gl.full([HEADS, BLOCK], 0.0, gl.float32, layout=score)
    even_sum = gl.full([HEADS, HALF], 0.0, gl.float32, layout=value)
    odd_sum = gl.full([HEADS, HALF], 0.0, gl.float32, layout=value)
    for block in range(first, last):
        now = (block - first) % 2
        s = warpgroup_mma(
            q_even, k_even.index(now).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        s = warpgroup_mma(q_odd, k_odd.index(now).permute((1, 0)), s, is_async=True)
        if block + 1 < window_blocks:
            if block + 1 < last:
                fill_window(
                    k_even.index(1 - now),
                    k_odd.index(1 - now),
                    window_ptr,
                    window_bytes_ptr,
                    numbers.index(block + 1),
                    BLOCK,
                    HALF,
                )
        elif block + 1 < last:
            fill_entries(
                k_even.index(1 - now),
                k_odd.index(1 - now),
                entries_ptr,
                numbers.index(block + 1),
                BLOCK,
                HALF,
            )
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
        # waiting here costs the overlap with the next scores; left open over the loop's end, the
        # assembler serialises every product
        even_sum, odd_sum = warpgroup_mma_wait(0, deps=[even, odd])

    head = gl.expand_dims(gl.arange(0, HEADS, layout=per_row), 1)
    channel = gl.expand_dims(gl.arange(0, HALF, layout=gl.SliceLayout(0, value)), 0)
    if SHARES == 1:
        heads = gl.arange(0, HEADS, layout=per_head)
        sink = gl.load(sink_ptr + heads) * 1.4426950408889634
        total += gl.exp2(gl.minimum(sink - peak, 100.0))
        factor = gl.convert_layout(128.0 / gl.where(total > 0, total, 1.0), per_row)
        factor = gl.expand_dims(factor, 1)
        low = (bf16_bits(even_sum * factor) >> 16) & 0xFFFF
        high = bf16_bits(odd_sum * factor)
        gl.store(out_ptr + (row * HEADS + head) * HALF + channel, low | high)
    else:
        part = partial_ptr + (row * SHARES + share) * (2 * HEADS * HALF) + head * HALF + channel
        gl.store(part, even_sum)
        gl.store(part + HEADS * HALF, odd_sum)
        heads = gl.arange(0, HEADS, layout=per_head)
        stats = stats_ptr + (row * SHARES + share) * (2 * HEADS) + heads
        gl.store(stats, peak)
        gl.store(stats + HEADS, total)
