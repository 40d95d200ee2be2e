import random

import pytest

from diptych.engine.block_pool import PADDING_PAGE, BlockPool


def test_pages_come_back_in_the_order_in_which_they_were_freed() -> None:
    pool = BlockPool(4)
    assert pool.alloc(3) == (1, 2, 3)
    pool.free((3, 1))
    assert pool.alloc(3) == (4, 3, 1)


def test_an_allocation_gets_all_its_pages_or_none() -> None:
    pool = BlockPool(4)
    assert pool.alloc(3) is not None
    assert pool.alloc(2) is None
    assert pool.num_free == 1


def test_freeing_a_page_twice_is_caught() -> None:
    pool = BlockPool(4)
    pages = pool.alloc(2)
    assert pages is not None
    pool.free(pages)
    with pytest.raises(AssertionError, match="not taken"):
        pool.free(pages)


def test_check_finds_a_page_with_two_owners_and_one_without() -> None:
    pool = BlockPool(4)
    pages = pool.alloc(2)
    assert pages is not None
    pool.check(pages)
    with pytest.raises(AssertionError, match="two owners"):
        pool.check([*pages, pages[0]])
    with pytest.raises(AssertionError, match="differ"):
        pool.check(pages[:1])


def test_random_traffic_loses_no_page_and_never_hands_out_the_padding(rng: random.Random) -> None:
    pool = BlockPool(37)
    owned: list[tuple[int, ...]] = []
    for _ in range(5000):
        if owned and rng.random() < 0.5:
            pool.free(owned.pop(rng.randrange(len(owned))))
        else:
            want = rng.randrange(1, 9)
            before = pool.num_free
            pages = pool.alloc(want)
            assert (pages is None) == (want > before)
            if pages is not None:
                assert len(pages) == want and PADDING_PAGE not in pages
                owned.append(pages)
        pool.check([page for pages in owned for page in pages])
