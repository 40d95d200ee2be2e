"""The index against a plain model of it, and what it does about gaps, doubles and new lives."""

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.ids import BlockHash, Incarnation
from diptych.engine.block_log import BlockLog
from diptych.router.messages import BlockChanges, BlockTier
from diptych.router.prefix_index import PATIENCE, PREDICTED_S, Missing, PrefixIndex, keys_of

LIFE = Incarnation(1)
MEMBERS = ("a", "b", "c")


def block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(8, "little") + bytes(8))


def blocks(*numbers: int) -> tuple[BlockHash, ...]:
    return tuple(map(block, numbers))


def keys(*numbers: int) -> tuple[int, ...]:
    return keys_of(blocks(*numbers))


def stored(first_seq: int, *numbers: int) -> BlockChanges:
    return BlockChanges(first_seq, blocks(*numbers), (True,) * len(numbers))


def removed(first_seq: int, *numbers: int) -> BlockChanges:
    return BlockChanges(first_seq, blocks(*numbers), (False,) * len(numbers))


def snapshot(next_seq: int, *numbers: int) -> BlockChanges:
    return BlockChanges(next_seq, blocks(*numbers), is_snapshot=True, is_first=True, is_last=True)


changes = st.lists(
    st.tuples(st.sampled_from(MEMBERS), st.booleans(), st.integers(0, 11)), max_size=80
)


@settings(deadline=None)  # a busy machine is no error
@given(changes, st.lists(st.integers(0, 11), max_size=12, unique=True))
def test_the_index_knows_the_first_blocks_that_each_member_holds(
    steps: list[tuple[str, bool, int]], chain: list[int]
) -> None:
    index = PrefixIndex()
    truth: dict[str, set[int]] = {member: set() for member in MEMBERS}
    seqs = dict.fromkeys(MEMBERS, 0)
    for member, is_stored, number in steps:
        change = (stored if is_stored else removed)(seqs[member], number)
        assert index.announce(member, LIFE, change) is None
        seqs[member] += 1
        (truth[member].add if is_stored else truth[member].discard)(number)
    overlap = index.lookup(keys(*chain), 0.0)
    for member, held in truth.items():
        depth = next((i for i, number in enumerate(chain) if number not in held), len(chain))
        assert overlap.device.get(member, 0) == depth
        assert index.num_blocks(member) == len(held)
    assert len(index) == len(set().union(*truth.values()))
    index.forget("a")
    assert "a" not in index.lookup(keys(*chain), 0.0).device
    assert len(index) == len(truth["b"] | truth["c"])


def test_predicted_blocks_count_half_until_they_are_announced_or_too_old() -> None:
    index = PrefixIndex()
    index.announce("a", LIFE, stored(0, 1, 2))
    index.predict("a", keys(1, 2, 3, 4), now_s=10.0)
    chain = keys(1, 2, 3, 4, 5)
    assert index.lookup(chain, 10.0).device == {"a": 3.0}
    index.announce("a", LIFE, stored(2, 3))
    assert index.lookup(chain, 10.0).device == {"a": 3.5}
    assert index.lookup(chain, 10.0 + PREDICTED_S).device == {"a": 3.0}
    index.predict("a", keys(4), now_s=20.0)
    index.predict("a", keys(4), now_s=23.0)  # the older one's end is not the newer one's
    assert index.lookup(chain, 20.0 + PREDICTED_S).device == {"a": 3.5}
    assert index.lookup(chain, 23.0 + PREDICTED_S).device == {"a": 3.0}


def test_nothing_is_predicted_of_who_announces_nothing() -> None:
    """R13: such a worker is known by its load alone."""
    index = PrefixIndex()
    index.predict("a", keys(1), now_s=0.0)
    assert index.lookup(keys(1), 0.0).device == {}
    assert index.holders() == []


def test_what_lies_in_a_members_host_memory_is_everybodys() -> None:
    index = PrefixIndex()
    host = BlockChanges(0, blocks(1, 2, 3), (True,) * 3, BlockTier.HOST)
    index.announce("w", LIFE, host)
    index.announce("w", LIFE, BlockChanges(0, blocks(9), (True,), BlockTier.DISK))
    index.announce("a", LIFE, stored(0, 1))
    overlap = index.lookup(keys(1, 2, 3, 9), 0.0)
    assert (overlap.device, overlap.shared) == ({"a": 1.0}, 3)
    assert index.holders() == ["a"]


stocks = st.lists(
    st.tuples(
        st.sampled_from(("n1", "n2")),
        st.sampled_from((BlockTier.HOST, BlockTier.DISK)),
        st.booleans(),
        st.integers(0, 11),
    ),
    max_size=80,
)


@settings(deadline=None)  # a busy machine is no error
@given(stocks, st.lists(st.integers(0, 11), max_size=12, unique=True))
def test_the_nodes_of_the_tier_are_one_holder_and_memory_counts_before_disk(
    steps: list[tuple[str, BlockTier, bool, int]], chain: list[int]
) -> None:
    index = PrefixIndex(disk_slots=1 << 10)
    index.announce("a", LIFE, stored(0, *chain[:2]))
    held: dict[tuple[str, BlockTier], set[int]] = {}
    for node, tier, came, number in steps:
        index.stocked(node, tier, blocks(number), came=came)
        numbers = held.setdefault((node, tier), set())
        (numbers.add if came else numbers.discard)(number)

    def expect(*nodes: str) -> None:
        there = [(tier, n) for (node, tier), its in held.items() if node in nodes for n in its]
        memory = {n for tier, n in there if tier is BlockTier.HOST}
        disk = {n for tier, n in there if tier is BlockTier.DISK}
        depth = next((i for i, n in enumerate(chain) if n not in memory | disk), len(chain))
        overlap = index.lookup(keys(*chain), 0.0)
        assert (overlap.shared, overlap.on_disk) == (depth, len(set(chain[:depth]) - memory))
        assert overlap.device == ({"a": float(len(chain[:2]))} if chain else {})
        for tier in (BlockTier.HOST, BlockTier.DISK):
            assert index.num_in(tier) == sum(its is tier for its, _ in there)

    expect("n1", "n2")
    index.forget("n1")
    expect("n2")
    index.forget("n2")
    expect()
    assert index.num_in(BlockTier.DEVICE) == len(index) == len(chain[:2])


def test_r9_a_lost_change_leads_to_one_resync_after_which_the_index_is_right() -> None:
    """20 changes of which number 7 is dropped: asked once, answered from the log, no loop."""
    log, index, asked = BlockLog(), PrefixIndex(), list[Missing]()
    sent = 0
    for number in range(20):
        log.stored(block(number))
        if number == 7:
            sent += 1  # on its way lost
            continue
        batch = log.since(sent, 100)
        assert batch is not None
        change = BlockChanges(batch.first_seq, batch.names, batch.stored)
        sent = batch.next_seq
        if (missing := index.announce("a", LIFE, change)) is not None:
            asked.append(missing)  # the answer takes longer than all that follows
    answer = log.since(asked[0].next_seq, 100)
    assert answer is not None
    assert index.announce("a", LIFE, BlockChanges(7, answer.names, answer.stored)) is None
    assert asked == [Missing(LIFE, 7)]
    assert index.gaps_total == 1
    assert index.lookup(keys(*range(20)), 0.0).device == {"a": 20.0}
    assert index.announce("a", LIFE, stored(20, 20)) is None
    assert index.lookup(keys(*range(21)), 0.0).device == {"a": 21.0}


def test_r9_a_snapshot_continues_at_its_real_number() -> None:
    log, index = BlockLog(capacity=4), PrefixIndex()
    for number in range(10):
        log.stored(block(number))
    assert index.announce("a", LIFE, stored(9, 9)) == Missing(LIFE, 0)
    answer = log.since(0, 100)
    assert answer is not None
    assert answer.is_snapshot  # the log remembers four
    index.announce("a", LIFE, snapshot(answer.first_seq, *range(10)))
    log.removed(block(9))
    following = log.since(answer.next_seq, 100)
    assert following is not None
    assert not following.is_snapshot
    change = BlockChanges(following.first_seq, following.names, following.stored)
    assert index.announce("a", LIFE, change) is None
    assert index.lookup(keys(*range(10)), 0.0).device == {"a": 9.0}
    assert index.gaps_total == 1


def test_f16_changes_that_come_twice_or_late_alter_nothing() -> None:
    index = PrefixIndex()
    index.announce("a", LIFE, stored(0, 1, 2, 3))
    index.announce("a", LIFE, removed(3, 3))
    for late in (stored(0, 1, 2, 3), removed(3, 3), stored(2, 3)):
        assert index.announce("a", LIFE, late) is None
    assert index.lookup(keys(1, 2, 3), 0.0).device == {"a": 2.0}
    assert index.announce("a", LIFE, BlockChanges(2, blocks(3, 3, 4), (True, False, True))) is None
    assert index.num_blocks("a") == 3


def test_f16_another_life_under_the_same_name_has_none_of_the_former_blocks() -> None:
    index = PrefixIndex()
    index.announce("a", LIFE, stored(0, 1, 2))
    index.predict("a", keys(3), 0.0)
    index.announce("a", Incarnation(2), stored(0, 3))
    assert index.lookup(keys(1, 2), 0.0).device == {}
    assert index.lookup(keys(3), 0.0).device == {"a": 1.0}
    assert len(index) == 1


def test_f16_whatever_the_channel_does_the_index_ends_at_the_truth() -> None:
    for seed in range(100):
        _chaos(random.Random(seed))


def _chaos(chance: random.Random) -> None:
    """Batches are dropped, doubled and swapped; what is asked for arrives in the end."""
    log, index, truth = BlockLog(capacity=16), PrefixIndex(), set[int]()
    cursor: int | None = None
    flying: list[BlockChanges] = []

    def announce() -> None:
        nonlocal cursor
        while (batch := log.since(cursor, 3)) is not None:
            cursor = batch.next_seq
            whole = batch.is_snapshot
            flying.append(
                BlockChanges(
                    batch.first_seq,
                    batch.names,
                    batch.stored,
                    BlockTier.DEVICE,
                    whole,
                    whole,
                    whole,
                )
            )

    def hear(change: BlockChanges) -> None:
        nonlocal cursor
        if (missing := index.announce("a", LIFE, change)) is not None:
            cursor = missing.next_seq

    for _ in range(60):
        number = chance.randrange(12)
        if number in truth:
            truth.remove(number)
            log.removed(block(number))
        else:
            truth.add(number)
            log.stored(block(number))
        announce()
        if len(flying) > 1 and chance.random() < 0.2:
            flying.reverse()
        while flying and chance.random() < 0.7:
            change = flying.pop(0)
            if chance.random() > 0.15 or change.is_snapshot:
                hear(change)
            if chance.random() < 0.1:
                hear(change)
    for _ in range(2 * PATIENCE):  # the channel works again
        log.stored(block(99))
        announce()
        while flying:
            hear(flying.pop(0))
    held = {n for n in range(12) if index.lookup(keys(n), 0.0).device}
    assert held == truth


def test_r8_a_million_prompts_leave_the_memory_at_its_cap_and_the_newest_known() -> None:
    index = PrefixIndex(max_blocks=10_000)
    sizes = []
    for batch in range(100):
        numbers = range(batch * 1000, batch * 1000 + 1000)
        index.announce("a", LIFE, stored(batch * 1000, *numbers))
        sizes.append(sys.getsizeof(index._mask_of))
        assert len(index) <= 10_000
    assert sizes[-1] == sizes[15]  # flat since it was full
    assert index.evicted_total == 90_000
    assert index.num_blocks("a") == 10_000
    assert index.lookup(keys(99_999), 0.0).device == {"a": 1.0}
    assert index.lookup(keys(0), 0.0).device == {}


def test_what_is_used_is_forgotten_last() -> None:
    index = PrefixIndex(max_blocks=4)
    index.announce("a", LIFE, stored(0, 1, 2, 3, 4))
    index.predict("a", keys(1), 0.0)
    index.announce("a", LIFE, stored(4, 5))
    assert index.lookup(keys(1), 0.0).device == {"a": 1.0}
    assert index.lookup(keys(2), 0.0).device == {}


@pytest.mark.parametrize("count", [1, 70])
def test_members_come_and_go_and_leave_nothing(count: int) -> None:
    index = PrefixIndex()
    for turn in range(3):
        for number in range(count):
            index.announce(f"m{number}", Incarnation(turn + 1), stored(0, 1, 2, 10 + number))
        assert len(index.lookup(keys(1, 2), 0.0).device) == count
        for number in range(count):
            index.forget(f"m{number}")
        assert len(index) == 0
