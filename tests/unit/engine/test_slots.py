import random

import pytest

from diptych.engine.slots import PADDING_SLOT, SlotPool


def test_slots_run_out_and_come_back_first_in_first_out() -> None:
    pool = SlotPool(2)
    assert (pool.take(), pool.take(), pool.take()) == (1, 2, None)
    pool.free(2)
    pool.free(1)
    assert pool.take() == 2


def test_freeing_a_free_slot_is_caught() -> None:
    with pytest.raises(AssertionError, match="not taken"):
        SlotPool(2).free(1)


def test_random_traffic_loses_no_slot(rng: random.Random) -> None:
    pool = SlotPool(9)
    owned: list[int] = []
    for _ in range(3000):
        if owned and rng.random() < 0.5:
            pool.free(owned.pop(rng.randrange(len(owned))))
        elif (slot := pool.take()) is not None:
            assert slot != PADDING_SLOT
            owned.append(slot)
        else:
            assert len(owned) == 9
        pool.check(owned)
