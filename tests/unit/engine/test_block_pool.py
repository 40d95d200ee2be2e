import random

import pytest

from diptych.core.ids import BlockHash
from diptych.engine.block_pool import PADDING_PAGE, BlockPool
from diptych.engine.prefix_cache import Retention


def name(page: int) -> BlockHash:
    return BlockHash(page.to_bytes(16, "little"))


def take(pool: BlockPool, count: int, *, named: bool = False) -> tuple[int, ...]:
    pages = pool.alloc(count)
    assert pages is not None
    for page in pages if named else ():
        pool.cache.publish(page, name(page), Retention.SESSION, full_window=True)
    return pages


def test_the_padding_page_is_never_handed_out() -> None:
    pages = take(BlockPool(5), 5)
    assert sorted(pages) == [1, 2, 3, 4, 5] and PADDING_PAGE not in pages


def test_too_many_pages_are_refused_whole() -> None:
    pool = BlockPool(3)
    assert pool.alloc(4) is None and pool.num_free == 3
    assert pool.alloc(0) == ()


def test_an_empty_page_comes_back_as_late_as_possible() -> None:
    pool = BlockPool(4)
    first, second = take(pool, 2), take(pool, 1)
    pool.free(second)
    pool.free(first)
    assert pool.alloc(4) == (4, 3, 2, 1)


def test_freeing_a_page_twice_is_caught() -> None:
    pool = BlockPool(4)
    pages = take(pool, 2)
    pool.free(pages)
    with pytest.raises(AssertionError, match="nobody holds"):
        pool.free(pages)


def test_a_shared_page_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    pages = take(pool, 2, named=True)
    pool.share(pages[:1])
    assert (pool.num_sole(pages), pool.num_idle(pages)) == (1, 0)
    pool.free(pages)
    assert pool.num_free == 1 and pool.num_idle(pages) == 1
    pool.free(pages[:1])
    assert pool.num_free == 2 and pool.cache.num_idle == 2


def test_empty_pages_go_before_cached_ones_and_those_tail_first() -> None:
    pool = BlockPool(4)
    pool.free(take(pool, 3, named=True))
    assert pool.alloc(4) == (4, 3, 2, 1)
    assert pool.cache.find(name(1)) is None


def test_a_page_that_is_adopted_is_not_given_up() -> None:
    pool = BlockPool(3)
    pages = take(pool, 3, named=True)
    pool.free(pages)
    pool.share(pages[:1])
    assert pool.alloc(3) is None
    assert pool.alloc(2) == (3, 2)
    assert pool.cache.find(name(1)) is not None


def test_check_finds_a_page_with_other_holders_than_there_are_and_one_that_is_lost() -> None:
    pool = BlockPool(4)
    pages = take(pool, 2)
    pool.check(pages)
    with pytest.raises(AssertionError, match="holders of page 1"):
        pool.check([*pages, pages[0]])
    with pytest.raises(AssertionError, match="holders of page"):
        pool.check(pages[:1])
    pool._empty.pop()
    with pytest.raises(AssertionError, match="idle"):
        pool.check(pages)


def test_random_use_keeps_every_page_in_one_state(rng: random.Random) -> None:
    pool = BlockPool(20)
    held: list[tuple[int, ...]] = []
    for _ in range(3000):
        if held and rng.random() < 0.5:
            pool.free(held.pop(rng.randrange(len(held))))
        elif held and rng.random() < 0.3:
            shared = rng.choice(held)
            held.append(shared[: rng.randrange(len(shared) + 1)])
            for page in held[-1]:
                if pool.cache.find(name(page)) is None:
                    pool.cache.publish(page, name(page), Retention.SESSION, full_window=True)
            pool.share(held[-1])
        elif pages := pool.alloc(rng.randrange(1, 6)):
            held.append(pages)
        pool.check([page for pages in held for page in pages])
    for pages in held:
        pool.free(pages)
    assert pool.num_free == 20
