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
