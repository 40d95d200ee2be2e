"""Time dense FP8 projections; torch's FP8 product with one scale a tensor stands beside them."""

from collections.abc import Iterator
from functools import partial

import torch

from diptych.kernels.fp8_linear import cases, launch, packing, reference
from diptych.kernels.measure import Ceilings, error, graph_us, line


def run(ceilings: Ceilings) -> Iterator[str]:
    one = torch.ones((), device="cuda")
    for case in cases.RELEASED:
        x, weight, scale = case.make("cuda")
        copies = max(2, min(16, 2**28 // weight.numel()))  # more than the cache holds
        packed = [packing.pack(weight.clone(), scale) for _ in range(copies)]
        us = graph_us([partial(launch.fp8_linear, x, p) for p in packed])
        size = case.n * case.k + 2.0 * case.rows * (case.n + case.k)
        flops = 2.0 * case.rows * case.n * case.k
        yield line(f"fp8_linear {case}", us, size, flops, ceilings)
        out = torch.full((case.rows, case.n), torch.nan, dtype=torch.bfloat16, device="cuda")
        launch.fp8_linear(x, packed[0], out=out)
        want = reference.fp8_linear(x, weight, scale, dtype=torch.float64)
        yield f"  error {error(out, want):.1e}"
        if case.rows >= 16:
            x8 = x.to(torch.float8_e4m3fn)
            dense = partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
            us = graph_us([partial(dense, x8, p.data.t()) for p in packed])
            yield line(f"  torch._scaled_mm, one scale, {case}", us, size, flops, ceilings)
