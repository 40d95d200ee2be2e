"""F14, K4, K15: whatever happens to the files, no wrong byte is ever served."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.format import SEGMENT_HEAD_BYTES, extent_head_bytes
from diptych.kvcache_store.items import MAX_PARTS, Item
from diptych.kvcache_store.retention import Retention
from diptych.testing.chains import anchor_of, is_right, items_of, origin_of
from diptych.transport.frames import PartKind

MakeDisk = Callable[..., DiskTier]
ALICE = origin_of("alice")
SIZE = 1000
FIRST_PAYLOAD = 512 + extent_head_bytes(MAX_PARTS)  # behind the segment's and the extent's head


@pytest.fixture
def chain() -> list[Item]:
    return items_of(ALICE, range(160), size_bytes=SIZE)


def fill(make_disk: MakeDisk, chain: list[Item], *, is_sealed: bool) -> DiskTier:
    disk = make_disk()
    disk.write(chain, Retention.CHAT)
    disk.sync()
    if is_sealed:
        disk.segments.seal_before(10**6)
    return disk


def segment_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "v").glob("*.seg")
    return path


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def served(disk: DiskTier, chain: list[Item]) -> list[Item]:
    """What a patient reader gets: all that can be read from any place of the chain on."""
    found: list[Item] = []
    names = [item.name for item in chain]
    at = 0
    while at < len(names):
        items = disk.read(ALICE, chain[0].kind, names[at:])
        assert all(is_right(item) for item in items)
        found += items
        at += len(items) + 1
    return found


def test_f14_a_flipped_bit_costs_its_block_and_no_other(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path, rng: random.Random
) -> None:
    disk = fill(make_disk, chain, is_sealed=True)
    path = segment_file(tmp_path)
    at = FIRST_PAYLOAD + 5 * SIZE + rng.randrange(SIZE)
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1 << rng.randrange(8)]))
    names = [item.name for item in chain]
    assert disk.read(ALICE, PartKind.BLOCK, names) == chain[:5]
    assert disk.reader.counts.corrupt == 1
    assert not disk.find(PartKind.BLOCK, names[5], ALICE)
    assert disk.read(ALICE, PartKind.BLOCK, names[6:]) == chain[6:]
    disk.write([chain[5]], Retention.CHAT)  # computed again
    assert disk.read(ALICE, PartKind.BLOCK, names) == chain


def test_f14_swapped_blocks_are_both_refused(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    disk = fill(make_disk, chain, is_sealed=True)
    path = segment_file(tmp_path)
    overwrite(path, FIRST_PAYLOAD + 2 * SIZE, bytes(chain[3].payload))
    overwrite(path, FIRST_PAYLOAD + 3 * SIZE, bytes(chain[2].payload))
    assert served(disk, chain) == chain[:2] + chain[4:]
    assert disk.reader.counts.corrupt == 2


def test_f14_a_zero_page_costs_what_lay_in_it(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    disk = fill(make_disk, chain, is_sealed=True)
    overwrite(segment_file(tmp_path), 8192, bytes(4096))
    got = served(disk, chain)
    assert len(chain) - 6 <= len(got) < len(chain)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_f14_mutations_of_one_percent_of_the_blocks_serve_nothing_wrong(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path, rng: random.Random, is_sealed: bool
) -> None:
    lost = 0
    for _ in range(10):
        for old in (tmp_path / "v").glob("*"):
            old.unlink()
        disk = fill(make_disk, chain, is_sealed=is_sealed)
        path = segment_file(tmp_path)
        data = path.read_bytes()
        for _ in range(2):
            at, length = rng.randrange(len(data)), rng.choice([1, 16, 600, 4096])
            noise = rng.choice([bytes(length), rng.randbytes(length), data[:length]])
            overwrite(path, at, noise[: len(data) - at])
        again = make_disk()  # it sees only the files
        lost += len(chain) - len(served(again, chain))
        again.close()
        assert all(is_right(item) for item in served(disk, chain))
    assert lost < 0.4 * 10 * len(chain)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_f14_a_file_cut_anywhere_serves_what_is_whole(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path, rng: random.Random, is_sealed: bool
) -> None:
    fill(make_disk, chain, is_sealed=is_sealed)
    path = segment_file(tmp_path)
    whole = path.read_bytes()
    for length in sorted(rng.sample(range(len(whole)), 25), reverse=True):
        path.write_bytes(whole[:length])
        disk = make_disk()
        got = served(disk, chain)
        extents = (length - SEGMENT_HEAD_BYTES) // (MAX_PARTS * SIZE + 1024)
        assert len(got) >= MAX_PARTS * (extents - 1)
        assert got == chain[: len(got)]
        disk.close()
        path.unlink(missing_ok=True)


def test_the_scan_finds_what_the_footer_said(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    fill(make_disk, chain, is_sealed=True).close()
    path = segment_file(tmp_path)
    sealed = path.read_bytes()
    overwrite(path, len(sealed) - 1, bytes([sealed[-1] ^ 1]))  # the footer is void
    again = make_disk()
    assert served(again, chain) == chain
    again.close()
    assert path.read_bytes() == sealed  # and was rebuilt


def test_a_damaged_extent_head_does_not_hide_the_extents_behind_it(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    fill(make_disk, chain, is_sealed=False)
    overwrite(segment_file(tmp_path), 512 + 20, b"\xff")
    assert served(make_disk(), chain) == chain[MAX_PARTS:]


def test_k4_a_block_whose_anchor_is_missing_or_damaged_is_found_without_it(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    disk = make_disk()
    anchors = [anchor_of(chain[7], SIZE), anchor_of(chain[15], SIZE)]
    disk.write([*chain[:16], *anchors], Retention.CHAT)
    disk.sync()
    path = segment_file(tmp_path)
    at = path.read_bytes().index(bytes(anchors[1].payload))
    overwrite(path, at, bytes(SIZE))
    names = [anchor.name for anchor in anchors]
    assert disk.read(ALICE, PartKind.ANCHOR, names) == anchors[:1]
    assert not disk.find(PartKind.ANCHOR, names[1], ALICE)
    assert disk.read(ALICE, PartKind.BLOCK, [i.name for i in chain[:16]]) == chain[:16]


def test_k15_after_a_restart_nothing_is_written_over_what_was_there(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    fill(make_disk, chain[:80], is_sealed=False)
    path = segment_file(tmp_path)
    with path.open("ab") as file:
        file.write(b"half an extent")  # a write that the crash cut off
    disk = make_disk()
    disk.write(chain, Retention.CHAT)
    assert served(disk, chain) == chain
    spans = sorted(
        (e.segment.name, e.offset, e.end) for s in disk.segments.all() for e in s.extents
    )
    for (name, _, end), (other, start, _) in pairwise(spans):
        assert name != other or end <= start


def test_the_scrubber_finds_damage_before_a_reader_does(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    disk = fill(make_disk, chain, is_sealed=True)
    overwrite(segment_file(tmp_path), FIRST_PAYLOAD + 2 * SIZE, b"damage")
    overwrite(segment_file(tmp_path), FIRST_PAYLOAD + 9 * SIZE, b"damage")
    assert sum(disk.scrub()) >= (len(chain) - 2) * SIZE
    assert disk.reader.counts.corrupt == 2
    assert not disk.find(PartKind.BLOCK, chain[9].name, ALICE)
    assert disk.find(PartKind.BLOCK, chain[10].name, ALICE)


def test_f14_encrypted_bytes_that_were_altered_are_refused(
    make_disk: MakeDisk, chain: list[Item], tmp_path: Path
) -> None:
    disk = make_disk(key_of=lambda group: b"k" * 32)
    disk.write(chain, Retention.CHAT)
    disk.sync()
    overwrite(segment_file(tmp_path), FIRST_PAYLOAD + 3 * (SIZE + 16) + 5, b"\x00\x01")
    assert served(disk, chain) == chain[:3] + chain[4:]
