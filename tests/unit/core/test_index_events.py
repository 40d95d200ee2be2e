"""Numbers of index news."""

import random

from diptych.core.ids import BlockHash, Incarnation
from diptych.core.index_events import IndexBatch, IndexLog

NAMES = [BlockHash(bytes([i]) * 16) for i in range(4)]


def test_batches_are_numbered_from_one_and_empty_ones_are_none() -> None:
    log = IndexLog(Incarnation(7))
    heard: list[IndexBatch] = []
    stop = log.listen(heard.append)
    log.publish(True, "memory", NAMES[:2])
    log.publish(False, "memory", [])
    log.publish(False, "disk", NAMES[2:])
    assert [(b.seq, b.came, b.tier, b.names) for b in heard] == [
        (1, True, "memory", tuple(NAMES[:2])),
        (2, False, "disk", tuple(NAMES[2:])),
    ]
    stop()
    log.publish(True, "memory", NAMES)
    assert len(heard) == 2
    assert log.last_seq == 3


def test_f16_what_was_missed_is_replayed_or_known_to_be_forgotten() -> None:
    log = IndexLog(Incarnation(7), keep=5)
    for _ in range(12):
        log.publish(True, "memory", NAMES)
    for seq in range(15):
        missed = log.since(seq)
        if 7 <= seq <= 12:
            assert missed is not None
            assert [batch.seq for batch in missed] == list(range(seq + 1, 13))
        else:
            assert missed is None


def test_a_follower_that_replays_its_gaps_agrees_in_the_end() -> None:
    draw = random.Random(16)
    log = IndexLog(Incarnation(7), keep=50)
    truth: set[BlockHash] = set()
    known: set[BlockHash] = set()
    seq = 0
    for _ in range(300):
        name = BlockHash(bytes([draw.randrange(20)]) * 16)
        came = draw.random() < 0.5
        (truth.add if came else truth.discard)(name)
        log.publish(came, "memory", [name])
        if draw.random() < 0.2:
            missed = log.since(seq)
            assert missed is not None
            for batch in missed:
                for one in batch.names:
                    (known.add if batch.came else known.discard)(one)
                seq = batch.seq
            assert known == truth
