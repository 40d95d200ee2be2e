"""Sparse attention over V4.1's cache records on Hopper: gather, widen to float16, two products.

Records are read as the caches keep them, even and odd channels apart: an FP4 pair byte or a pair of
FP8 bytes gives one even and one odd channel, so q, accumulators and output are split the same way
and nothing is interleaved until the last store. Widened values are K / 128 in float16, exact for
every FP4 entry (six significant bits, 2^-17 ... 21); window values keep an absolute
error below 4e-6.

A program handles one row, half of the channels of its output and one share of its keys. `attend`
writes the result when one share holds all keys; otherwise partial sums that `combine` joins.
"""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

import triton
import triton.language as tl

from diptych.kernels.triton_formats import fp4_value, product, to_bf16

WIDEN_FP4 = tl.constexpr("""
{
.reg .b16 h, g;
.reg .b32 s, c, t, m;
mov.b32 {h, g}, $5;
cvt.rn.f16x2.e4m3x2 s, h;
mov.b32 c, 0x58005800;
mul.rn.f16x2 s, s, c;
prmt.b32 t, $4, 0, 0x1404;
shl.b32 m, t, 1;
and.b32 m, m, 0x0E000E00;
shl.b32 c, t, 4;
lop3.b32 m, c, 0x80008000, m, 0xEA;
mul.rn.f16x2 $0, m, s;
shr.u32 m, t, 3;
and.b32 m, m, 0x0E000E00;
lop3.b32 m, t, 0x80008000, m, 0xEA;
mul.rn.f16x2 $2, m, s;
prmt.b32 t, $4, 0, 0x3424;
shl.b32 m, t, 1;
and.b32 m, m, 0x0E000E00;
shl.b32 c, t, 4;
lop3.b32 m, c, 0x80008000, m, 0xEA;
mul.rn.f16x2 $1, m, s;
shr.u32 m, t, 3;
and.b32 m, m, 0x0E000E00;
lop3.b32 m, t, 0x80008000, m, 0xEA;
mul.rn.f16x2 $3, m, s;
}
""")

WIDEN_FP8 = tl.constexpr("""
{
.reg .b16 h, g;
.reg .b32 c, t;
mov.b32 c, 0x20002000;
prmt.b32 t, $2, 0, 0x3120;
mov.b32 {h, g}, t;
cvt.rn.f16x2.e4m3x2 t, h;
mul.rn.f16x2 t, t, c;
mul.rn.f16x2 $0, t, $3;
cvt.rn.f16x2.e4m3x2 t, g;
mul.rn.f16x2 t, t, c;
mul.rn.f16x2 $1, t, $3;
}
""")


@triton.jit
def load_entries(
    entries_ptr, at, valid, BLOCK: tl.constexpr, HALF: tl.constexpr, ASM: tl.constexpr
):
    """Even and odd channels of FP4 records / 128: at [BLOCK] int64 -> twice [BLOCK, HALF]."""
    record: tl.constexpr = HALF + HALF // 8
    start = entries_ptr + at * record
    j = tl.arange(0, HALF)
    pairs = tl.load(start[:, None] + j[None, :], valid[:, None], other=0)
    groups = tl.arange(0, HALF // 8)
    scale = tl.load(start[:, None] + HALF + groups[None, :], valid[:, None], other=0)
    scale = tl.broadcast_to(scale[:, :, None], [BLOCK, HALF // 8, 8])
    scale = tl.reshape(scale, [BLOCK, HALF])
    if ASM:
        even, odd = tl.inline_asm_elementwise(
            WIDEN_FP4,
            "=r,=r,=r,=r,r,r",
            [pairs, scale],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    else:
        factor = scale.to(tl.float8e4nv, bitcast=True).to(tl.float32) * 0.0078125
        even = (fp4_value((pairs & 15).to(tl.int32)) * factor).to(tl.float16)
        odd = (fp4_value((pairs >> 4).to(tl.int32)) * factor).to(tl.float16)
    return even, odd


@triton.jit
def load_window(window_ptr, at, valid, BLOCK: tl.constexpr, HALF: tl.constexpr, ASM: tl.constexpr):
    """Even and odd channels of FP8 records / 128, read as int16 pairs of channels."""
    record: tl.constexpr = HALF + HALF // 32
    start = window_ptr + at * record
    j = tl.arange(0, HALF)
    pairs = tl.load(start[:, None] + j[None, :], valid[:, None], other=0)
    groups = tl.arange(0, HALF // 32)
    both = tl.load(start[:, None] + HALF + groups[None, :], valid[:, None], other=0).to(tl.int32)
    low = ((both & 255) << 23).to(tl.float32, bitcast=True)
    high = (((both >> 8) & 255) << 23).to(tl.float32, bitcast=True)
    scale = tl.reshape(tl.join(low, high), [BLOCK, HALF // 16]).to(tl.float16)
    scale = tl.broadcast_to(scale[:, :, None], [BLOCK, HALF // 16, 16])
    scale = tl.reshape(scale, [BLOCK, HALF])
    if ASM:
        even, odd = tl.inline_asm_elementwise(
            WIDEN_FP8,
            "=r,=r,r,r",
            [pairs, scale],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        bits = pairs.to(tl.int32)
        even = (bits & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        odd = ((bits >> 8) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        even = (even * 0.0078125 * scale.to(tl.float32)).to(tl.float16)
        odd = (odd * 0.0078125 * scale.to(tl.float32)).to(tl.float16)
    return even, odd


@triton.jit
def step(
    q_even,
    q_odd,
    k_even,
    k_odd,
    valid,
    acc,
    peak,
    total,
    scale,
    PART: tl.constexpr,
    ASM: tl.constexpr,
):
    """One block of keys: scores, running softmax in base 2, weighted sum of one half."""
    zero = tl.zeros([q_even.shape[0], k_even.shape[0]], tl.float32)
    s = product(q_even, tl.trans(k_even), zero, ASM)
    s = product(q_odd, tl.trans(k_odd), s, ASM) * scale
    s = tl.where(valid[None, :], s, -float("inf"))
    top = tl.maximum(peak, tl.max(s, 1))
    fade = tl.exp2(peak - top)
    p = tl.exp2(s - top[:, None])
    total = total * fade + tl.sum(p, 1)
    acc = acc * fade[:, None]
    if PART == 0:
        acc = product(p.to(tl.float16), k_even, acc, ASM)
    else:
        acc = product(p.to(tl.float16), k_odd, acc, ASM)
    return acc, top, total


@triton.jit
def shares(
    q_ptr,
    window_ptr,
    window_index_ptr,
    entries_ptr,
    entry_index_ptr,
    sink_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    scale,
    row,
    share,
    SHARES: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WINDOW: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    PART: tl.constexpr,
    ASM: tl.constexpr,
):
    """One row, one share of its keys, the even (PART 0) or odd channels of the output."""
    heads = tl.arange(0, HEADS)
    j = tl.arange(0, HALF)
    q_at = q_ptr + row * (HEADS * HALF) + heads[:, None] * HALF + j[None, :]
    both = tl.load(q_at)
    q_even = (both << 16).to(tl.float32, bitcast=True).to(tl.float16)
    q_odd = (both & -65536).to(tl.float32, bitcast=True).to(tl.float16)
    acc = tl.zeros([HEADS, HALF], tl.float32)
    peak = tl.full([HEADS], -1e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    slots = tl.arange(0, BLOCK)

    window_blocks: tl.constexpr = WINDOW // BLOCK
    blocks: tl.constexpr = window_blocks + ENTRIES // BLOCK
    first = share * blocks // SHARES
    last = (share + 1) * blocks // SHARES
    # one stage: two programs must fit into a multiprocessor's shared memory
    for block in tl.range(first, tl.minimum(last, window_blocks), num_stages=1):
        at = tl.load(window_index_ptr + row * WINDOW + block * BLOCK + slots)
        valid = at >= 0
        k_even, k_odd = load_window(window_ptr, at.to(tl.int64), valid, BLOCK, HALF, ASM)
        acc, peak, total = step(
            q_even, q_odd, k_even, k_odd, valid, acc, peak, total, scale, PART, ASM
        )
    for block in tl.range(tl.maximum(first, window_blocks), last, num_stages=STAGES):
        offset = (block - window_blocks) * BLOCK
        at = tl.load(entry_index_ptr + row * ENTRIES + offset + slots)
        valid = at >= 0
        k_even, k_odd = load_entries(entries_ptr, at.to(tl.int64), valid, BLOCK, HALF, ASM)
        acc, peak, total = step(
            q_even, q_odd, k_even, k_odd, valid, acc, peak, total, scale, PART, ASM
        )

    channel = 2 * j + PART
    at = (row * HEADS + heads)[:, None] * (2 * HALF) + channel[None, :]
    if SHARES == 1:
        sink = tl.load(sink_ptr + heads) * 1.4426950408889634
        total += tl.exp2(tl.minimum(sink - peak, 100.0))  # a row without keys: peak is -1e30
        acc = acc * (128.0 / tl.where(total > 0, total, 1.0))[:, None]
        tl.store(out_ptr + at, to_bf16(acc, ASM))
    else:
        part_at = ((row * SHARES + share) * 2 + PART) * HEADS + heads
        tl.store(partial_ptr + part_at[:, None] * HALF + j[None, :], acc)
        stats = stats_ptr + (row * SHARES + share) * (2 * HEADS) + heads
        if PART == 0:
            tl.store(stats, peak)
            tl.store(stats + HEADS, total)


@triton.jit
def attend(
    q_ptr,
    window_ptr,
    window_index_ptr,
    entries_ptr,
    entry_index_ptr,
    sink_ptr,
    out_ptr,
    partial_ptr,
    stats_ptr,
    scale,
    SHARES: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WINDOW: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    ASM: tl.constexpr,
):
    """Grid (2 * SHARES, rows): a share's two halves run side by side and read the same records.

    q: [rows, HEADS, HALF] int32 (pairs of bf16); window: [records, HALF + HALF / 32] int16;
    entries: [records, HALF + HALF / 8] uint8; indices: [rows, n] int32, -1 absent; scale: softmax
    scale * log2(e) * 128. Output [rows, HEADS, 2 HALF] bf16, or partial [rows, SHARES, 2, HEADS,
    HALF] float32 and stats [rows, SHARES, 2, HEADS].
    """
    row = tl.program_id(1).to(tl.int64)
    share = tl.program_id(0) // 2
    if tl.program_id(0) % 2 == 0:
        shares(
            q_ptr, window_ptr, window_index_ptr, entries_ptr, entry_index_ptr, sink_ptr, out_ptr,
            partial_ptr, stats_ptr, scale, row, share,
            SHARES, HEADS, HALF, WINDOW, ENTRIES, BLOCK, STAGES, 0, ASM,
        )  # fmt: skip
    else:
        shares(
            q_ptr, window_ptr, window_index_ptr, entries_ptr, entry_index_ptr, sink_ptr, out_ptr,
            partial_ptr, stats_ptr, scale, row, share,
            SHARES, HEADS, HALF, WINDOW, ENTRIES, BLOCK, STAGES, 1, ASM,
        )  # fmt: skip


@triton.jit
def combine(
    partial_ptr,
    stats_ptr,
    sink_ptr,
    out_ptr,
    SHARES: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    ASM: tl.constexpr,
):
    """Join shares in order, add the sink, write bf16. Grid (HEADS, rows)."""
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    j = tl.arange(0, HALF)
    sink = tl.load(sink_ptr + head) * 1.4426950408889634
    stats = stats_ptr + row * SHARES * 2 * HEADS + head
    top = tl.load(stats)
    for share in tl.static_range(1, SHARES):
        top = tl.maximum(top, tl.load(stats + share * 2 * HEADS))
    total = tl.exp2(tl.minimum(sink - top, 100.0))
    even = tl.zeros([HALF], tl.float32)
    odd = tl.zeros([HALF], tl.float32)
    for share in tl.static_range(SHARES):
        weight = tl.exp2(tl.load(stats + share * 2 * HEADS) - top)
        total += tl.load(stats + share * 2 * HEADS + HEADS) * weight
        part = partial_ptr + (((row * SHARES + share) * 2) * HEADS + head) * HALF + j
        even += tl.load(part) * weight
        odd += tl.load(part + HEADS * HALF) * weight
    factor = 128.0 / tl.where(total > 0, total, 1.0)
    both = tl.reshape(tl.join(even * factor, odd * factor), [2 * HALF])
    out = out_ptr + (row * HEADS + head) * (2 * HALF) + tl.arange(0, 2 * HALF)
    tl.store(out, to_bf16(both, ASM))
