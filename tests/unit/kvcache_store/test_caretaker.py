"""Sweeps and scrubs over a living store."""

import asyncio
from dataclasses import replace
from pathlib import Path

from diptych.kvcache_store.caretaker import Caretaker
from diptych.kvcache_store.items import Item
from diptych.kvcache_store.retention import DAY_S, Retention
from diptych.testing.chains import items_of, origin_of
from diptych.testing.clock import FakeClock
from diptych.testing.stores import RunningStore, running_store
from diptych.transport.frames import PartKind


async def put(store: RunningStore, tokens: range, retention: Retention) -> list[Item]:
    admission = store.tiers.tenants.admit("alice")
    items = items_of(replace(origin_of("alice"), group=admission.group), tokens)
    store.tiers.put(items, retention, admission)
    await store.tiers.flush()
    return items


async def test_a_sweep_gives_back_what_is_over_in_both_tiers(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with running_store(tmp_path, clock=clock) as store:
        await put(store, range(100), Retention.AGENT)
        kept = await put(store, range(500, 600), Retention.CHAT)
        clock.advance(5 * DAY_S)
        swept = await store.caretaker.sweep(hurry=True)
        assert swept.freed_bytes > 100_000
        assert len(store.tiers.memory) == 100
        assert store.tiers.disk is not None
        assert store.tiers.disk.segments.num_parts == 100
        assert await store.tiers.read(kept[0].origin, PartKind.BLOCK, [kept[0].name])


async def test_a_scrub_reads_everything_at_its_pace(tmp_path: Path, clock: FakeClock) -> None:
    async with running_store(tmp_path, clock=clock) as store:
        await put(store, range(160), Retention.CHAT)
        slow = Caretaker(store.tiers, clock=clock, bytes_a_second=400_000)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        scrubbing = asyncio.create_task(slow.scrub())
        await asyncio.sleep(0.05)
        await put(store, range(700, 710), Retention.CHAT)  # writes go in between
        assert not scrubbing.done()
        assert await scrubbing >= 160_000
        assert loop.time() - began_s >= 0.35


async def test_without_a_disk_there_is_nothing_to_clean(tmp_path: Path, clock: FakeClock) -> None:
    async with running_store(tmp_path, clock=clock, disk_bytes=0) as store:
        assert (await store.caretaker.sweep()).freed_bytes == 0
        assert await store.caretaker.scrub() == 0
