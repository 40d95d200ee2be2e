"""Write-behind: bounded, in order, counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.items import Item
from diptych.kvcache_store.retention import Retention
from diptych.kvcache_store.tenants import Admission
from diptych.kvcache_store.volume import Folder, Volume
from diptych.kvcache_store.write_queue import WriteQueue
from diptych.testing.chains import items_of, origin_of
from diptych.testing.clock import FakeClock
from diptych.testing.volumes import PoorVolume
from diptych.transport.frames import PartKind

ALICE = origin_of("alice")
ADMISSION = Admission("alice", ALICE.group, 0)


@asynccontextmanager
async def queue_over(
    volume: Volume, clock: FakeClock, limit_bytes: int = 1 << 20
) -> AsyncIterator[tuple[WriteQueue, DiskTier]]:
    disk = DiskTier(volume, 16 << 20, clock=clock)
    disk.open()
    queue = WriteQueue(disk, limit_bytes, fsync_s=0.01)
    running = asyncio.create_task(queue.run())
    yield queue, disk
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await queue.call(disk.close)
    await queue.close()


def some(start: int, count: int = 8) -> tuple[Item, ...]:
    return tuple(items_of(ALICE, range(start, start + count)))


async def test_what_is_acknowledged_lies_on_disk(tmp_path: Path, clock: FakeClock) -> None:
    async with queue_over(Folder(tmp_path), clock) as (queue, disk):
        done = [queue.offer(some(100 * i), Retention.CHAT, ADMISSION) for i in range(20)]
        assert disk.queued_bytes == queue.queued_bytes == 160_000
        assert await asyncio.gather(*done) == [True] * 20
        assert all(
            disk.find(PartKind.BLOCK, item.name, ALICE) for i in range(20) for item in some(100 * i)
        )
        assert queue.queued_bytes == 0
        assert queue.counts.written == 160


async def test_f15_beyond_the_bound_the_newest_are_dropped(
    tmp_path: Path, clock: FakeClock
) -> None:
    slow = PoorVolume(Folder(tmp_path), bytes_a_second=100_000)
    async with queue_over(slow, clock, limit_bytes=20_000) as (queue, _):
        done = [queue.offer(some(100 * i), Retention.CHAT, ADMISSION) for i in range(4)]
        assert [one.done() for one in done] == [False, False, True, True]
        assert queue.counts.dropped_full == 16
        assert await asyncio.gather(*done) == [True, True, False, False]


async def test_who_would_rather_wait_gets_room(tmp_path: Path, clock: FakeClock) -> None:
    slow = PoorVolume(Folder(tmp_path), bytes_a_second=1 << 20)
    async with queue_over(slow, clock, limit_bytes=20_000) as (queue, _):
        for i in range(8):
            await queue.until_room(8_000)
            assert not queue.offer(some(100 * i), Retention.CHAT, ADMISSION).done()
        await queue.flush()
        assert queue.counts.written == 64
        assert queue.counts.dropped_full == 0


async def test_a_flush_waits_for_everything_and_an_empty_queue_is_flushed(
    tmp_path: Path, clock: FakeClock
) -> None:
    slow = PoorVolume(Folder(tmp_path), bytes_a_second=1 << 20)
    async with queue_over(slow, clock) as (queue, disk):
        await queue.flush()
        for i in range(5):
            queue.offer(some(100 * i), Retention.CHAT if i % 2 else Retention.AGENT, ADMISSION)
        await queue.flush()
        assert disk.segments.num_parts == 40


async def test_an_error_of_the_disk_costs_its_parts_and_the_queue_goes_on(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with queue_over(Folder(tmp_path), clock) as (queue, disk):
        write, broken = disk.write, iter([True, False])

        def once(items: object, retention: Retention) -> None:
            if next(broken):
                raise OSError(5, "Input/output error")
            write(items, retention)  # type: ignore[arg-type]

        monkeypatch.setattr(disk, "write", once)
        assert not await queue.offer(some(0), Retention.CHAT, ADMISSION)
        assert await queue.offer(some(100), Retention.CHAT, ADMISSION)
        assert (queue.counts.dropped_error, queue.counts.written) == (8, 8)


async def test_what_is_left_at_the_end_is_dropped_not_forgotten(
    tmp_path: Path, clock: FakeClock
) -> None:
    disk = DiskTier(Folder(tmp_path), 16 << 20, clock=clock)
    disk.open()
    queue = WriteQueue(disk, 1 << 20, fsync_s=1)
    done = queue.offer(some(0), Retention.CHAT, ADMISSION)  # nobody runs it
    await queue.close()
    assert not await done
    disk.close()
