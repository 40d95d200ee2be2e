"""Random lives of a disk tier, each ended by a crash at any point, against a simple model."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from diptych.core.ids import BlockHash
from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.items import Item, Origin
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.retention import DAY_S, Retention
from diptych.kvcache_store.volume import VolumeFull
from diptych.testing.chains import anchor_of, conversations, is_right, items_of, origin_of
from diptych.testing.clock import FakeClock
from diptych.transport.frames import PartKind

MakeDisk = Callable[..., DiskTier]
TENANTS = [origin_of(name) for name in ("alice", "bob", "carol")]
KEPT_CLASSES = [Retention.AGENT, Retention.CHAT, Retention.PINNED]


Key = tuple[Origin, PartKind, BlockHash]


class Life:
    """A tier and what must be true of it."""

    def __init__(
        self,
        make_disk: MakeDisk,
        folder: Path,
        clock: FakeClock,
        draw: random.Random,
        **more: object,
    ) -> None:
        self._make = lambda: make_disk(**more)
        self._folder = folder
        self._clock = clock
        self._draw = draw
        self._texts = conversations(draw, 12, 60)
        self.disk: DiskTier = self._make()
        self.promised: dict[Key, float] = {}  # until when, seconds
        self._unsynced: list[tuple[Key, float]] = []  # promises made since the last sync
        self._tried: set[Key] = set()  # whatever may be there

    def step(self) -> None:
        """Something happens."""
        draw = self._draw
        act = draw.choices(
            [self.write, self.read, self.wait, self.sweep, self.delete, self.crash],
            weights=[10, 10, 2, 2, 0.3, 1],
        )[0]
        act()

    def write(self) -> None:
        draw = self._draw
        text = draw.choice(self._texts)
        text = text[: draw.randint(1, len(text))]
        blocks = items_of(draw.choice(TENANTS), text, size_bytes=500)
        items = [*blocks, anchor_of(blocks[-1], 300)] if draw.random() < 0.5 else blocks
        self._tried |= {(item.origin, item.kind, item.name) for item in items}
        retention = draw.choices(KEPT_CLASSES, weights=[5, 5, 1])[0]
        try:
            self.disk.write(items, retention)
        except VolumeFull:
            return
        days = {Retention.AGENT: 3, Retention.CHAT: 7, Retention.PINNED: 10**6}[retention]
        self.owe(items, days)

    def owe(self, items: list[Item], days: float) -> None:
        for item in items:
            key = (item.origin, item.kind, item.name)
            self._unsynced.append((key, self._clock() + days * DAY_S))

    def sync(self) -> None:
        self.disk.sync()
        for key, until_s in self._unsynced:
            self.promised[key] = max(self.promised.get(key, 0.0), until_s)
        self._unsynced.clear()

    def read(self) -> None:
        origin = self._draw.choice(TENANTS)
        asked = items_of(origin, self._draw.choice(self._texts), size_bytes=500)
        found = self.disk.read(origin, PartKind.BLOCK, [item.name for item in asked])
        assert found == asked[: len(found)]
        assert all(is_right(item) for item in found)
        assert all((origin, PartKind.BLOCK, item.name) in self._tried for item in found)
        self.owe(found, 3)

    def wait(self) -> None:
        self._clock.advance(self._draw.choice([1.0, 60.0, 3600.0, 0.7 * DAY_S]))

    def sweep(self) -> None:
        steps = self._draw.choice([1, 3, 10**9])
        for number, _ in enumerate(self.disk.clean()):
            if number == steps:
                break  # it is interrupted; the next sweep goes on

    def delete(self) -> None:
        origin = self._draw.choice(TENANTS)
        self.disk.delete(origin.group)
        self.sync()
        self.promised = {k: v for k, v in self.promised.items() if k[0] != origin}
        self._tried = {key for key in self._tried if key[0] != origin}

    def crash(self) -> None:
        """The process is gone; maybe a write had just begun."""
        if self._draw.random() < 0.7:
            self.sync()
        for key, until_s in self._unsynced:  # written it is; only what prolonged it is forgotten
            self.promised.setdefault(key, until_s)
        self._unsynced.clear()
        torn = self._draw.random() < 0.5
        growing = [s.name for s in self.disk.segments.all() if s.appender is not None]
        if torn and growing:
            with (self._folder / self._draw.choice(growing)).open("ab") as file:
                file.write(self._draw.randbytes(self._draw.randint(1, 5000)))
        self.disk = self._make()

    def check(self) -> None:
        """The books agree with the files, and with each other."""
        balance, volume = self.disk.balance, self.disk.segments.volume
        files = sum(volume.size(name) for name in volume.names())
        assert balance.live + balance.dead + balance.pinned == files
        live = sum(segment.live_bytes for segment in self.disk.segments.all())
        assert live == self.disk.segments.ledger.total == balance.live + balance.pinned
        assert balance.free == self.disk.free_bytes >= 0
        parts = sum(extent.num_live for extent in self.disk.segments.extents())
        assert parts == self.disk.segments.num_parts

    def missing(self) -> tuple[int, int]:
        """(promised parts that are not there, promised parts)."""
        self.sync()
        owed = [k for k, until_s in self.promised.items() if until_s >= self._clock()]
        gone = sum(not self.disk.find(kind, name, origin) for origin, kind, name in owed)
        return gone, len(owed)


def live(life: Life, steps: int) -> None:
    for _ in range(steps):
        life.step()
        life.check()


def test_with_room_no_promise_is_ever_broken(
    make_disk: MakeDisk, tmp_path: Path, clock: FakeClock, rng: random.Random
) -> None:
    life = Life(make_disk, tmp_path / "v", clock, rng, capacity_bytes=64 << 20)
    seen = 0
    for _ in range(8):
        live(life, 60)
        gone, owed = life.missing()
        assert gone == 0
        seen += owed
    assert seen > 1000


def test_without_room_the_books_stay_right_and_nothing_wrong_is_served(
    make_disk: MakeDisk, tmp_path: Path, clock: FakeClock, rng: random.Random
) -> None:
    life = Life(
        make_disk,
        tmp_path / "v",
        clock,
        rng,
        capacity_bytes=400_000,
        quotas=Quotas(tenant_bytes=100_000),
        key_of=lambda group: b"k" * 32 if group == TENANTS[0].group else None,
    )
    live(life, 400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_for_long_without_room(
    make_disk: MakeDisk, tmp_path: Path, clock: FakeClock, rng: random.Random
) -> None:
    for _ in range(100):
        room = rng.choice([300_000, 1 << 20, 3 << 20])
        life = Life(make_disk, tmp_path / "v", clock, rng, capacity_bytes=room)
        for origin in TENANTS:
            life.disk.delete(origin.group)
        live(life, 400)
