"""Scores, selection and candidate blocks against the golden cases."""

import pytest
import torch

from diptych.model.indexer import NOTHING, candidates, score, select, select_all
from diptych.model.numerics import NUMERICS
from diptych.model.quant import MXFP4_G32

TOPK = 16


def case_scores(g, name, tile):
    """Scores of a golden case, its keys cut into tiles of `tile` entries, zero-padded."""
    plain = name.removesuffix("_mxfp4")
    rounded = plain != name
    query = g[f"{name}.q_dequant"] if rounded else g[f"{name}.q"]
    keys = g[f"{name}.k_dequant"] if rounded else g[f"{name}.k"]
    keys = torch.nn.functional.pad(keys, (0, 0, 0, -len(keys) % tile))
    tiles = keys.view(-1, 1, tile, keys.shape[1]).expand(-1, len(query), -1, -1)
    return score(query, g[f"{plain}.weights"], tiles, g[f"{plain}.visible_len"])


@pytest.mark.parametrize("tile", [8, 64])
@pytest.mark.parametrize("name", ["ratio1", "ratio2", "ratio1_mxfp4", "ratio2_mxfp4"])
def test_scores_and_selection_match_golden(golden, name, tile):
    g = golden("ops/indexer")
    scores = case_scores(g, name, tile)
    n = g[f"{name}.scores"].shape[1]
    torch.testing.assert_close(scores[:, :n], g[f"{name}.scores"], rtol=1e-5, atol=1e-5)
    assert torch.equal(select(scores, TOPK).int(), g[f"{name}.topk"])


@pytest.mark.parametrize("name", ["ratio1", "ratio2"])
def test_queries_and_keys_round_as_golden(golden, name):
    g = golden("ops/indexer")
    assert torch.equal(MXFP4_G32.round(g[f"{name}.k"]), g[f"{name}_mxfp4.k_dequant"])
    query = NUMERICS["cache"].index_query(g[f"{name}.q"])
    assert torch.equal(query, g[f"{name}_mxfp4.q_dequant"])


@pytest.mark.parametrize(("size", "count"), [(8, 4), (4, 6)])
@pytest.mark.parametrize("name", ["ratio1", "ratio1_mxfp4"])
def test_candidate_blocks_bound_a_second_selection_as_golden(golden, name, size, count):
    g = golden("ops/indexer")
    scores = case_scores(g, name, 64)
    n = g[f"{name}.scores"].shape[1]
    prefix = f"{name}.cand_bs{size}_top{count}"
    visible = g["ratio1.visible_len"]
    mask = candidates(scores, visible, size, count) & (
        torch.arange(scores.shape[1]) < visible.unsqueeze(1)
    )
    assert torch.equal(mask[:, :n].to(torch.uint8), g[f"{prefix}.mask"])
    assert not mask[:, n:].any()
    level2 = {**g, "ratio1.weights": g[f"{prefix}.level2_weights"]}
    second = case_scores(level2, name, 64).masked_fill(~mask, -torch.inf)
    assert torch.equal(select(second, TOPK).int(), g[f"{prefix}.level2_topk"])


def test_ties_go_to_the_lower_entry():
    assert select(torch.tensor([[1.0, 2.0, 1.0, 1.0, 2.0]]), 3).tolist() == [[0, 1, 4]]


def test_fewer_entries_than_asked_for_leave_absent_ones_at_the_end():
    scores = torch.tensor([[0.5, -1.0, -torch.inf], [-torch.inf] * 3])
    assert select(scores, 4).tolist() == [[0, 1, NOTHING, NOTHING], [NOTHING] * 4]
    assert select_all(torch.tensor([2, 0]), 4).tolist() == select(scores, 4).tolist()


def test_selection_is_ascending_visible_and_complete(generator):
    visible = torch.arange(40)
    scores = torch.randn(40, 48, generator=generator)
    scores = scores.masked_fill(torch.arange(48) >= visible.unsqueeze(1), -torch.inf)
    for row, seen in zip(select(scores, 16).tolist(), visible.tolist(), strict=True):
        real = [e for e in row if e != NOTHING]
        assert real == sorted(set(real))
        assert len(real) == min(16, seen)
        assert all(e < seen for e in real)
        if seen <= 16:
            assert real == list(range(seen))
