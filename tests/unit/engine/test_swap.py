import pytest

from diptych.engine.swap import SwapCopy, SwapSpace, host_pages


def test_a_sequence_is_taken_in_whole_or_not_at_all() -> None:
    space = SwapSpace(num_blocks=3, num_slots=2)
    assert space.fits(3) and not space.fits(4)
    copy = space.take((7, 9), 5)
    assert copy == SwapCopy((7, 9), 5, (0, 1), 0)
    assert space.fits(1) and not space.fits(2)
    space.check([copy])
    space.free(copy)
    assert space.fits(3)


def test_slots_run_out_as_well() -> None:
    space = SwapSpace(num_blocks=3, num_slots=1)
    space.take((7,), 5)
    assert not space.fits(1)


def test_without_host_pages_nothing_fits() -> None:
    assert not SwapSpace(0, 0).fits(0)


def test_check_finds_host_pages_that_are_lost() -> None:
    space = SwapSpace(num_blocks=3, num_slots=2)
    copy = space.take((7, 9), 5)
    with pytest.raises(AssertionError, match="host block"):
        space.check([])
    with pytest.raises(AssertionError, match="host slot"):
        space.check([SwapCopy(copy.blocks, 5, copy.host_blocks, 1)])


def test_host_memory_is_split_as_the_pools_are() -> None:
    assert host_pages(500, block_bytes=10, slot_bytes=100, num_blocks=50, num_slots=5) == (25, 2)
    assert host_pages(9**9, block_bytes=10, slot_bytes=100, num_blocks=50, num_slots=5) == (50, 5)
    assert host_pages(0, block_bytes=10, slot_bytes=100, num_blocks=50, num_slots=5) == (0, 0)
