"""Time index scores and selection; no mark in DESIGN 7, so torch's top-k stands beside them."""

from collections.abc import Iterator
from functools import partial

import torch

from diptych.kernels.indexer import cases, launch, reference
from diptych.kernels.measure import Ceilings, error, graph_us, line


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
        if case.rows == 1:
            keys = reference.decode_pages(pages, table, case.width, case.page).double()
            want = reference.index_scores(q.double(), weights, keys, visible)[:, : case.entries]
            top = launch.select(scores, visible, visible, case.k)
            same = torch.equal(top, reference.select(scores, case.k))
            verdict = "equals" if same else "DIFFERS FROM"
            off = error(scores[:, : case.entries], want)
            yield f"  error {off:.1e}; selection {verdict} a stable sort"
        us = graph_us([partial(launch.select, scores, visible, visible, case.k)] * repeats)
        read = case.rows * case.entries * 4.0
        yield line(f"indexer select {case}", us, read, 0.0, ceilings)
        k = min(case.k, case.entries)
        us = graph_us([partial(torch.topk, scores, k, dim=1)] * repeats)
        yield line(f"  torch.topk (unordered), {case}", us, read, 0.0, ceilings)
