"""Index scores over FP4 keys, block maxima, and an exact top-k, on Hopper.

Keys are read page by page as the cache keeps them (all data of a page, then all scales), widened to
float16 with even and odd channels apart (as in `sparse_attention`), keys / 128 so that every scale
up to 2^8 fits. One program scores a tile of keys against the heads of a few query rows.

Selection is a radix select in four passes of 8 bits over the scores' ordered bits, then a count
and an ordered emit: exact, ties to the lower entry, ascending, the same for any batch. A row that
fits the registers of one program is selected in one launch, bit by bit (`select_row`).
"""

# mypy: allow-incomplete-defs, allow-untyped-defs
# (kernels annotate only their compile-time arguments)

import triton
import triton.language as tl

from diptych.kernels.triton_formats import fp4_value, product

WIDEN = tl.constexpr("""
{
.reg .b32 c, t, m;
prmt.b32 t, $4, 0, 0x1404;
shl.b32 m, t, 1;
and.b32 m, m, 0x0E000E00;
shl.b32 c, t, 4;
lop3.b32 m, c, 0x80008000, m, 0xEA;
mul.rn.f16x2 $0, m, $5;
shr.u32 m, t, 3;
and.b32 m, m, 0x0E000E00;
lop3.b32 m, t, 0x80008000, m, 0xEA;
mul.rn.f16x2 $2, m, $5;
prmt.b32 t, $4, 0, 0x3424;
shl.b32 m, t, 1;
and.b32 m, m, 0x0E000E00;
shl.b32 c, t, 4;
lop3.b32 m, c, 0x80008000, m, 0xEA;
mul.rn.f16x2 $1, m, $6;
shr.u32 m, t, 3;
and.b32 m, m, 0x0E000E00;
lop3.b32 m, t, 0x80008000, m, 0xEA;
mul.rn.f16x2 $3, m, $6;
}
""")


@triton.jit
def widen_keys(pairs, scales, BLOCK: tl.constexpr, HALF: tl.constexpr, ASM: tl.constexpr):
    """pairs: [BLOCK, HALF] uint8, scales: [BLOCK, HALF / 16] uint8 UE8M0 -> even, odd / 128."""
    # the asm leaves magnitudes times 2^-14: 2^(s - 127) * 2^14 / 128 = 2^(s - 120)
    shift: tl.constexpr = 7 if ASM else -7
    power = tl.maximum(scales.to(tl.int32) + shift, 1)
    factor = (power << 23).to(tl.float32, bitcast=True)
    if ASM:
        factor16 = factor.to(tl.float16)
        wide = tl.broadcast_to(factor16[:, :, None], [BLOCK, HALF // 16, 16])
        wide = tl.reshape(wide, [BLOCK, HALF])
        even, odd = tl.inline_asm_elementwise(
            WIDEN,
            "=r,=r,=r,=r,r,r,r",
            [pairs, wide],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    else:
        wide = tl.reshape(
            tl.broadcast_to(factor[:, :, None], [BLOCK, HALF // 16, 16]), [BLOCK, HALF]
        )
        even = (fp4_value((pairs & 15).to(tl.int32)) * wide).to(tl.float16)
        odd = (fp4_value((pairs >> 4).to(tl.int32)) * wide).to(tl.float16)
    return even, odd


@triton.jit
def store_tile(
    total,
    best,
    out_ptr,
    maxima_ptr,
    width,
    first,
    tile,
    QUERIES: tl.constexpr,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    MAXIMA: tl.constexpr,
):
    """total: [TILE, QUERIES] scores, best: [TILE / GROUP, QUERIES] maxima of their blocks."""
    lanes = first.to(tl.int64) + tl.arange(0, QUERIES)
    place = tile * TILE + tl.arange(0, TILE)
    at = out_ptr + lanes[None, :] * width + place[:, None]
    tl.store(at, total, (place < width)[:, None] & (lanes >= 0)[None, :])
    if MAXIMA:
        group = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        at = maxima_ptr + lanes[None, :] * (width // GROUP) + group[:, None]
        tl.store(at, best, (group < width // GROUP)[:, None] & (lanes >= 0)[None, :])


@triton.jit
def score(
    q_ptr,
    weight_ptr,
    pages_ptr,
    table_ptr,
    visible_ptr,
    blocks_ptr,
    out_ptr,
    maxima_ptr,
    width,
    table_width,
    num_blocks,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    GROUP: tl.constexpr,
    RESTRICTED: tl.constexpr,
    MAXIMA: tl.constexpr,
    STAGES: tl.constexpr,
    ASM: tl.constexpr,
):
    """Grid (tiles / TILES, rows / QUERIES): rows of one program belong to one sequence.

    q: [rows, 2, HEADS, HALF] float16, even channels then odd; weight: [rows, HEADS] float32;
    pages: [n, PAGE * (HALF + HALF / 16)] uint8; table: [rows / QUERIES, table_width] int32;
    visible: [rows] int32 entries a row sees -> out [rows, width] float32, -inf where not visible;
    maxima [rows, width / GROUP] with +inf for the newest block. RESTRICTED: tile places are GROUP
    entries of each block in blocks [rows, num_blocks] int32 (-1 absent), QUERIES is 1.
    """
    first = tl.program_id(1) * QUERIES
    at = first.to(tl.int64)
    visible = tl.load(visible_ptr + first + tl.arange(0, QUERIES))
    furthest = tl.max(visible, 0)
    if not RESTRICTED and tl.program_id(0) * TILES * TILE >= furthest:
        nothing = tl.full([TILE, QUERIES], -float("inf"), tl.float32)
        no_best = tl.full([TILE // GROUP, QUERIES], -float("inf"), tl.float32)
        for i in range(TILES):
            tile = tl.program_id(0) * TILES + i
            store_tile(
                nothing, no_best, out_ptr, maxima_ptr, width, first, tile,
                QUERIES, TILE, GROUP, MAXIMA,
            )  # fmt: skip
        return
    j = tl.arange(0, HALF)
    g = tl.arange(0, HALF // 16)
    head = tl.arange(0, QUERIES * HEADS)
    q_at = q_ptr + (at + head // HEADS) * (2 * HEADS * HALF) + (head % HEADS) * HALF
    q_even = tl.load(q_at[:, None] + j[None, :])
    q_odd = tl.load(q_at[:, None] + HEADS * HALF + j[None, :])
    weight = tl.load(weight_ptr + at * HEADS + head) * 128.0
    for i in tl.range(0, TILES, num_stages=STAGES):
        tile = tl.program_id(0) * TILES + i
        place = tile * TILE + tl.arange(0, TILE)
        if RESTRICTED:
            slot = place // GROUP
            block = tl.load(blocks_ptr + first * num_blocks + slot, slot < num_blocks, other=-1)
            key = block * GROUP + place % GROUP
            known = (block >= 0) & (key < furthest)
        else:
            key = place
            known = key < furthest
        page = tl.load(table_ptr + tl.program_id(1) * table_width + key // PAGE, known, other=0)
        start = pages_ptr + page.to(tl.int64) * (PAGE * (HALF + HALF // 16))
        row = key % PAGE
        pairs = tl.load((start + row * HALF)[:, None] + j[None, :], known[:, None], other=0)
        scale_at = (start + PAGE * HALF + row * (HALF // 16))[:, None] + g[None, :]
        scales = tl.load(scale_at, known[:, None], other=0)
        even, odd = widen_keys(pairs, scales, TILE, HALF, ASM)
        dots = product(even, tl.trans(q_even), tl.zeros([TILE, QUERIES * HEADS], tl.float32), ASM)
        dots = product(odd, tl.trans(q_odd), dots, ASM)
        terms = tl.reshape(tl.maximum(dots, 0.0) * weight[None, :], [TILE, QUERIES, HEADS])
        seen = known[:, None] & (key[:, None] < visible[None, :])
        total = tl.where(seen, tl.sum(terms, 2), -float("inf"))
        best = tl.max(tl.reshape(total, [TILE // GROUP, GROUP, QUERIES]), 1)
        groups = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
        newest = groups[:, None] == ((visible - 1) // GROUP)[None, :]
        best = tl.where(newest, float("inf"), best)
        store_tile(
            total, best, out_ptr, maxima_ptr, width, first, tile, QUERIES, TILE, GROUP, MAXIMA
        )


@triton.jit
def ordered_bits(x):
    """Float32 -> int64 in 0 ... 2^32 - 1, ordered like the numbers (-0 equals 0)."""
    x = tl.where(x == 0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(bits < 0, -(bits + 1), bits + 2147483648)


@triton.jit
def locate(counts_ptr, wanted):
    """The highest bin with at least `wanted` values in it or above; how many it must still give."""
    bins = tl.arange(0, 256)
    counts = tl.load(counts_ptr + bins)
    above = tl.sum(counts) - tl.cumsum(counts, 0)
    found = tl.max(tl.where(above + counts >= wanted, bins, 0), 0)
    return found, wanted - tl.sum(tl.where(bins > found, counts, 0))


@triton.jit
def narrow(counts_ptr, present_ptr, state_ptr, k, PASS: tl.constexpr):
    """Grid (rows,): after histogram PASS, fix the next digit of the last selected value.

    state: [rows, 4, 2] int64, after each pass the digits so far and how many values with these may
    still be selected.
    """
    row = tl.program_id(0).to(tl.int64)
    state = state_ptr + row * 8
    if PASS == 0:
        prefix = row * 0
        wanted = tl.minimum(tl.load(present_ptr + row), k)
    else:
        prefix = tl.load(state + 2 * PASS - 2)
        wanted = tl.load(state + 2 * PASS - 1).to(tl.int32)
    digit, wanted = locate(counts_ptr + row * 1024 + PASS * 256, wanted)
    tl.store(state + 2 * PASS, prefix * 256 + digit)
    tl.store(state + 2 * PASS + 1, wanted.to(tl.int64))


@triton.jit
def load_ordered(scores_ptr, row, width, size, CHUNK: tl.constexpr):
    """This program's chunk of a row, with its places and which of them exist."""
    place = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    valid = place < size
    value = tl.load(scores_ptr + row * width + place, valid, other=-float("inf"))
    valid = valid & (value != -float("inf"))
    return ordered_bits(value), place, valid


@triton.jit
def count_digits(
    scores_ptr, sizes_ptr, counts_ptr, state_ptr, width, PASS: tl.constexpr, CHUNK: tl.constexpr
):
    """Grid (chunks, rows): histogram of digit PASS among values that match the digits before it.

    scores: [rows, width] float32; sizes: [rows] int32, places that exist; counts: [rows, 4, 256]
    int32, zero at first.
    """
    row = tl.program_id(1).to(tl.int64)
    size = tl.load(sizes_ptr + row)
    if tl.program_id(0) * CHUNK >= size:
        return
    bits, _, valid = load_ordered(scores_ptr, row, width, size, CHUNK)
    if PASS > 0:
        prefix = tl.load(state_ptr + row * 8 + 2 * PASS - 2)
        valid = valid & ((bits >> (32 - 8 * PASS)) == prefix)
    digit = (bits >> (24 - 8 * PASS)) & 255
    counts = tl.histogram(tl.where(valid, digit, 0).to(tl.int32), 256, mask=valid)
    at = counts_ptr + row * 1024 + PASS * 256 + tl.arange(0, 256)
    tl.atomic_add(at, counts, counts > 0)


@triton.jit
def count_selected(scores_ptr, sizes_ptr, state_ptr, chunks_ptr, width, CHUNK: tl.constexpr):
    """chunks[row, chunk] = (values above the threshold, values equal to it)."""
    row = tl.program_id(1).to(tl.int64)
    size = tl.load(sizes_ptr + row)
    above = size * 0
    equal = size * 0
    if tl.program_id(0) * CHUNK < size:
        bits, _, valid = load_ordered(scores_ptr, row, width, size, CHUNK)
        last = tl.load(state_ptr + row * 8 + 6)
        above = tl.sum((valid & (bits > last)).to(tl.int32), 0)
        equal = tl.sum((valid & (bits == last)).to(tl.int32), 0)
    at = chunks_ptr + (row * tl.num_programs(0) + tl.program_id(0)) * 2
    tl.store(at, above)
    tl.store(at + 1, equal)


@triton.jit
def emit(
    scores_ptr,
    sizes_ptr,
    state_ptr,
    chunks_ptr,
    blocks_ptr,
    out_ptr,
    width,
    k,
    num_blocks,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    GROUP: tl.constexpr,
    RESTRICTED: tl.constexpr,
):
    """Write selected entries ascending into out [rows, k] int32, which holds -1.

    Ties of the threshold go to the lowest places. RESTRICTED maps places through blocks [rows,
    num_blocks] to entries.
    """
    row = tl.program_id(1).to(tl.int64)
    size = tl.load(sizes_ptr + row)
    if tl.program_id(0) * CHUNK >= size:
        return
    bits, place, valid = load_ordered(scores_ptr, row, width, size, CHUNK)
    last = tl.load(state_ptr + row * 8 + 6)
    ties = tl.load(state_ptr + row * 8 + 7).to(tl.int32)
    chunk = tl.arange(0, CHUNKS)
    at = chunks_ptr + (row * tl.num_programs(0) + chunk) * 2
    mine = chunk < tl.program_id(0)
    above_before = tl.sum(tl.load(at, mine, other=0), 0)
    equal_before = tl.sum(tl.load(at + 1, mine, other=0), 0)
    above = valid & (bits > last)
    equal = (valid & (bits == last)).to(tl.int32)
    tie = equal_before + tl.cumsum(equal, 0)
    taken = above | ((equal > 0) & (tie <= ties))
    start = above_before + tl.minimum(equal_before, ties)
    rank = start + tl.cumsum(taken.to(tl.int32), 0) - 1
    entry = place
    if RESTRICTED:
        block = tl.load(blocks_ptr + row * num_blocks + place // GROUP, taken, other=0)
        entry = block * GROUP + place % GROUP
    tl.store(out_ptr + row * k + rank, entry, taken)


@triton.jit
def select_row(
    scores_ptr,
    sizes_ptr,
    present_ptr,
    blocks_ptr,
    out_ptr,
    width,
    k,
    num_blocks,
    WIDTH: tl.constexpr,
    SELECTED: tl.constexpr,
    GROUP: tl.constexpr,
    RESTRICTED: tl.constexpr,
):
    """Grid (rows,): what `count_digits` ... `emit` do, on a row of at most WIDTH places.

    SELECTED is k rounded up to a power of two; all of out [rows, k] is written.
    """
    row = tl.program_id(0).to(tl.int64)
    size = tl.load(sizes_ptr + row)
    place = tl.arange(0, WIDTH)
    value = tl.load(scores_ptr + row * width + place, place < size, other=-float("inf"))
    valid = value != -float("inf")
    value = tl.where(value == 0, 0.0, value)
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    bits = tl.where(valid, bits, 0)
    wanted = tl.minimum(tl.load(present_ptr + row), k)
    last = wanted.to(tl.uint32) * 0
    bit = wanted * 0 + 31
    while bit >= 0:  # bit by bit, the largest value that `wanted` values reach
        candidate = last | (wanted * 0 + 1 << bit).to(tl.uint32, bitcast=True)
        reach = tl.sum((bits >= candidate).to(tl.int32), 0)
        last = tl.where(reach >= wanted, candidate, last)
        bit = tl.where(reach == wanted, -1, bit - 1)  # no more to find: these are the ones
    live = valid & (bits == last)
    wanted -= tl.sum((bits > last).to(tl.int32), 0)
    tie = tl.cumsum(live.to(tl.int32), 0)
    taken = (bits > last) | (live & (tie <= wanted))
    rank = tl.cumsum(taken.to(tl.int32), 0) - 1
    entry = place
    if RESTRICTED:
        block = tl.load(blocks_ptr + row * num_blocks + place // GROUP, taken, other=0)
        entry = block * GROUP + place % GROUP
    tl.store(out_ptr + row * k + rank, entry, taken)
    rest = tl.arange(0, SELECTED)
    absent = (rest >= tl.sum(taken.to(tl.int32), 0)) & (rest < k)
    tl.store(out_ptr + row * k + rest, tl.full([SELECTED], -1, tl.int32), absent)
