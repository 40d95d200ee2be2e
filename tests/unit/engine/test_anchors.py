import pytest

from diptych.core.ids import BlockHash
from diptych.engine.anchors import AnchorPool

A, B, C = (BlockHash(letter * 16) for letter in (b"a", b"b", b"c"))


def made(pool: AnchorPool, block: BlockHash) -> int:
    page = pool.take()
    assert page is not None and pool.attach(block, page)
    return page


def test_without_pages_there_are_no_anchors() -> None:
    assert AnchorPool(0).take() is None


def test_a_page_belongs_to_a_block_from_when_it_is_written() -> None:
    pool = AnchorPool(2)
    page = pool.take()
    assert page is not None and A not in pool
    pool.check([page], [])
    pool.attach(A, page)
    assert A in pool and pool.num_used == 1
    pool.check([], [])


def test_the_least_recently_used_anchor_makes_room() -> None:
    pool = AnchorPool(2)
    first, second = made(pool, A), made(pool, B)
    assert pool.begin_load(A) == first
    pool.end_load(first)
    assert pool.take() == second
    assert A in pool and B not in pool


def test_an_anchor_that_is_being_loaded_stays() -> None:
    pool = AnchorPool(1)
    page = made(pool, A)
    pool.begin_load(A)
    pool.begin_load(A)
    pool.check([], [page, page])
    pool.forget(A)
    pool.end_load(page)
    assert pool.take() is None and A in pool
    pool.end_load(page)
    assert pool.take() == page and A not in pool


def test_a_second_anchor_of_a_block_is_not_kept() -> None:
    pool = AnchorPool(2)
    first = made(pool, A)
    page = pool.take()
    assert page is not None and not pool.attach(A, page)
    assert pool.begin_load(A) == first
    pool.check([], [first])


def test_a_block_that_is_gone_takes_its_anchor_with_it() -> None:
    pool = AnchorPool(1)
    made(pool, A)
    pool.forget(B)
    pool.forget(A)
    assert A not in pool and pool.take() is not None


def test_check_finds_a_page_that_is_lost_or_a_load_that_nobody_ends() -> None:
    pool = AnchorPool(2)
    page = made(pool, A)
    pool.take()
    with pytest.raises(AssertionError, match="lost"):
        pool.check([], [])
    pool.begin_load(A)
    with pytest.raises(AssertionError, match="loads differ"):
        pool.check([1 - page], [])
