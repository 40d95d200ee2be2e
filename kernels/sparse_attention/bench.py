"""Time sparse attention over cache records."""

from collections.abc import Iterator
from functools import partial

import torch

from diptych.kernels.measure import Ceilings, error, graph_us, line
from diptych.kernels.sparse_attention import cases, launch, reference

MARK_US = {1: 18.0, 32: 31.0, 128: 52.0, 256: 93.0}  # DESIGN 7
MARK_PREFILL = 0.65  # of the bf16 product


def run(ceilings: Ceilings) -> Iterator[str]:
    for case in (*cases.DECODE, *cases.PREFILL):
        decode = case in cases.DECODE
        inputs = [case.make("cuda", salt) for salt in range(4 if decode else 1)]
        us = graph_us([partial(launch.sparse_attention, *i) for i in inputs * 4])
        keys = case.window + case.selected
        size = case.rows * (case.window * 528 + case.selected * 288 + case.heads * case.dim * 4.0)
        flops = 4.0 * case.rows * case.heads * case.dim * keys
        mark = MARK_US.get(case.rows)
        if not decode:
            mark = flops / (MARK_PREFILL * ceilings.bf16_tflops) / 1e6
        yield line(f"sparse_attention {case}", us, size, flops, ceilings, mark)
        if decode:
            out = torch.full_like(inputs[0][0], torch.nan)
            launch.sparse_attention(*inputs[0], out=out)
            want = reference.sparse_attention(*inputs[0], dtype=torch.float64)
            yield f"  error {error(out, want):.1e}"
