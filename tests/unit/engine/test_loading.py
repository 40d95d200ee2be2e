"""What is loaded from the cache tier, and what is computed."""

from dataclasses import replace

import pytest

from diptych.engine.loading import Load, Local, Rates, choose
from diptych.engine.scheduler import Limits
from diptych.engine.tier import Stored

EXACT = Limits(grain=8, max_batch_tokens=64, window=16, replay=True, tiered=True)
LOOSE = replace(EXACT, deterministic=False)
FREE = Rates(row_s=1.0, byte_s=0.0, wait_s=0.0)
BLOCK, ANCHORED, CUT = Stored("disk"), Stored("disk", has_anchor=True), Stored("disk", False, True)


def chosen(
    local: Local, *stored: Stored, limits: Limits = EXACT, rates: Rates = FREE
) -> Load | None:
    return choose(local, stored, limits, rates, block_bytes=1000, anchor_bytes=5000)


def test_nothing_is_loaded_that_is_not_stored() -> None:
    assert chosen(Local(0, 0)) is None
    assert chosen(Local(3, 3), ANCHORED) is None


def test_a_prefix_is_loaded_up_to_its_last_anchor() -> None:
    stored = (BLOCK, ANCHORED, BLOCK, ANCHORED, BLOCK)
    assert chosen(Local(0, 0), *stored) == Load(first=0, blocks=4, has_anchor=True)
    assert chosen(Local(0, 0), BLOCK, BLOCK) is None


def test_blocks_that_are_here_are_not_loaded_again() -> None:
    stored = (BLOCK, BLOCK, ANCHORED)  # the third, fourth and fifth
    assert chosen(Local(3, 1), *stored) == Load(first=3, blocks=5, has_anchor=True)


def test_only_the_anchor_is_loaded_where_all_blocks_are_here() -> None:
    assert chosen(Local(3, 1), ANCHORED) == Load(first=3, blocks=3, has_anchor=True)
    assert chosen(Local(3, 3), ANCHORED) is None


def test_blocks_of_cut_windows_end_what_an_exact_run_takes() -> None:
    stored = (ANCHORED, CUT, ANCHORED)
    assert chosen(Local(0, 0), *stored) == Load(first=0, blocks=1, has_anchor=True)
    assert chosen(Local(0, 0), *stored, limits=LOOSE) == Load(0, 3, has_anchor=True)


def test_without_exactness_windows_may_be_replayed_where_the_anchor_is_far() -> None:
    stored = (ANCHORED, BLOCK, BLOCK, BLOCK)
    assert chosen(Local(0, 0), *stored, limits=LOOSE) == Load(0, 4, has_anchor=False)
    near = (ANCHORED, BLOCK, BLOCK)  # replaying 16 rows is what computing two blocks costs
    assert chosen(Local(0, 0), *near, limits=LOOSE) == Load(0, 1, has_anchor=True)


@pytest.mark.parametrize(
    ("rates", "is_loaded"),
    [
        (Rates(row_s=1e-3, byte_s=1e-6, wait_s=1e-3), True),  # 16 ms of rows, 8 ms of bytes
        (Rates(row_s=1e-3, byte_s=3e-6, wait_s=0.0), False),  # a slow disk
        (Rates(row_s=1e-3, byte_s=0.0, wait_s=20e-3), False),  # one far away
    ],
)
def test_loading_has_to_be_faster_than_computing(rates: Rates, is_loaded: bool) -> None:
    assert (chosen(Local(0, 0), BLOCK, ANCHORED, rates=rates) is not None) is is_loaded


def test_what_is_here_already_is_not_gained_by_loading() -> None:
    rates = Rates(row_s=1e-3, byte_s=1e-6, wait_s=1e-3)  # 8 ms of rows, 7 ms in all
    assert chosen(Local(1, 1), BLOCK, ANCHORED, rates=rates) is not None
    assert chosen(Local(1, 1), BLOCK, ANCHORED, rates=replace_row(rates, 0.8e-3)) is None


def replace_row(rates: Rates, row_s: float) -> Rates:
    return Rates(row_s, rates.byte_s, rates.wait_s)


def test_measurements_move_the_rates() -> None:
    rates = Rates(row_s=1.0, byte_s=1.0, wait_s=0.5)
    rates.computed(rows=10, took_s=20.0)
    assert rates.row_s == pytest.approx(1.2)
    rates.loaded(size_bytes=10, asked_bytes=10, took_s=20.5)
    assert rates.byte_s == pytest.approx(1.2)
    rates.loaded(size_bytes=10, asked_bytes=10, took_s=0.4)
    assert rates.byte_s == pytest.approx(1.2)


def test_a_load_that_brings_nothing_says_how_slow_the_tier_is_and_never_how_fast() -> None:
    rates = Rates(byte_s=1.0, wait_s=0.5)
    rates.loaded(size_bytes=0, asked_bytes=10, took_s=60.5)
    assert rates.byte_s == pytest.approx(2.0)
    rates.loaded(size_bytes=0, asked_bytes=10, took_s=1.5)  # it was gone: quickly said
    assert rates.byte_s == pytest.approx(2.0)


def test_a_tier_that_was_slow_is_tried_again_some_day() -> None:
    stored = (BLOCK, BLOCK, BLOCK, ANCHORED)
    rates = Rates(row_s=1e-3, wait_s=0.0)
    rates.loaded(size_bytes=9000, asked_bytes=9000, took_s=9.0)
    assert chosen(Local(0, 0), *stored, rates=rates) is None
    passes = 0
    while chosen(Local(0, 0), *stored, rates=rates) is None:
        rates.passed_over()
        passes += 1
    assert 20 < passes < 300
