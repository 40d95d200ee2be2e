from dataclasses import replace

import numpy as np
import torch

from diptych.engine.batch import Batch, groups, ring
from diptych.engine.requests import Request
from diptych.engine.scheduler import Piece
from diptych.model.ngrams import Hashing

from .conftest import make_generation

NO_FLOORS = np.zeros(2, np.int64)


def piece(tokens: list[int], start: int, count: int, slot: int = 1) -> Piece:
    blocks = tuple(range(10 * slot, 10 * slot + 4))
    generation = make_generation(f"s{slot}", prompt=tuple(tokens))
    return Piece.of(
        Request(generation, False, False, 30, tokens, blocks=blocks, slot=slot), start, count
    )


def hashing(look_back: int) -> Hashing:
    empty = torch.zeros(1, look_back, dtype=torch.int64)
    return Hashing(torch.arange(100) + 1000, 7, empty, empty, empty)


def test_rows_of_sequences_follow_each_other_and_are_padded() -> None:
    batch = Batch([piece([5, 6, 7, 8], 1, 3, slot=1), piece([9, 10], 1, 1, slot=2)], grain=8)
    rows = batch.rows(None)
    assert batch.num_rows == 4 and batch.padded == 32
    assert rows.token_ids.tolist() == [6, 7, 8, 10] + [0] * 28
    assert rows.positions.tolist() == [1, 2, 3, 1] + [0] * 28
    assert batch.last_rows.tolist() == [2, 3]


def test_grams_look_back_over_chunks_up_to_the_start_of_the_sequence() -> None:
    batch = Batch([piece([5, 6, 7, 8], 2, 2), piece([9, 10], 0, 2)], grain=8)
    assert batch.rows(hashing(3)).grams[:5].tolist() == [
        [1007, 1006, 1005],
        [1008, 1007, 1006],
        [1009, 7, 7],
        [1010, 1009, 7],
        [1000, 7, 7],  # padding
    ]


def test_entries_are_written_where_a_group_ends() -> None:
    batch = Batch([piece([1] * 20, 6, 5, slot=1), piece([1] * 20, 15, 1, slot=2)], grain=8)
    at = groups(batch, ratio=2, per_page=4)
    assert at.rows.tolist() == [1, 3, 5]  # positions 7, 9 and 15
    assert at.pages.tolist() == [10, 11, 21]
    assert at.records.tolist() == [3, 0, 3]


def test_a_ring_is_read_where_older_positions_lie_and_written_by_the_newest() -> None:
    batch = Batch([piece([1] * 20, 9, 7, slot=3)], grain=8)
    at = ring(batch, size=5, reach=2, floors=NO_FLOORS)
    assert at.read_slots.tolist() == [[3]] and at.read_records.tolist() == [[2, 3]]
    first, second = at.source[0].tolist(), at.source[1].tolist()
    assert first == [33, 34, 0]  # two records from the ring, then the row itself
    assert second == [34, 0, 1]
    assert at.write_rows.tolist() == [2, 3, 4, 5, 6]
    assert at.write_records.tolist() == [1, 2, 3, 4, 0]


def test_positions_before_the_start_are_absent() -> None:
    at = ring(Batch([piece([1] * 20, 0, 2)], grain=8), size=5, reach=2, floors=NO_FLOORS)
    assert at.present[:2].tolist() == [[False, False, True], [False, True, True]]
    assert at.source[0].tolist() == [32, 32, 0]
    assert len(at.read_slots) == 0


def floored(start: int, count: int, floor: int, slot: int = 1) -> Piece:
    return replace(piece([1] * 20, start, count, slot), floor=floor)


def test_rows_below_their_floor_stop_at_the_border() -> None:
    pieces = [floored(4, 6, 8, 1), floored(0, 3, 9, 2), floored(10, 1, 4, 3)]
    batch = Batch(pieces, grain=8, compact=True)
    behind = batch.behind
    assert batch.kept is not None and batch.kept.tolist() == [4, 5, 9] + [-1] * 29
    assert behind.num_rows == 3 and behind.padded == 32
    assert behind.positions[:3].tolist() == [8, 9, 10]
    assert behind.owners[:4].tolist() == [0, 0, 2, 3]  # the last one is padding's
    assert behind.last_rows[[0, 2]].tolist() == [1, 2]
    rows = batch.rows(None)
    assert rows.kept is not None and rows.kept.tolist() == batch.kept.tolist()


def test_nothing_is_cut_where_no_row_is_below_its_floor_or_all_are_computed() -> None:
    pieces = [floored(8, 3, 8), floored(5, 1, 0, slot=2)]
    for batch in (Batch(pieces, 8, compact=True), Batch([floored(0, 9, 5)], 8)):
        assert batch.behind is batch and batch.kept is None and batch.rows(None).kept is None


def test_a_batch_may_have_no_row_behind_the_border() -> None:
    batch = Batch([floored(0, 5, 5)], grain=8, compact=True)
    assert batch.behind.padded == 0
    assert batch.kept is not None and batch.kept.tolist() == []


def test_entries_of_replayed_rows_are_not_written_again() -> None:
    batch = Batch([replace(piece([1] * 20, 4, 6), replayed=4)], grain=8)
    assert groups(batch, ratio=2, per_page=4).rows.tolist() == [5]
    assert groups(batch, ratio=1, per_page=8).rows.tolist() == [4, 5]


def test_a_ring_holds_nothing_below_a_floor() -> None:
    batch = Batch([piece([1] * 20, 9, 4, slot=3)], grain=8)
    at = ring(batch, size=8, reach=4, floors=np.array([8, 0]))
    assert at.present[:2].tolist() == [[False] * 3 + [True] * 2, [False] * 2 + [True] * 3]
    assert at.source[0].tolist() == [32, 32, 32, 36, 0]
    inside = ring(batch, size=8, reach=4, floors=np.array([11, 0]))
    assert len(inside.read_slots) == 0
    assert not inside.present[:2].any() and inside.present[2].tolist() == [False] * 4 + [True]
    assert inside.write_rows.tolist() == [2, 3] and inside.write_records.tolist() == [3, 4]


def test_a_compressors_inputs_are_read_within_their_group() -> None:
    even, odd = piece([1] * 20, 8, 2, slot=1), piece([1] * 20, 9, 2, slot=2)
    at = ring(Batch([even, odd], grain=8), 4, 1, np.zeros(3, np.int64), ratio=2)
    assert at.present[:4, 0].tolist() == [False, True, True, False]
    assert at.read_slots.tolist() == [[2]] and at.read_records.tolist() == [[0]]
    cut = ring(Batch([odd], grain=8), 4, 1, np.array([9, 0]), ratio=2)
    assert not cut.present[:2].any() and len(cut.read_slots) == 0
