"""The log of a prefix cache against what the cache holds."""

import random

from diptych.core.ids import BlockHash
from diptych.engine.block_log import BlockLog
from diptych.engine.block_pool import BlockPool
from diptych.engine.prefix_cache import Retention


def name(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "little"))


def follow(log: BlockLog, seq: int | None, known: set[BlockHash], limit: int) -> int:
    """A reader: apply what there is, return where it stands."""
    while (changes := log.since(seq, limit)) is not None:
        if changes.is_snapshot:
            known.clear()
            known.update(changes.names)
        for block, is_stored in zip(changes.names, changes.stored, strict=False):
            (known.add if is_stored else known.discard)(block)
        seq = changes.next_seq
    assert seq is not None
    return seq


def test_a_reader_knows_what_a_pool_has_cached_however_late_it_reads() -> None:
    chance = random.Random("block log")
    pool = BlockPool(8)
    pool.cache.log = log = BlockLog(capacity=6)
    quick, slow = set[BlockHash](), set[BlockHash]()
    quick_seq, slow_seq = follow(log, None, quick, 2), follow(log, None, slow, 100)
    for number in range(200):
        pages = pool.alloc(chance.randint(1, 3))
        assert pages is not None
        for page in pages:
            pool.cache.publish(page, name(number * 8 + page), Retention.SESSION, full_window=True)
        pool.free(pages)
        quick_seq = follow(log, quick_seq, quick, 2)
        if number % 20 == 0:
            slow_seq = follow(log, slow_seq, slow, 100)  # more has happened than the log keeps
            assert slow == quick
        there = {n for i in range(number * 8 + 16) if pool.cache.find(n := name(i)) is not None}
        assert quick == there


def test_a_block_that_is_there_already_is_no_news() -> None:
    pool = BlockPool(2)
    first, second = pool.alloc(2) or ()
    pool.cache.publish(first, name(1), Retention.SESSION, full_window=True)
    pool.cache.publish(second, name(1), Retention.SESSION, full_window=True)
    changes = pool.cache.log.since(0, 10)
    assert changes is not None
    assert changes.names == (name(1),)


def test_a_number_that_was_never_given_leads_to_everything() -> None:
    log = BlockLog()
    log.stored(name(1))
    assert log.since(1, 10) is None
    changes = log.since(2, 10)
    assert changes is not None
    assert (changes.is_snapshot, changes.names, changes.next_seq) == (True, (name(1),), 1)
