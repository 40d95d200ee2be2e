"""Time index scores and selection; no mark in DESIGN 7, so torch's top-k stands beside them."""

from collections.abc import Iterator
from functools import partial

import torch

from diptych.kernels.indexer import cases, launch
from diptych.kernels.measure import Ceilings, graph_us, line


def run(ceilings: Ceilings) -> Iterator[str]:
    for case in cases.RELEASED:
        q, weights, pages, table, visible = case.make("cuda")
        tables = table.expand(case.rows // case.queries, -1).contiguous()
        score = partial(
            launch.index_scores, q, weights, pages, tables, visible,
            case.width, case.page, case.group, case.queries, maxima=True,
        )  # fmt: skip
        scores, _ = score()
        size = case.entries * 68.0 * (case.rows // case.queries) + case.rows * case.entries * 4.0
        flops = 2.0 * case.rows * case.entries * case.heads * case.dim
        repeats = 8 if case.rows < 64 else 1
        us = graph_us([score] * repeats)
        yield line(f"indexer scores {case}", us, size, flops, ceilings)
        us = graph_us([partial(launch.select, scores, visible, visible, case.k)] * repeats)
        read = case.rows * case.entries * 4.0
        yield line(f"indexer select {case}", us, read, 0.0, ceilings)
        k = min(case.k, case.entries)
        us = graph_us([partial(torch.topk, scores, k, dim=1)] * repeats)
        yield line(f"  torch.topk (unordered), {case}", us, read, 0.0, ceilings)
