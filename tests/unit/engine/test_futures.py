import numpy as np

from diptych.engine.futures import NO_TOKEN, TokenFutures


def test_the_next_step_reads_what_a_step_sampled_for_its_slots() -> None:
    futures = TokenFutures(num_slots=3)
    futures.write(step=5, slot=1, token=11)
    futures.write(step=5, slot=3, token=13)
    assert futures.read(5, np.array([3, 1])).tolist() == [13, 11]


def test_a_token_of_another_step_is_never_read_as_ones_own() -> None:
    futures = TokenFutures(num_slots=2)
    assert futures.read(0, np.array([1, 2])).tolist() == [NO_TOKEN] * 2
    futures.write(step=0, slot=1, token=11)  # for an owner that leaves the slot
    futures.write(step=1, slot=2, token=12)
    assert futures.read(1, np.array([1, 2])).tolist() == [NO_TOKEN, 12]
