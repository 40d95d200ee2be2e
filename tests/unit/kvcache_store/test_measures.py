"""What Prometheus sees adds up."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from diptych.kvcache_store.measures import readings
from diptych.kvcache_store.policy import shown_days
from diptych.kvcache_store.retention import DAY_S, TTL_DAYS, Retention
from diptych.telemetry import metrics as m
from diptych.testing.chains import items_of, origin_of
from diptych.testing.clock import FakeClock
from diptych.testing.stores import RunningStore, running_store


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[RunningStore]:
    async with running_store(tmp_path, clock=clock, disk_bytes=8 << 20) as one:
        yield one


async def put(store: RunningStore, tokens: range, retention: Retention) -> None:
    tiers = store.tiers
    admission = tiers.tenants.admit("alice")
    origin = replace(origin_of("alice"), group=admission.group)
    on_disk = tiers.put(items_of(origin, tokens), retention, admission).on_disk
    assert on_disk is not None
    assert await on_disk


async def test_the_capacity_is_the_sum_of_its_states(
    store: RunningStore, clock: FakeClock, rng: random.Random
) -> None:
    for number in range(6):
        retention = rng.choice([Retention.AGENT, Retention.CHAT, Retention.PINNED])
        await put(store, range(100 * number, 100 * number + 30), retention)
        clock.advance(DAY_S * rng.random())
    assert store.tiers.disk is not None
    store.tiers.pin([e.names[0] for e in store.tiers.disk.segments.extents()], "w", "test", 30)
    read = list(readings(store.tiers, clock, lambda: 0.0))
    capacity = sum(r.value for r in read if r.metric is m.RETENTION_BYTES)
    assert capacity == 8 << 20
    ages = sum(r.value for r in read if r.metric is m.RETENTION_AGE_BYTES)
    assert ages == store.tiers.disk.segments.ledger.total
    assert [r.value for r in read if r.metric is m.PINS] == [1, 0]


async def test_every_reading_can_be_shown(store: RunningStore, clock: FakeClock) -> None:
    await put(store, range(30), Retention.CHAT)
    metrics = m.Metrics("store")
    metrics.pull(lambda: readings(store.tiers, clock, lambda: 0.0))
    text = metrics.text().decode()
    assert 'llm_tier_parts{role="store",tier="disk"} 30.0' in text
    assert 'llm_retention_shown_seconds{class="chat",role="store"} 604800.0' in text


def test_a_promise_that_cannot_be_kept_is_lowered_openly() -> None:
    rates = {Retention.AGENT: 10.0, Retention.CHAT: 10.0}
    assert shown_days(TTL_DAYS, rates, 125) == {Retention.AGENT: 3, Retention.CHAT: 7}
    lowered = shown_days(TTL_DAYS, rates, 100)  # 80 usable bytes, 100 would pile up
    assert lowered == {Retention.AGENT: pytest.approx(2.4), Retention.CHAT: pytest.approx(5.6)}
    assert shown_days(TTL_DAYS, {}, 1) == {Retention.AGENT: 3, Retention.CHAT: 7}
