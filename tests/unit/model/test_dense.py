"""The in-memory implementation of `Memory`: what comes back is what was stored, in its place."""

import pytest
import torch

from diptych.model.dense import DenseMemory, rows_of
from diptych.model.layers import PADDING
from diptych.model.numerics import NUMERICS
from diptych.model.records import Records

OWNERS = torch.tensor([0, 0, 1, 0, 1, -1])
POSITIONS = torch.tensor([0, 1, 0, 2, 1, 0])


@pytest.fixture(params=["exact", "cache"])
def memory(model, request):
    m = model("tiny-text", "exact")
    memory = DenseMemory(m.spec, NUMERICS[request.param], 2, grain=8)
    memory.begin(OWNERS, POSITIONS)
    memory.records = Records.of(m.spec, NUMERICS[request.param])
    return memory


def test_a_window_holds_a_sequences_own_past_oldest_first(memory, generator):
    key = torch.randn(6, 64, generator=generator)
    stored = memory.records.window.round(key)
    keys, present = memory.window(0, key)
    assert keys.shape == (6, 16, 64)
    assert present.sum(1).tolist() == [1, 2, 1, 3, 2, 0]
    assert torch.equal(keys[3, -3:], stored[[0, 1, 3]])
    assert torch.equal(keys[4, -2:], stored[[2, 4]])
    assert not keys[~present].any()


def test_later_forwards_see_earlier_ones(memory, generator):
    key = torch.randn(6, 64, generator=generator)
    memory.window(0, key)
    memory.begin(torch.tensor([1, 0, 0]), torch.tensor([2, 3, 4]))
    later = torch.randn(3, 64, generator=generator)
    keys, present = memory.window(0, later)
    stored = memory.records.window.round(torch.cat((key, later)))
    assert present.sum(1).tolist() == [3, 4, 5]
    assert torch.equal(keys[0, -3:], stored[[2, 4, 6]])
    assert torch.equal(keys[2, -5:], stored[[0, 1, 3, 7, 8]])


def test_the_predecessor_of_a_groups_first_token_is_zero(memory, generator):
    value, score = torch.randn(2, 6, 64, generator=generator)
    before_value, before_score = memory.previous(2, value, score)
    assert torch.equal(before_value[[1, 4]], value[[0, 2]])
    assert torch.equal(before_score[[1, 4]], score[[0, 2]])
    assert not before_value[[0, 2, 3, 5]].any()


def test_nothing_below_a_floor_is_in_a_window(model, generator):
    m = model("tiny-text", "exact")
    memory = DenseMemory(m.spec, m.numerics, 2, floors=[2, 0], encoder_floors=[1, 1])
    memory.begin(OWNERS, POSITIONS)
    key = torch.randn(6, 64, generator=generator)
    border = m.spec.decoder_start
    for layer, count in ((border - 1, [0, 1, 0, 2, 1, 0]), (border, [0, 0, 1, 1, 2, 0])):
        keys, present = memory.window(layer, key)
        assert present.sum(1).tolist() == count
        assert not keys[~present].any()
        assert torch.equal(keys[3, -1], key[3])


def test_a_narrowed_memory_knows_the_kept_rows_and_stores_no_others(model, generator):
    m = model("tiny-text", "exact")
    whole = DenseMemory(m.spec, m.numerics, 2, grain=8)
    whole.begin(OWNERS, POSITIONS)
    layer = m.spec.decoder_start
    entry = torch.randn(6, 64, generator=generator)
    whole.append(layer, entry, entry[:, :32])
    memory = whole.narrow(torch.tensor([3, 4, PADDING]))
    key = torch.randn(3, 64, generator=generator)
    keys, present = memory.window(layer, key)
    assert torch.equal(keys[:2, -1], key[:2]) and present[:2, -1].all() and not keys[2].any()
    assert not keys[:, :-1].any()  # rows that are not kept left zeros
    assert torch.equal(memory.entries(layer, torch.tensor([[2], [1], [0]]))[:2, 0], entry[[3, 4]])
    (tile,) = memory.index_tiles(layer)
    assert torch.equal(tile[0, :3], entry[[0, 1, 3], :32]) and not tile[2].any()
    whole.begin(torch.tensor([0, 0]), torch.tensor([3, 4]))  # a forward that keeps no row
    whole.begin(torch.tensor([0, 1]), torch.tensor([5, 2]))
    later = torch.randn(2, 64, generator=generator)
    keys, _ = whole.window(layer, later)
    assert torch.equal(keys[0, -4], key[0]) and torch.equal(keys[1, -2], key[1])
    assert torch.equal(keys[:, -1], later)


def test_entries_and_tiles_hold_whole_groups_only(memory, generator):
    entry = torch.randn(6, 64, generator=generator)
    index_key = torch.randn(6, 32, generator=generator)
    memory.append(2, entry, index_key)
    selected = torch.tensor([[0, -1, 1]]).expand(6, -1)
    got = memory.entries(2, selected)
    stored = memory.records.entry.round(entry)
    assert torch.equal(got[0, 0], stored[1])  # positions 0 and 1 of sequence 0
    assert torch.equal(got[2, 0], stored[4])
    assert not got[:, 1:].any()
    assert not got[5].any()
    (tile,) = memory.index_tiles(2)
    assert tile.shape == (6, 4, 32)
    assert torch.equal(tile[3, 0], memory.records.index_key.round(index_key)[1])
    assert not tile[:, 1:].any()


def test_tiles_reach_as_far_as_the_longest_sequence(model):
    m = model("tiny-text", "exact")
    for length, ratio_two, ratio_one in ((1, 1, 1), (8, 1, 1), (9, 2, 2), (17, 3, 3)):
        memory = DenseMemory(m.spec, m.numerics, 1, grain=8)
        memory.begin(torch.zeros(length, dtype=torch.int64), torch.arange(length))
        for layer, count in ((2, ratio_two), (5, ratio_one)):
            memory.append(layer, torch.zeros(length, 64), torch.zeros(length, 32))
            assert len(list(memory.index_tiles(layer))) == count


def test_rows_of_several_sequences_are_padded_to_whole_groups(model):
    hashing = model("tiny-text", "exact").weights.hashing
    rows, owners = rows_of(hashing, [[5, 6, 7], [8] * 40, [9]], [1, 30, 1])
    assert len(owners) == 32
    assert owners.tolist() == [0] * 2 + [1] * 10 + [-1] * 20
    assert rows.token_ids[:2].tolist() == [6, 7]
    assert rows.positions[:3].tolist() == [1, 2, 30]
    assert rows.positions[12:].tolist() == [0] * 20
    assert torch.equal(rows.grams[0, :2], hashing.token_map[[6, 5]])
    assert rows.grams[0, 2:].tolist() == [hashing.pad] * 2


def test_kept_rows_are_those_above_their_sequences_floor_padded_to_whole_groups(model):
    hashing = model("tiny-text", "exact").weights.hashing
    rows, owners = rows_of(hashing, [[5] * 10, [8] * 40], [4, 0], floors=[8, 39])
    assert rows.kept.tolist() == [4, 5, 45] + [PADDING] * 29
    assert owners[rows.kept[:3]].tolist() == [0, 0, 1]
    rows, _ = rows_of(hashing, [[5] * 10], [0], floors=[10])
    assert rows.kept.tolist() == []
    assert rows_of(hashing, [[5] * 10], [0])[0].kept is None
