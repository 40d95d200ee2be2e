"""Choose tile shapes and launch the kernels of `kernel.py` in their order."""

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from diptych.kernels.activations import launch_overlap, quantise
from diptych.kernels.moe import kernel
from diptych.kernels.moe.packing import Packed, PackedExperts

SMALL_PAIRS = 2048  # up to here `sort_pairs` counts for itself


@dataclass(frozen=True, slots=True)
class Shape:
    """Tile of one product: ROWS of weights times COLUMNS of activations."""

    rows: int
    columns: int
    warps: int
    stages: int
    prefetch: int = 0  # L2 prefetch depth, in steps of 128 inputs; needs `direct` and overlap


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run one call. `asm` is False under the interpreter, which has no inline assembly."""

    gate_up: Shape
    down: Shape
    direct: bool = False
    overlap: bool = True
    asm: bool = True


def settings_for(num_pairs: int, num_experts: int) -> Settings:
    """Tile shapes by the number of tokens an expert sees; measured on one H200."""
    if num_pairs <= 8:
        shape = Shape(128, 16, 4, 4)
        return Settings(shape, shape, direct=True)
    load = num_pairs / num_experts
    if load <= 8:
        shape = Shape(128, 16, 4, 3)
    elif load <= 24:
        shape = Shape(128, 32, 4, 3)
    elif load <= 96:
        shape = Shape(256, 64, 4, 3)
    else:
        shape = Shape(128, 256, 8, 4)
    return Settings(shape, shape)


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
    bound = pairs if settings.direct else min(pairs, count) + pairs // columns
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    tiles = torch.empty(1 + bound, 4, dtype=torch.int32, device=ids.device)
    if settings.direct:
        return Routing(ids, order, tiles, bound)
    counted = pairs > SMALL_PAIRS
    block = 4096 if counted else max(16, triton.next_power_of_2(pairs))
    counts = order
    if counted:
        counts = torch.empty(count, dtype=torch.int32, device=ids.device)
        kernel.count_pairs[(count,)](ids, counts, pairs, first, BLOCK=block, num_warps=8)
    kernel.sort_pairs[(count,)](
        ids,
        counts,
        order,
        tiles,
        pairs,
        first,
        count,
        EXPERTS=triton.next_power_of_2(count),
        COLUMNS=columns,
        BLOCK=block,
        COUNTED=counted,
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
        STAGES=shape.stages,
        SWIGLU=swiglu,
        DIRECT=settings.direct,
        ASM=settings.asm,
        PREFETCHED=shape.prefetch,
        num_warps=shape.warps,
        **launch_overlap(settings.overlap),
    )


def expert_pairs(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: PackedExperts,
    settings: Settings | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One output row a pair: [tokens, slots, hidden] bf16; rows of experts not held stay unwritten.

    x: [tokens, hidden] bf16; ids: [tokens, slots] int32; weights: [tokens, slots] float32.
    """
    settings = settings or settings_for(ids.numel(), experts.count)
    if settings.gate_up.columns != settings.down.columns:
        raise ValueError("both products share one list of column tiles")
    tokens, slots = ids.shape
    if out is None:
        out = torch.empty(tokens, slots, x.shape[1], dtype=torch.bfloat16, device=x.device)
    routing = sort(ids, experts.first, experts.count, settings.gate_up.columns, settings)
    u = torch.empty(tokens * slots, experts.down.depth, dtype=torch.bfloat16, device=x.device)
    multiply(
        quantise(x, settings.overlap, leads=settings.direct),
        experts.gate_up,
        weights,
        routing,
        u,
        settings.gate_up,
        settings,
        experts,
        swiglu=True,
    )
    multiply(
        quantise(u, settings.overlap),
        experts.down,
        weights,
        routing,
        out,
        settings.down,
        settings,
        experts,
        swiglu=False,
    )
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
    """pairs: [tokens, slots, hidden] bf16 (+ shared [tokens, hidden]) -> [tokens, hidden] bf16."""
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
    settings = settings or settings_for(ids.numel(), experts.count)
    pairs = expert_pairs(x, ids, weights, experts, settings)
    return sum_slots(pairs, ids, shared, experts.first, experts.count, settings, out)
