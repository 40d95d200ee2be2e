"""Indexer: scores, candidate blocks and exact selection against the reference."""

import pytest
import torch
from torch import Tensor

from diptych.kernels.indexer import cases, launch, reference


def score(case: cases.Case, inputs: tuple[Tensor, ...], asm: bool) -> tuple[Tensor, Tensor, Tensor]:
    q, weights, pages, table, visible = inputs
    tables = table.expand(case.rows // case.queries, -1).contiguous()
    scores, best = launch.index_scores(
        q, weights, pages, tables, visible, case.width, case.page, case.group, case.queries,
        maxima=True, asm=asm,
    )  # fmt: skip
    assert best is not None
    keys = reference.decode_pages(pages, table, case.width, case.page)
    rows = [
        reference.index_scores(q[r : r + 1].double(), weights[r : r + 1], keys, visible[r : r + 1])
        for r in range(case.rows)
    ]
    return scores, best, torch.cat(rows)


def check(case: cases.Case, device: str, asm: bool, chunk: int) -> None:
    inputs = case.make(device)
    q, weights, pages, table, visible = inputs
    scores, best, want = score(case, inputs, asm)
    tables = table.expand(case.rows // case.queries, -1).contiguous()
    looped, _ = launch.index_scores(
        q, weights, pages, tables, visible, case.width, case.page, case.group, case.queries,
        asm=asm, tiles=3,
    )  # fmt: skip
    assert torch.equal(looped, scores)
    finite = want > -torch.inf
    assert torch.equal(scores > -torch.inf, finite)
    assert float((scores - want)[finite].norm() / want[finite].norm()) < 1e-6
    assert torch.equal(best, reference.block_maxima(scores, visible, case.group))

    count = (visible + case.group - 1) // case.group
    for one_program in (False, True) if case.width <= launch.ROW else (False,):
        top = launch.select(scores, visible, visible, case.k, chunk=chunk, one_program=one_program)
        assert torch.equal(top, reference.select(scores, case.k))
        blocks = launch.select(
            best, count, count, case.blocks, chunk=chunk, one_program=one_program
        )
        assert torch.equal(blocks, reference.select(best, case.blocks))

    width = case.blocks * case.group
    tables = table.expand(case.rows, -1).contiguous()
    inside, _ = launch.index_scores(
        -q, weights, pages, tables, visible, width, case.page, case.group, blocks=blocks, asm=asm
    )
    sizes = torch.full_like(visible, width)
    present = (inside > -torch.inf).sum(1).int()
    got = launch.select(inside, sizes, present, case.k, blocks, case.group, chunk)
    again, _ = launch.index_scores(
        -q, weights, pages, tables, visible, case.width, case.page, case.group, asm=asm
    )
    assert torch.equal(got, reference.select(reference.restrict(again, blocks, case.group), case.k))


@pytest.mark.parametrize("case", cases.SMALL, ids=str)
def test_kernels_match_the_reference(case: cases.Case) -> None:
    check(case, "cpu", asm=False, chunk=64)


def test_candidate_blocks_are_scored_row_by_row() -> None:
    case = cases.SMALL[2]
    q, weights, pages, table, visible = case.make()
    with pytest.raises(ValueError, match="one row a program"):
        launch.index_scores(
            q, weights, pages, table, visible, 48, case.page, queries=2, blocks=table[None]
        )


@pytest.mark.gpu
@pytest.mark.parametrize("case", [c for c in cases.RELEASED if c.rows < 64], ids=str)
def test_kernels_match_at_released_sizes(case: cases.Case) -> None:
    check(case, "cuda", asm=True, chunk=launch.CHUNK)
