"""Measure kernels on a GPU: the two ceilings, graph replays, and one line of the table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this GPU does in this run: copy (bytes read plus written) and bf16, FP8 products."""

    copy_gbs: float
    bf16_tflops: float
    fp8_tflops: float


def median_us(region: Call, repeats: int = 15) -> float:
    """Median of device-event timings of `region`, in microseconds."""
    times: list[float] = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        region()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) * 1e3)
    return sorted(times)[repeats // 2]


def graph_us(calls: Sequence[Call]) -> float:
    """Median time of one of `calls`, replayed one after the other as a graph.

    Calls take turns over inputs that differ, so that none finds its weights in the cache.
    """
    torch.cuda.synchronize()  # inputs were made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        graph.replay()
        return median_us(graph.replay) / len(calls)


def measure_ceilings() -> Ceilings:
    """Warm the GPU up, then measure on random data."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(400):
        torch.mm(a, b)
    flops = 2 * 8192**3
    bf16 = flops / median_us(lambda: torch.mm(a, b)) / 1e6
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    fp8_us = median_us(
        lambda: torch._scaled_mm(a8, b8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    )
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * 2**31 / median_us(lambda: target.copy_(source)) / 1e3
    return Ceilings(copy, bf16, flops / fp8_us / 1e6)


def error(got: Tensor, want: Tensor) -> float:
    """Relative error of the whole tensor; not a number if an element was not written."""
    return float((got.double() - want.double()).norm() / want.double().norm())


def line(
    name: str,
    us: float,
    num_bytes: float,
    flops: float,
    ceilings: Ceilings,
    mark_us: float | None = None,
) -> str:
    """One row: time, bandwidth and its share of copy, rate and its share of bf16, mark / time."""
    gbs, tflops = num_bytes / us / 1e3, flops / us / 1e6
    mark = f"{mark_us / us:6.2f}" if mark_us else "     -"
    return (
        f"{name:44s} {us:10.1f} {gbs:8.0f} {gbs / ceilings.copy_gbs:6.2f} "
        f"{tflops:8.0f} {tflops / ceilings.bf16_tflops:6.2f} {mark}"
    )


HEADER = (
    f"{'':44s} {'us':>10s} {'GB/s':>8s} {'/copy':>6s} {'TFLOP/s':>8s} {'/bf16':>6s} {'/mark':>6s}"
)
