"""The disk tier: what is kept, for how long, for whom, and what makes way for what."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.items import Item
from diptych.kvcache_store.policy import Rank
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.retention import DAY_S, Retention
from diptych.kvcache_store.volume import Folder, VolumeFull
from diptych.testing.chains import anchor_of, is_right, items_of, origin_of
from diptych.testing.clock import FakeClock
from diptych.testing.volumes import PoorVolume
from diptych.transport.frames import PartKind

MakeDisk = Callable[..., DiskTier]
ALICE, BOB = origin_of("alice"), origin_of("bob")
CAPACITY = 1 << 20  # of small tiers: 16 segments of 64 KiB


def read(disk: DiskTier, items: list[Item]) -> list[Item]:
    """What comes back of some items of one kind; every byte of it must be right."""
    found = disk.read(items[0].origin, items[0].kind, [item.name for item in items])
    assert all(is_right(item) for item in found)
    return found


def sweep(disk: DiskTier) -> None:
    for _ in disk.clean():
        pass
    assert_balanced(disk)


def assert_balanced(disk: DiskTier) -> None:
    """capacity = live + dead + pinned + reserved + free, and files are what the books say."""
    balance = disk.balance
    volume = disk.segments.volume
    files = sum(volume.size(name) for name in volume.names())
    assert balance.live + balance.dead + balance.pinned == files
    assert min(balance.live, balance.dead, balance.pinned, balance.reserved) >= 0
    assert balance.free == disk.free_bytes >= 0
    in_files = sum(segment.live_bytes for segment in disk.segments.all())
    assert in_files == disk.segments.ledger.total == balance.live + balance.pinned


def test_what_was_written_is_read_with_all_that_is_known_of_it(make_disk: MakeDisk) -> None:
    disk = make_disk()
    blocks = items_of(ALICE, range(40))
    anchor = anchor_of(blocks[39], 3000)
    disk.write([*blocks, anchor], Retention.CHAT)
    assert read(disk, blocks) == blocks
    assert read(disk, [anchor]) == [anchor]
    assert read(disk, blocks[20:30]) == blocks[20:30]
    assert_balanced(disk)


def test_reading_ends_at_the_first_part_that_is_not_there(make_disk: MakeDisk) -> None:
    disk = make_disk()
    blocks = items_of(ALICE, range(10))
    disk.write([*blocks[:4], *blocks[5:]], Retention.CHAT)
    assert read(disk, blocks) == blocks[:4]
    assert read(disk, blocks[4:]) == []


def test_a_second_life_finds_everything_again(make_disk: MakeDisk) -> None:
    first = make_disk()
    blocks = items_of(ALICE, range(100))
    first.write(blocks, Retention.AGENT)
    first.close()
    second = make_disk()
    assert read(second, blocks) == blocks
    assert_balanced(second)


def test_what_is_there_already_is_not_written_again(make_disk: MakeDisk) -> None:
    disk = make_disk()
    blocks = items_of(ALICE, range(10))
    disk.write(blocks, Retention.CHAT)
    before = disk.written_bytes.total()
    disk.write([*blocks, *blocks], Retention.CHAT)
    assert disk.written_bytes.total() == before


def test_k7_two_tenants_with_the_same_text_share_nothing(make_disk: MakeDisk) -> None:
    disk = make_disk()
    alices, bobs = items_of(ALICE, range(10)), items_of(BOB, range(10))
    disk.write(alices, Retention.CHAT)
    assert read(disk, bobs) == []
    # Not even with the other's names: the scope is compared, not only hashed.
    names = [item.name for item in alices]
    assert disk.read(BOB, PartKind.BLOCK, names) == []
    assert disk.read(origin_of("alice", "other model"), PartKind.BLOCK, names) == []


def test_expiry_deletes_whole_segments(make_disk: MakeDisk, clock: FakeClock) -> None:
    disk = make_disk()
    agents, chats = items_of(ALICE, range(10)), items_of(BOB, range(10))
    disk.write(agents, Retention.AGENT)
    disk.write(chats, Retention.CHAT)
    clock.advance(3 * DAY_S)
    sweep(disk)
    assert disk.find(PartKind.BLOCK, agents[0].name, ALICE)
    clock.advance(1.5 * DAY_S)
    sweep(disk)
    assert not disk.find(PartKind.BLOCK, agents[0].name, ALICE)
    assert disk.find(PartKind.BLOCK, chats[0].name, BOB)
    clock.advance(4 * DAY_S)
    sweep(disk)
    assert disk.segments.num_parts == 0
    assert disk.segments.all() == []
    assert disk.cleaner.counts.violated_bytes.total() == 0


def test_reading_renews_and_asking_does_not(make_disk: MakeDisk, clock: FakeClock) -> None:
    disk = make_disk()
    read_ones, asked = items_of(ALICE, range(10)), items_of(BOB, range(10))
    disk.write(read_ones, Retention.AGENT)
    disk.write(asked, Retention.AGENT)
    clock.advance(3 * DAY_S)
    read(disk, read_ones)
    assert all(disk.find(PartKind.BLOCK, item.name, BOB) for item in asked)
    clock.advance(2 * DAY_S)
    sweep(disk)
    assert read(disk, read_ones) == read_ones  # moved to a later day, byte for byte
    assert read(disk, asked) == []
    assert disk.cleaner.counts.moved_bytes > 0


def test_a_renewal_outlives_the_process(make_disk: MakeDisk, clock: FakeClock) -> None:
    disk = make_disk()
    blocks = items_of(ALICE, range(10))
    disk.write(blocks, Retention.AGENT)
    clock.advance(3 * DAY_S)
    read(disk, blocks)
    disk.sync()  # and no orderly end
    clock.advance(2 * DAY_S)
    again = make_disk()
    assert read(again, blocks) == blocks


def test_a_part_of_two_classes_lives_as_long_as_the_longer_one(
    make_disk: MakeDisk, clock: FakeClock
) -> None:
    disk = make_disk()
    blocks = items_of(ALICE, range(10))
    disk.write(blocks, Retention.AGENT)
    disk.write(blocks, Retention.CHAT)
    clock.advance(7 * DAY_S)
    sweep(disk)
    assert read(disk, blocks) == blocks


def test_k10_probing_all_keys_keeps_nothing_from_being_evicted(
    make_disk: MakeDisk, clock: FakeClock
) -> None:
    disk = make_disk(CAPACITY)
    old = [item for n in range(40) for item in items_of(ALICE, range(100 * n, 100 * n + 15))]
    disk.write(old, Retention.CHAT)
    before = [extent.kept for extent in disk.segments.extents()]
    for number in range(10):
        for item in old:
            disk.find(PartKind.BLOCK, item.name, ALICE)
        assert {e.kept for e in disk.segments.extents()} == set(before)
        clock.advance(11)
        new = items_of(BOB, range(number * 1000, number * 1000 + 60))
        disk.write(new, Retention.CHAT)
        assert read(disk, new) == new
        assert_balanced(disk)


def test_when_short_leaves_go_before_parents_and_the_broken_promise_is_counted(
    make_disk: MakeDisk, clock: FakeClock
) -> None:
    disk = make_disk(CAPACITY)
    chain = items_of(ALICE, range(800))
    disk.write(chain, Retention.CHAT)
    clock.advance(7200)
    assert disk.cleaner.counts.violated_bytes.total() == 0
    disk.write(items_of(BOB, range(300)), Retention.CHAT)
    left = read(disk, chain)
    assert 0 < len(left) < len(chain)
    there = [item for item in chain if disk.find(PartKind.BLOCK, item.name, ALICE)]
    assert there == left  # a prefix: no block without its parent
    violated = disk.cleaner.counts.violated_bytes
    assert violated[Retention.CHAT] >= (len(chain) - len(left)) * 1000
    assert_balanced(disk)


def test_who_is_above_quota_loses_first_and_that_breaks_no_promise(
    make_disk: MakeDisk, clock: FakeClock
) -> None:
    disk = make_disk(CAPACITY, quotas=Quotas(tenant_bytes=300_000))
    bobs = items_of(BOB, range(150))
    disk.write(bobs, Retention.CHAT)
    disk.write(items_of(ALICE, range(700)), Retention.CHAT)  # may exceed while there is room
    assert disk.segments.ledger.of_group(ALICE.group) > 600_000
    clock.advance(60)
    carols = items_of(origin_of("carol"), range(200))
    disk.write(carols, Retention.CHAT)
    assert read(disk, bobs) == bobs
    assert read(disk, carols) == carols
    assert disk.cleaner.counts.evicted_bytes[Rank.OVER_QUOTA] > 0
    assert disk.cleaner.counts.violated_bytes.total() == 0
    assert_balanced(disk)


def test_a_class_above_its_quota_loses_first(make_disk: MakeDisk, clock: FakeClock) -> None:
    disk = make_disk(CAPACITY, quotas=Quotas(class_bytes={Retention.AGENT: 200_000}))
    chats = items_of(BOB, range(400))
    disk.write(items_of(ALICE, range(350)), Retention.AGENT)
    disk.write(chats, Retention.CHAT)
    clock.advance(60)
    disk.write(items_of(ALICE, range(5000, 5200)), Retention.CHAT)
    assert read(disk, chats) == chats
    assert disk.segments.ledger.of_class(Retention.AGENT) < 350_000
    assert_balanced(disk)


def test_pinned_is_never_evicted_and_beyond_its_quota_it_is_chat(
    make_disk: MakeDisk, clock: FakeClock
) -> None:
    quotas = Quotas(class_bytes={Retention.PINNED: 200_000})
    disk = make_disk(CAPACITY, quotas=quotas)
    pinned = items_of(ALICE, range(100))
    disk.write(pinned, Retention.PINNED)
    for number in range(10):
        clock.advance(60)
        disk.write(items_of(BOB, range(number * 1000, number * 1000 + 300)), Retention.CHAT)
        assert_balanced(disk)
    assert read(disk, pinned) == pinned
    assert disk.balance.pinned >= 100_000
    ledger = disk.segments.ledger
    assert quotas.granted(ledger, Retention.PINNED, 50_000) is Retention.PINNED
    assert quotas.granted(ledger, Retention.PINNED, 150_000) is Retention.CHAT


def test_a_chain_that_is_being_written_does_not_evict_its_own_beginning(
    make_disk: MakeDisk,
) -> None:
    disk = make_disk(CAPACITY)
    chain = items_of(ALICE, range(2000))
    with pytest.raises(VolumeFull):
        for start in range(0, len(chain), 8):
            disk.write(chain[start : start + 8], Retention.CHAT)
    assert len(read(disk, chain)) == disk.segments.num_parts > 500


def test_when_nothing_may_go_a_write_is_refused_and_nothing_breaks(make_disk: MakeDisk) -> None:
    disk = make_disk(CAPACITY)
    pinned = items_of(ALICE, range(2000))
    with pytest.raises(VolumeFull):
        disk.write(pinned, Retention.PINNED)
    kept = read(disk, pinned)
    assert len(kept) > 500
    assert_balanced(disk)


def test_a_namespace_that_no_worker_uses_any_more_goes_first(
    make_disk: MakeDisk, clock: FakeClock
) -> None:
    disk = make_disk(CAPACITY)
    other = origin_of("alice", "old weights")
    old, new = items_of(other, range(300)), items_of(ALICE, range(300))
    disk.write(old, Retention.CHAT)
    disk.write(new, Retention.CHAT)
    clock.advance(1.5 * DAY_S)
    sweep(disk)
    assert disk.find(PartKind.BLOCK, old[0].name, other)  # a quiet day alone takes nothing away
    disk.write(items_of(BOB, range(450)), Retention.CHAT)
    assert read(disk, new) == new
    assert len(read(disk, old)) < len(old)
    assert disk.cleaner.counts.violated_bytes.total() == 0


def test_unused_namespaces_can_be_collected_at_once(make_disk: MakeDisk, clock: FakeClock) -> None:
    disk = make_disk()
    other = origin_of("alice", "old weights")
    old, new = items_of(other, range(30)), items_of(ALICE, range(30))
    disk.write(old, Retention.CHAT)
    disk.write(new, Retention.CHAT)
    assert disk.cleaner.collect_foreign() == 0
    clock.advance(1.5 * DAY_S)
    assert read(disk, new) == new
    assert disk.cleaner.collect_foreign() > 30_000
    assert read(disk, old) == []
    assert read(disk, new) == new
    assert_balanced(disk)


def test_sparse_segments_are_compacted_and_every_byte_survives(
    make_disk: MakeDisk, rng: random.Random
) -> None:
    disk = make_disk(CAPACITY)
    chain = items_of(ALICE, range(300))
    disk.write(chain, Retention.CHAT)
    disk.segments.seal_before(10**6)
    size = disk.segments.file_bytes
    extents = disk.segments.extents()
    for extent in rng.sample(extents, int(len(extents) * 0.8)):
        disk.segments.forget(extent, range(len(extent.names)))
    alive = [item for item in chain if disk.find(PartKind.BLOCK, item.name, ALICE)]
    sweep(disk)
    assert disk.segments.file_bytes < size / 2
    for item in alive:
        assert read(disk, [item]) == [item]


def test_deleting_a_tenant_leaves_the_others(make_disk: MakeDisk) -> None:
    disk = make_disk()
    alices, bobs = items_of(ALICE, range(50)), items_of(BOB, range(50))
    disk.write(alices, Retention.CHAT)
    disk.write(bobs, Retention.AGENT)
    segments, parts, size = disk.delete(ALICE.group)
    assert (segments, parts) == (1, 50)
    assert size > 50_000
    assert read(disk, alices) == []
    assert read(disk, bobs) == bobs
    assert_balanced(disk)
    disk.close()
    assert read(make_disk(), alices) == []


@pytest.mark.parametrize("room", [0, 700, 5_000, 40_000, 200_000])
def test_f15_a_volume_that_is_full_before_its_time_costs_writes_only(
    make_disk: MakeDisk, tmp_path: Path, room: int
) -> None:
    volume = PoorVolume(Folder(tmp_path / "v"))
    disk = make_disk(volume=volume)
    before = items_of(BOB, range(20))
    disk.write(before, Retention.CHAT)
    volume.room_bytes = sum(volume.size(name) for name in volume.names()) + room
    blocks = items_of(ALICE, range(400))
    with pytest.raises(VolumeFull):
        for start in range(0, len(blocks), 8):
            disk.write(blocks[start : start + 8], Retention.CHAT)
    found = read(disk, blocks)
    assert read(disk, before) == before
    volume.room_bytes = None
    disk.write(blocks, Retention.CHAT)
    assert read(disk, blocks) == blocks
    assert len(found) >= room // 1200 - 16
    disk.close()
    again = make_disk()
    assert read(again, blocks) == blocks
    assert_balanced(again)


def test_a_lowered_capacity_is_kept_from_the_next_start_on(make_disk: MakeDisk) -> None:
    first = make_disk(4 << 20)
    blocks = items_of(ALICE, range(3000))
    first.write(blocks, Retention.CHAT)
    first.close()
    second = make_disk(CAPACITY)
    assert second.segments.file_bytes <= CAPACITY
    assert_balanced(second)
    assert len(read(second, blocks)) > 300


def test_encrypted_parts_are_unreadable_without_their_tenants_key(
    make_disk: MakeDisk, tmp_path: Path
) -> None:
    keys = {ALICE.group: b"k" * 32}
    disk = make_disk(key_of=keys.get)
    blocks, plain = items_of(ALICE, range(40)), items_of(BOB, range(4))
    disk.write(blocks, Retention.CHAT)
    disk.write(plain, Retention.CHAT)
    assert read(disk, blocks) == blocks
    assert read(disk, blocks[7:9]) == blocks[7:9]
    disk.close()
    files = b"".join(path.read_bytes() for path in (tmp_path / "v").iterdir())
    assert not any(bytes(item.payload[:64]) in files for item in blocks)
    assert bytes(plain[0].payload) in files
    again = make_disk(key_of=keys.get)
    assert read(again, blocks) == blocks
    again.close()
    del keys[ALICE.group]
    last = make_disk(key_of=keys.get)
    assert read(last, blocks) == []
    assert read(last, plain) == plain
    assert len(last.segments.all()) == 1  # what nobody can read is removed


def test_files_of_strangers_in_the_folder_are_removed(make_disk: MakeDisk, tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "0000000000000001.seg").write_bytes(b"not a segment")
    disk = make_disk()
    assert disk.segments.all() == []
    assert_balanced(disk)


def test_under_steady_pressure_little_of_what_is_written_has_to_be_moved(
    make_disk: MakeDisk, clock: FakeClock, rng: random.Random
) -> None:
    disk = make_disk(4 << 20)
    for number in range(400):
        clock.advance(rng.choice([1, 5, 20]))
        tokens = range(1000 * number, 1000 * number + rng.randint(1, 80))
        disk.write(items_of(ALICE, tokens), Retention.CHAT)
    assert disk.written_bytes.total() > 3 * (4 << 20)
    assert disk.cleaner.counts.moved_bytes < 0.3 * disk.written_bytes.total()
    assert_balanced(disk)
