"""Time routed experts: our kernels, the plain one, torch's grouped product on bf16 weights."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from diptych.kernels.measure import Ceilings, error, graph_us, line
from diptych.kernels.moe import cases, launch, packing, plain, reference

# DESIGN 7: share of copy, or TFLOP/s above 1,024 tokens
MARK_COPY = {1: 0.70, 16: 1.0, 64: 1.0, 256: 1.0, 1024: 0.90}
MARK_TFLOPS = {16384: 800.0}


def routes(case: cases.Case, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs that route differently; few tokens never share an expert between calls."""
    result = []
    for salt in range(count):
        x = case.activations("cuda")
        ids, weights = case.route("cuda")
        shift = salt * case.slots if case.tokens == 1 else salt * 7
        if case.tokens == 1:
            ids = torch.arange(case.slots, device="cuda", dtype=torch.int32)[None]
        result.append((x, (ids + shift).int() % case.experts, weights))
    return result


def active_bytes(case: cases.Case, ids: Tensor) -> float:
    """Packed weights and scales of the experts that `ids` touch, once."""
    return float(ids.unique().numel()) * 3 * case.width * case.hidden * (1 / 2 + 1 / 32)


def grouped_bf16(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The same function on bfloat16 weights [experts, in, out], by torch._grouped_mm."""
    order = ids.flatten().argsort(stable=True)
    experts = torch.arange(gate_up.shape[0], device=x.device)
    ends = torch.searchsorted(ids.flatten().sort().values, experts, right=True).int()
    both = torch._grouped_mm(x[order // ids.shape[1]], gate_up, offs=ends)
    gate, up = both.chunk(2, dim=1)
    u = torch.nn.functional.silu(gate.clamp(max=10)) * up.clamp(-10, 10)
    rows = torch._grouped_mm(u * weights.flatten()[order, None].bfloat16(), down, offs=ends)
    return torch.zeros_like(x).index_add_(0, order // ids.shape[1], rows)


def run(ceilings: Ceilings) -> Iterator[str]:
    yield from run_packed(ceilings)
    torch.cuda.empty_cache()
    yield from run_grouped(ceilings)


def run_packed(ceilings: Ceilings) -> Iterator[str]:
    raw = cases.RELEASED[0].weights("cuda")
    packed = packing.pack(raw)
    for case in cases.RELEASED:
        count = {1: 32, 4: 16}.get(case.tokens, 4 if case.tokens <= 256 else 1)
        inputs = routes(case, count)
        size = sum(active_bytes(case, ids) for _, ids, _ in inputs) / count
        flops = case.tokens * case.slots * 6.0 * case.hidden * case.width
        mark = None
        if case.tokens in MARK_COPY:
            mark = size / (MARK_COPY[case.tokens] * ceilings.copy_gbs) / 1e3
        elif case.tokens in MARK_TFLOPS:
            mark = flops / MARK_TFLOPS[case.tokens] / 1e6
        us = graph_us([partial(launch.routed_experts, *i, packed) for i in inputs])
        yield line(f"moe {case}", us, size, flops, ceilings, mark)
        if case.tokens in (1, 64):
            x, ids, weights = inputs[0]
            out = torch.full_like(x, torch.nan)
            launch.routed_experts(x, ids, weights, packed, out=out)
            want = reference.expert_pairs(x, ids, weights, raw).sum(1)
            exact = reference.expert_pairs(x, ids, weights, raw, rounded=False).sum(1)
            yield (
                f"  error {error(out, want):.1e}; against unquantised activations "
                f"{error(out, exact):.4f}, the reference {error(want, exact):.4f}"
            )
        settings = launch.choose(case.tokens * case.slots, packed)
        if settings.native:
            settings = launch.settings_for(case.tokens * case.slots, packed.count)
            triton = partial(launch.routed_experts, experts=packed, settings=settings)
            us = graph_us([partial(triton, *i) for i in inputs])
            yield line(f"  triton instead of CUDA C++, {case}", us, size, flops, ceilings, mark)
        if case.tokens in (1, 64, 1024):
            us = graph_us([partial(plain.expert_pairs, *i, raw) for i in inputs])
            yield line(f"  plain triton, {case}", us, size, flops, ceilings, mark)


def run_grouped(ceilings: Ceilings) -> Iterator[str]:
    case = cases.RELEASED[0]
    e, h, w = case.experts, case.hidden, case.width
    gate_up = torch.empty(e, 2 * w, h, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)
    down = torch.empty(e, h, w, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)
    for case in cases.RELEASED:
        if case.tokens not in (64, 1024, 16384):
            continue
        x, ids, weights = routes(case, 1)[0]
        call = partial(grouped_bf16, x, ids, weights, gate_up.transpose(1, 2), down.transpose(1, 2))
        us = graph_us([call])
        size = active_bytes(case, ids) * 2 / (1 / 2 + 1 / 32)
        flops = case.tokens * case.slots * 6.0 * case.hidden * case.width
        yield line(f"  torch._grouped_mm in bf16, {case}", us, size, flops, ceilings)
