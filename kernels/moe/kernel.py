"""Routed experts on Hopper: sort pairs, FP8 products over FP4 weights, SwiGLU, ordered sum.

Five launches, each overlapping the start of the next:

1. `sort_pairs` orders (token, slot) pairs by expert and cuts them into column tiles;
2. `quantise_rows` rounds x to FP8 per 32, then rewrites it with one scale per row. Both scales are
   powers of two, so only values below 2^-15 of the row's largest lose bits;
3. `expert_product` reads the packed weights once per column tile, widens them in registers
   (`packing.py`) and multiplies; the epilogue applies SwiGLU and the routing weight;
4. `quantise_rows` and `expert_product` again for the down projection;
5. `sum_slots` adds the slots of a token in order.

On Hopper `product.cu` does 2 to 4 for one token and for large batches, to the same bits.

No step splits k and every row's arithmetic is the same in every tile shape: a row's bits do not
depend on its batch.
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

WIDEN = tl.constexpr("""
{
.reg .b32 t, m, s;
and.b32 t, $2, 0x77777777;
prmt.b32 m, $3, $7, t;
lop3.b32 $0, $2, 0x80808080, m, 0xEA;
shr.u32 t, t, 16;
prmt.b32 m, $11, $15, t;
shl.b32 s, $2, 4;
lop3.b32 $1, s, 0x80808080, m, 0xEA;
}
""")


@triton.jit
def count_pairs(
    ids_ptr,
    counts_ptr,
    num_pairs,
    first,
    num_experts,
    EXPERTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (blocks of pairs,): adds to counts[s, e], pairs in segment s of local expert e.

    ids: [num_pairs]; counts: [SEGMENTS, EXPERTS], zero at first. The first block of segment s is
    s * blocks // SEGMENTS.
    """
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ids = tl.load(ids_ptr + pair, pair < num_pairs, other=-1) - first
    segment = ((tl.program_id(0) + 1) * SEGMENTS - 1) // tl.num_programs(0)
    held = (ids >= 0) & (ids < num_experts)
    tl.atomic_add(counts_ptr + segment * EXPERTS + ids, 1, held, sem="relaxed")


@triton.jit
def sort_pairs(
    ids_ptr,
    counts_ptr,
    order_ptr,
    tiles_ptr,
    num_pairs,
    first,
    num_experts,
    EXPERTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SMALL: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNTED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (experts, segments of the pairs): an expert's pairs go to order, its tiles to tiles.

    order: [num_pairs] pair numbers by expert, then by pair. tiles: [1 + bound, 4] int32, row 0
    holds the number of tiles, row 1 + i (expert, first place in order, columns used, is it small).
    An expert gets tiles of COLUMNS places; a rest of at most 2 * SMALL gets tiles of SMALL. With
    SMALL = 0 it gets as few tiles of at most COLUMNS as will do, equal but for a multiple of 8.
    """
    let_next_start(OVERLAP)
    wait_for_previous(OVERLAP)
    expert = tl.program_id(0)
    segment = tl.program_id(1)
    every = tl.arange(0, EXPERTS)
    earlier = expert * 0
    if COUNTED:
        parts = tl.arange(0, SEGMENTS)[:, None]
        table = tl.load(counts_ptr + parts * EXPERTS + every[None, :])
        counts = tl.sum(table, 0)
        earlier = tl.sum(tl.where((parts < segment) & (every[None, :] == expert), table, 0))
    else:
        pair = tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + pair, pair < num_pairs, other=-1) - first
        held = (ids >= 0) & (ids < num_experts)
        counts = tl.histogram(tl.where(held, ids, 0), EXPERTS, mask=held)
    before = every < expert
    if SMALL == 0:
        tile_counts = (counts + COLUMNS - 1) // COLUMNS
    else:
        rest = counts % COLUMNS
        small_counts = tl.where(rest <= 2 * SMALL, (rest + SMALL - 1) // SMALL, 1)
        tile_counts = counts // COLUMNS + small_counts
    base = tl.sum(tl.where(before, counts, 0))
    tile_base = tl.sum(tl.where(before, tile_counts, 0))
    mine = tl.sum(tl.where(every == expert, counts, 0))
    if (expert == 0) & (segment == 0):
        tl.store(tiles_ptr, tl.sum(tile_counts))
    done = tl.where(segment == 0, base * 0, mine)
    tiles = tl.maximum((mine + COLUMNS - 1) // COLUMNS, 1)
    equal = ((mine + tiles - 1) // tiles + 7) // 8 * 8
    tile_row = tiles_ptr + (1 + tile_base) * 4
    while done < mine:
        left = mine - done
        small = (left <= 2 * SMALL).to(tl.int32)
        used = tl.minimum(left, tl.where(small > 0, SMALL, COLUMNS))
        if SMALL == 0:
            used = tl.minimum(left, equal)
        tl.store(tile_row, expert)
        tl.store(tile_row + 1, base + done)
        tl.store(tile_row + 2, used)
        tl.store(tile_row + 3, small)
        tile_row += 4
        done += used
    base += earlier
    blocks = (num_pairs + BLOCK - 1) // BLOCK
    for i in range(segment * blocks // SEGMENTS, (segment + 1) * blocks // SEGMENTS):
        pair = i * BLOCK + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + pair, pair < num_pairs, other=-1) - first
        hit = ids == expert
        rank = tl.cumsum(hit.to(tl.int32), 0)
        tl.store(order_ptr + base + rank - 1, pair, hit)
        base += tl.sum(hit.to(tl.int32))


@triton.jit
def widen(words, e_even, e_odd, ROWS: tl.constexpr, ASM: tl.constexpr):
    """Two groups of FP4 values as E4M3, their scale in the exponent.

    words: [ROWS, 32] uint8 if ASM, else [ROWS, 8] int32; e_even, e_odd: [ROWS] int32 -> two
    [ROWS, 32] float8e4nv.
    """
    if ASM:
        low_a = (e_even * 0x08080800 + 0x0C080000)[:, None]
        high_a = (e_even * 0x08080808 + 0x1C181410)[:, None]
        low_b = (e_odd * 0x08080800 + 0x0C080000)[:, None]
        high_b = (e_odd * 0x08080808 + 0x1C181410)[:, None]
        a, b = tl.inline_asm_elementwise(
            WIDEN,
            "=r,=r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
            [words, low_a, high_a, low_b, high_b],
            dtype=(tl.uint8, tl.uint8),
            is_pure=True,
            pack=4,
        )
    else:
        i = tl.arange(0, 4)[None, None, :]
        w = words[:, :, None]
        m_a = (w >> (4 * i)) & 7
        m_b = (w >> (16 + 4 * i)) & 7
        s_a = (w >> (8 * i)) & 0x80
        s_b = ((w << 4) >> (8 * i)) & 0x80
        step_a = tl.where(m_a < 4, (m_a - 1) * 8 - (m_a == 3) * 4, m_a * 4)
        step_b = tl.where(m_b < 4, (m_b - 1) * 8 - (m_b == 3) * 4, m_b * 4)
        a = tl.where(m_a == 0, 0, e_even[:, None, None] * 8 + step_a) | s_a
        b = tl.where(m_b == 0, 0, e_odd[:, None, None] * 8 + step_b) | s_b
        a = tl.reshape(a, [ROWS, 32]).to(tl.uint8)
        b = tl.reshape(b, [ROWS, 32]).to(tl.uint8)
    return a.to(tl.float8e4nv, bitcast=True), b.to(tl.float8e4nv, bitcast=True)


@triton.jit
def swiglu(gate, up, limit):
    """silu(min(gate, limit)) * clamp(up, limit)."""
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def tile_product(
    x_ptr,
    x_scale_ptr,
    data_ptr,
    exponent_ptr,
    row_scale_ptr,
    weight_ptr,
    order_ptr,
    out_ptr,
    limit,
    expert,
    place0,
    used,
    row_tile,
    SLOTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    SWIGLU: tl.constexpr,
    DIRECT: tl.constexpr,
    ASM: tl.constexpr,
):
    """ROWS weight rows of one expert times COLUMNS places; see `expert_product`."""
    n = row_tile * ROWS + tl.arange(0, ROWS)
    inside = n
    if N % ROWS != 0:
        inside = tl.minimum(n, N - 1)
    column = tl.arange(0, COLUMNS)
    place = place0 + tl.minimum(column, used - 1)
    pair = place if DIRECT else tl.load(order_ptr + place)
    source = pair // SLOTS if SWIGLU else place

    k = tl.arange(0, 32)
    x_at = x_ptr + source.to(tl.int64)[:, None] * K + k[None, :]
    e_at = exponent_ptr + expert * (N * K // 128) + inside
    if ASM:
        w_at = data_ptr + expert * (N * K // 2) + inside[:, None] * 32 + k[None, :]
    else:
        w_at = (data_ptr + expert * (N * K // 2)).to(tl.pointer_type(tl.int32))
        w_at = w_at + inside[:, None] * 8 + tl.arange(0, 8)[None, :]
    line: tl.constexpr = N * 32 if ASM else N * 8

    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in tl.range(0, K // 128, num_stages=STAGES):
        e = tl.load(e_at + i * N)
        w0 = tl.load(w_at + (2 * i) * line)
        w1 = tl.load(w_at + (2 * i + 1) * line)
        x0 = tl.load(x_at + i * 128)
        x1 = tl.load(x_at + i * 128 + 32)
        x2 = tl.load(x_at + i * 128 + 64)
        x3 = tl.load(x_at + i * 128 + 96)
        a, b = widen(w0, e & 255, (e >> 8) & 255, ROWS, ASM)
        acc = product(a, tl.trans(x0), acc, ASM)
        acc = product(b, tl.trans(x1), acc, ASM)
        a, b = widen(w1, (e >> 16) & 255, (e >> 24) & 255, ROWS, ASM)
        acc = product(a, tl.trans(x2), acc, ASM)
        acc = product(b, tl.trans(x3), acc, ASM)

    x_scale = tl.load(x_scale_ptr + source)
    acc *= tl.load(row_scale_ptr + expert * N + inside)[:, None] * x_scale[None, :]
    valid = column < used
    if SWIGLU:
        halves = tl.permute(tl.reshape(acc, [ROWS // 16, 2, 8, COLUMNS]), (0, 2, 3, 1))
        gate, up = tl.split(halves)
        gate = tl.reshape(gate, [ROWS // 2, COLUMNS])
        up = tl.reshape(up, [ROWS // 2, COLUMNS])
        u = swiglu(gate, up, limit) * tl.load(weight_ptr + pair)[None, :]
        half = row_tile * (ROWS // 2) + tl.arange(0, ROWS // 2)
        at = place.to(tl.int64)[None, :] * (N // 2) + half[:, None]
        tl.store(out_ptr + at, to_bf16(u, ASM), valid[None, :] & (half < N // 2)[:, None])
    else:
        at = pair.to(tl.int64)[None, :] * N + n[:, None]
        tl.store(out_ptr + at, to_bf16(acc, ASM), valid[None, :] & (n < N)[:, None])


@triton.jit
def expert_product(
    x_ptr,
    x_scale_ptr,
    data_ptr,
    exponent_ptr,
    row_scale_ptr,
    weight_ptr,
    ids_ptr,
    order_ptr,
    tiles_ptr,
    out_ptr,
    limit,
    first,
    num_experts,
    SLOTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SMALL: tl.constexpr,
    STAGES: tl.constexpr,
    SWIGLU: tl.constexpr,
    DIRECT: tl.constexpr,
    ASM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Grid (row tiles * column tiles,), the row tiles of a column fastest.

    SWIGLU: x [tokens, K] -> out [places in order, N / 2] bf16. Otherwise x [places, K] -> out
    [pairs, N] bf16. DIRECT: every pair is its own tile; `order` and `tiles` are not read.
    """
    let_next_start(OVERLAP)
    row_tiles: tl.constexpr = (N + ROWS - 1) // ROWS
    column_tile = tl.program_id(0) // row_tiles
    row_tile = tl.program_id(0) % row_tiles
    if DIRECT:
        expert = tl.load(ids_ptr + column_tile) - first
        if (expert < 0) | (expert >= num_experts):
            return
        wait_for_previous(OVERLAP)
        tile_product(
            x_ptr, x_scale_ptr, data_ptr, exponent_ptr, row_scale_ptr, weight_ptr, order_ptr,
            out_ptr, limit, expert.to(tl.int64), column_tile, 1, row_tile,
            SLOTS, N, K, ROWS, COLUMNS, STAGES, SWIGLU, DIRECT, ASM,
        )  # fmt: skip
    else:
        wait_for_previous(OVERLAP)
        if column_tile >= tl.load(tiles_ptr):
            return
        tile = tiles_ptr + (1 + column_tile) * 4
        expert = tl.load(tile).to(tl.int64)
        place0 = tl.load(tile + 1)
        used = tl.load(tile + 2)
        if SMALL == COLUMNS:  # noqa: SIM114 - decided by the compiler, the next one at run time
            tile_product(
                x_ptr, x_scale_ptr, data_ptr, exponent_ptr, row_scale_ptr, weight_ptr, order_ptr,
                out_ptr, limit, expert, place0, used, row_tile,
                SLOTS, N, K, ROWS, COLUMNS, STAGES, SWIGLU, DIRECT, ASM,
            )  # fmt: skip
        elif tl.load(tile + 3) == 0:
            tile_product(
                x_ptr, x_scale_ptr, data_ptr, exponent_ptr, row_scale_ptr, weight_ptr, order_ptr,
                out_ptr, limit, expert, place0, used, row_tile,
                SLOTS, N, K, ROWS, COLUMNS, STAGES, SWIGLU, DIRECT, ASM,
            )  # fmt: skip
        else:
            tile_product(
                x_ptr, x_scale_ptr, data_ptr, exponent_ptr, row_scale_ptr, weight_ptr, order_ptr,
                out_ptr, limit, expert, place0, used, row_tile,
                SLOTS, N, K, ROWS, SMALL, STAGES, SWIGLU, DIRECT, ASM,
            )  # fmt: skip


@triton.jit
def sum_slots(
    pairs_ptr,
    ids_ptr,
    shared_ptr,
    out_ptr,
    first,
    num_experts,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARED: tl.constexpr,
    COMPILED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out[t] = sum over local slots in order (+ shared[t]).

    pairs: [tokens, SLOTS, WIDTH] bf16.
    """
    let_next_start(OVERLAP)
    wait_for_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(SLOTS):
        expert = tl.load(ids_ptr + token * SLOTS + slot) - first
        width = tl.where((expert >= 0) & (expert < num_experts), WIDTH, 0)
        row = pairs_ptr + (token * SLOTS + slot) * WIDTH
        total += tl.load(row + at, at < width, other=0.0).to(tl.float32)
    if SHARED:
        total += tl.load(shared_ptr + token * WIDTH + at, at < WIDTH, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * WIDTH + at, to_bf16(total, COMPILED), at < WIDTH)
