"""A disk tier in a folder, a clock of days, random numbers from the test's name."""

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.retention import DAY_S
from diptych.kvcache_store.volume import Folder, Volume
from diptych.testing.clock import FakeClock

MakeDisk = Callable[..., DiskTier]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    digest = hashlib.sha256(request.node.name.encode()).digest()
    return random.Random(int.from_bytes(digest[:8]))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(20_000.5 * DAY_S)  # noon


@pytest.fixture
def make_disk(tmp_path: Path, clock: FakeClock) -> Iterator[MakeDisk]:
    """Opens a tier on the test's folder; a second call is a second life."""
    made: list[DiskTier] = []

    def make(capacity_bytes: int = 8 << 20, volume: Volume | None = None, **more: Any) -> DiskTier:
        disk = DiskTier(volume or Folder(tmp_path / "v"), capacity_bytes, clock=clock, **more)
        for dead in made:  # a life that a crash has ended keeps no files
            for segment in dead.segments.all():
                if segment.appender is not None:
                    segment.appender.close()
                    segment.appender = None
        made.clear()
        disk.open()
        made.append(disk)
        return disk

    yield make
    for disk in made:
        disk.close()
