"""Choose tile shapes and launch the kernels of `kernel.py` in their order."""

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from diptych.kernels.activations import launch_overlap, quantise
from diptych.kernels.moe import kernel, native
from diptych.kernels.moe.packing import Packed, PackedExperts

SMALL_PAIRS = 2048  # up to here `sort_pairs` counts for itself
SEGMENTS = 8  # of more pairs: each is counted, then sorted, by programs of its own
FEW_PAIRS = 24  # up to here every pair reads its own expert in `product.cu`
MANY = 24  # pairs an expert, from which on the compute-bound product of `product.cu` is faster


@dataclass(frozen=True, slots=True)
class Shape:
    """Tile of one product: ROWS of weights times COLUMNS of activations."""

    rows: int
    columns: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run one call. `asm` is False under the interpreter, which has no inline assembly."""

    gate_up: Shape
    down: Shape
    small: int = 0  # columns of the tiles for an expert's last few places; 0: like the others
    direct: bool = False
    overlap: bool = True
    asm: bool = True
    native: bool = False  # the products of `product.cu`, which need no shapes


def settings_for(num_pairs: int, num_experts: int) -> Settings:
    """Tile shapes by the number of tokens an expert sees; measured on one H200."""
    if num_pairs <= 8:
        shape = Shape(128, 16, 4, 4)
        return Settings(shape, shape, direct=True)
    load = num_pairs / num_experts
    if load <= 0.5:
        shape, small = Shape(128, 16, 4, 4), 0
    elif load <= 8:
        shape, small = Shape(256, 16, 4, 4), 0
    elif load <= 24:
        shape, small = Shape(256, 32, 4, 3), 0
    elif load <= 96:
        shape, small = Shape(256, 64, 4, 3), 16
    else:
        shape, small = Shape(256, 128, 8, 3), 32
    return Settings(shape, shape, small)


def choose(num_pairs: int, experts: PackedExperts) -> Settings:
    """`settings_for`, or the compiled products where they are faster and can be had."""
    settings = settings_for(num_pairs, experts.count)
    few = 0 < num_pairs <= FEW_PAIRS
    if (few or num_pairs > MANY * experts.count) and native.takes(experts):
        return replace(settings, native=True, direct=few)
    return settings


def interpreted(settings: Settings) -> Settings:
    """The same settings for Triton's interpreter."""
    return replace(settings, asm=False, overlap=False)


@dataclass(frozen=True, slots=True)
class Routing:
    """Pairs by expert, cut into tiles; see `kernel.sort_pairs`."""

    ids: Tensor
    order: Tensor
    tiles: Tensor
    bound: int


def sort(ids: Tensor, first: int, count: int, columns: int, settings: Settings) -> Routing:
    """ids: [tokens, slots] int32."""
    pairs = ids.numel()
    small = 0 if settings.native else settings.small or columns
    bound = pairs
    if not settings.direct:
        bound = min(pairs, count) * (2 if 0 < small < columns else 1) + pairs // columns
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(1 + bound, 4, dtype=torch.int32, device=ids.device)
    if settings.direct:
        return Routing(ids, order, tiles, bound)
    counted = pairs > SMALL_PAIRS
    block = 4096 if counted else max(16, triton.next_power_of_2(pairs))
    counts = order
    segments = SEGMENTS if counted else 1
    shape = {"EXPERTS": triton.next_power_of_2(count), "SEGMENTS": segments, "BLOCK": block}
    if counted:
        counts = torch.zeros(segments, shape["EXPERTS"], dtype=torch.int32, device=ids.device)
        kernel.count_pairs[(triton.cdiv(pairs, block),)](ids, counts, pairs, first, count, **shape)
    kernel.sort_pairs[(count, segments)](
        ids,
        counts,
        order,
        tiles,
        pairs,
        first,
        count,
        COLUMNS=columns,
        SMALL=small,
        COUNTED=counted,
        **shape,
        **launch_overlap(settings.overlap, leads=not counted),
    )
    return Routing(ids, order, tiles, bound)


def multiply(
    x: tuple[Tensor, Tensor],
    packed: Packed,
    weights: Tensor,
    routing: Routing,
    out: Tensor,
    shape: Shape,
    settings: Settings,
    experts: PackedExperts,
    swiglu: bool,
) -> None:
    """Launch one grouped product; `out` as in `kernel.expert_product`."""
    n, k = packed.rows, packed.depth
    grid = (triton.cdiv(n, shape.rows) * routing.bound,)
    kernel.expert_product[grid](
        *x,
        packed.data,
        packed.exponents,
        packed.scale,
        weights,
        routing.ids,
        routing.order,
        routing.tiles,
        out,
        experts.limit,
        experts.first,
        experts.count,
        SLOTS=weights.shape[1],
        N=n,
        K=k,
        ROWS=shape.rows,
        COLUMNS=shape.columns,
        SMALL=settings.small or shape.columns,
        STAGES=shape.stages,
        SWIGLU=swiglu,
        DIRECT=settings.direct,
        ASM=settings.asm,
        num_warps=shape.warps,
        **launch_overlap(settings.overlap),
    )


def expert_pairs(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: PackedExperts,
    settings: Settings | None = None,
) -> Tensor:
    """One output row a pair: [tokens, slots, hidden] bf16; rows of experts not held stay unwritten.

    x: [tokens, hidden] bf16; ids: [tokens, slots] int32; weights: [tokens, slots] float32.
    """
    settings = settings or choose(ids.numel(), experts)
    if settings.native:
        return compiled_pairs(x, ids, weights, experts, settings)
    if settings.gate_up.columns != settings.down.columns:
        raise ValueError("both products share one list of column tiles")
    tokens, slots = ids.shape
    routing = sort(ids, experts.first, experts.count, settings.gate_up.columns, settings)
    u = x.new_empty(tokens * slots, experts.down.depth)
    out = x.new_empty(tokens, slots, x.shape[1])

    def run(source: Tensor, packed: Packed, target: Tensor, shape: Shape, leads: bool) -> None:
        rows = quantise(source, settings.overlap, leads)
        swiglu = packed is experts.gate_up
        multiply(rows, packed, weights, routing, target, shape, settings, experts, swiglu)

    run(x, experts.gate_up, u, settings.gate_up, leads=settings.direct)
    run(u, experts.down, out, settings.down, leads=False)
    return out


def compiled_pairs(
    x: Tensor, ids: Tensor, weights: Tensor, experts: PackedExperts, settings: Settings
) -> Tensor:
    """`expert_pairs` on the products of `product.cu`; the same bits."""
    tokens, slots = ids.shape
    u = x.new_empty(tokens * slots, experts.down.depth)
    out = x.new_empty(tokens, slots, x.shape[1])
    if settings.direct:
        native.few(x, experts.gate_up, weights, ids, u, experts)
        native.few(u, experts.down, weights, ids, out, experts)
        return out
    routing = sort(ids, experts.first, experts.count, native.PLACES, settings)
    where = routing.order, routing.tiles
    native.many(native.quantise(x), experts.gate_up, weights, *where, u, experts)
    native.many(native.quantise(u), experts.down, weights, *where, out, experts)
    return out


def sum_slots(
    pairs: Tensor,
    ids: Tensor,
    shared: Tensor | None,
    first: int,
    count: int,
    settings: Settings,
    out: Tensor | None = None,
) -> Tensor:
    """Add slots, and shared [tokens, hidden] if given: [tokens, hidden] bf16.

    pairs: [tokens, slots, hidden] bf16.
    """
    tokens, slots, hidden = pairs.shape
    out = pairs.new_empty(tokens, hidden) if out is None else out
    block = min(1024, triton.next_power_of_2(hidden))
    kernel.sum_slots[(tokens, triton.cdiv(hidden, block))](
        pairs,
        ids,
        pairs if shared is None else shared,
        out,
        first,
        count,
        SLOTS=slots,
        WIDTH=hidden,
        BLOCK=block,
        SHARED=shared is not None,
        COMPILED=settings.asm,
        **launch_overlap(settings.overlap),
    )
    return out


def routed_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: PackedExperts,
    shared: Tensor | None = None,
    settings: Settings | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Sum over slots, plus `shared` [tokens, hidden] bf16: [tokens, hidden] bf16."""
    settings = settings or choose(ids.numel(), experts)
    pairs = expert_pairs(x, ids, weights, experts, settings)
    return sum_slots(pairs, ids, shared, experts.first, experts.count, settings, out)
