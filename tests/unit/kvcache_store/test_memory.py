"""The memory tier."""

import random
from dataclasses import replace

from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Item
from diptych.kvcache_store.memory import Held, MemoryTier
from diptych.kvcache_store.retention import DAY_S, Kept, Retention
from diptych.kvcache_store.tenants import Admission
from diptych.testing.chains import anchor_of, items_of, origin_of
from diptych.transport.frames import PartKind

ALICE, BOB = origin_of("alice"), origin_of("bob")
ADMISSION = Admission("alice", ALICE.group, 0)
CHAT = Kept(Retention.CHAT, 20_000)


def framed(items: list[Item]) -> list[Item]:
    """The items as they arrive: views of one piece of bytes."""
    whole = memoryview(b"".join(item.payload for item in items))
    found, at = [], 0
    for item in items:
        end = at + len(item.payload)
        found.append(
            Item(
                item.origin,
                item.kind,
                item.name,
                item.parent,
                item.index,
                item.is_exact,
                item.crc32c,
                whole[at:end],
            )
        )
        at = end
    return found


def names(items: list[Item]) -> list[BlockHash]:
    return [item.name for item in items]


def found(tier: MemoryTier, items: list[Item]) -> list[Item]:
    return [h.item for h in tier.prefix(items[0].origin, items[0].kind, names(items))]


def test_parts_come_back_up_to_the_first_that_is_missing() -> None:
    tier = MemoryTier(10**6)
    chain = items_of(ALICE, range(10))
    tier.put([*chain[:5], *chain[6:], anchor_of(chain[2])], CHAT, ADMISSION)
    assert found(tier, chain) == chain[:5]
    assert found(tier, [anchor_of(chain[2])]) == [anchor_of(chain[2])]
    assert found(tier, items_of(BOB, range(10))) == []
    assert tier.used_bytes == 10_000


def test_the_tail_of_the_longest_unused_chain_goes_first() -> None:
    tier = MemoryTier(20_000)
    old, used = items_of(ALICE, range(10)), items_of(BOB, range(10))
    tier.put(old, CHAT, ADMISSION)
    tier.put(used, CHAT, ADMISSION)
    assert found(tier, old) == old  # now `used` is the one that was not
    tier.put(items_of(ALICE, range(100, 104)), CHAT, ADMISSION)
    assert found(tier, used) == used[:6]
    assert found(tier, old) == old


def test_bytes_that_came_together_count_until_the_last_part_has_gone() -> None:
    tier = MemoryTier(16_000)
    chain = framed(items_of(ALICE, range(8)))
    held = tier.put(chain, CHAT, ADMISSION)
    assert all(one.item.payload.obj is chain[0].payload.obj for one in held)  # not copied
    assert tier.used_bytes == 8000
    assert tier.drop([(PartKind.BLOCK, name) for name in names(chain[1:])]) == 0
    assert tier.used_bytes == 8000
    assert tier.drop([(PartKind.BLOCK, chain[0].name)]) == 8000
    assert tier.used_bytes == 0


def test_a_small_part_of_a_large_piece_is_copied() -> None:
    tier = MemoryTier(16_000)
    chain = framed(items_of(ALICE, range(8)))
    (held,) = tier.put(chain[:1], CHAT, ADMISSION)
    assert tier.used_bytes == 1000
    assert held.item == chain[0]
    assert held.item.payload.obj is not chain[0].payload.obj


def test_parts_that_lie_over_each_other_are_counted_each() -> None:
    tier = MemoryTier(16_000)
    same = items_of(ALICE, range(1))[0]
    aliases = [replace(same, name=BlockHash(bytes([i]) * 16)) for i in range(5)]
    tier.put(aliases, CHAT, ADMISSION)
    assert tier.used_bytes == 5000


def test_what_is_larger_than_the_tier_is_not_held() -> None:
    tier = MemoryTier(500)
    assert tier.put(items_of(ALICE, range(2)), CHAT, ADMISSION) == []
    assert len(tier) == tier.used_bytes == 0


def test_pinned_parts_stay_and_make_others_wait_outside() -> None:
    chain = items_of(ALICE, range(10))
    pinned = set(names(chain))
    tier = MemoryTier(10_000, is_pinned=lambda asked: any(name in pinned for name in asked))
    tier.put(chain, CHAT, ADMISSION)
    assert tier.put(items_of(BOB, range(3)), CHAT, ADMISSION) == []
    assert found(tier, chain) == chain
    pinned.clear()
    assert len(tier.put(items_of(BOB, range(3)), CHAT, ADMISSION)) == 3


def test_evictions_and_changes_are_told() -> None:
    evicted: list[Held] = []
    changes: list[tuple[bool, list[BlockHash]]] = []
    tier = MemoryTier(
        3_000,
        on_evict=evicted.append,
        on_change=lambda came, which: changes.append((came, list(which))),
    )
    chain = items_of(ALICE, range(3))
    tier.put([*chain[:2], anchor_of(chain[1])], CHAT, ADMISSION)
    tier.put([chain[2]], CHAT, ADMISSION)
    assert [held.item.kind for held in evicted] == [PartKind.ANCHOR]
    assert changes[0] == (True, names(chain[:2]))
    assert (True, [chain[2].name]) in changes


def test_what_nothing_is_owed_for_is_forgotten() -> None:
    tier = MemoryTier(10**6)
    tier.put(items_of(ALICE, range(4)), Kept(Retention.AGENT, 20_000), ADMISSION)
    tier.put(items_of(BOB, range(4)), CHAT, ADMISSION)
    assert tier.expire(20_002 * DAY_S) == 0
    assert tier.expire(20_005 * DAY_S) == 4000
    assert found(tier, items_of(BOB, range(4)))


def test_in_random_histories_the_books_are_right_and_the_capacity_holds(
    rng: random.Random,
) -> None:
    tier = MemoryTier(30_000)
    alive: dict[BlockHash, Item] = {}
    for _ in range(1500):
        chain = items_of(rng.choice([ALICE, BOB]), range(rng.randrange(6), 30), size_bytes=700)
        some = chain[rng.randrange(len(chain)) :][: rng.randint(1, 12)]
        act = rng.random()
        if act < 0.6:
            arrived = framed(some) if rng.random() < 0.7 else some
            for held in tier.put(arrived, CHAT, ADMISSION):
                alive[held.item.name] = held.item
        elif act < 0.8:
            tier.drop([(PartKind.BLOCK, name) for name in names(some)])
        else:
            assert found(tier, some) == some[: len(found(tier, some))]
        held_names = set(tier.blocks())
        lumps = {
            id(held.lump): held.lump
            for name in held_names
            for origin in (ALICE, BOB)
            if (held := tier.find(PartKind.BLOCK, name, origin)) is not None
        }
        assert tier.used_bytes == sum(lump.size_bytes for lump in lumps.values()) <= 30_000
        assert sum(lump.num_parts for lump in lumps.values()) == len(tier) == len(held_names)
