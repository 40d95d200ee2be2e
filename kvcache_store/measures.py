"""What a store shows to Prometheus."""

from collections import Counter
from collections.abc import Callable, Iterator

from diptych.kvcache_store.items import Tier
from diptych.kvcache_store.policy import Rank, shown_days
from diptych.kvcache_store.retention import DAY_S, TTL_DAYS, Retention, day_of
from diptych.kvcache_store.tiers import Tiers
from diptych.telemetry import metrics as m

_WHY = {Rank.FOREIGN: "foreign", Rank.OVER_QUOTA: "over_quota", Rank.PROMISED: "promised"}
_RATE_AFTER_S = 3_600.0  # of a life: before, a rate says nothing


def readings(
    tiers: Tiers, clock: Callable[[], float], loop_time: Callable[[], float]
) -> Iterator[m.Reading]:
    """Counts at this moment."""
    counts, memory = tiers.counts, tiers.memory
    yield m.TIER_PARTS.at(len(memory), "memory")
    yield m.TIER_BYTES.at(memory.used_bytes, "used")
    yield m.TIER_BYTES.at(memory.capacity_bytes - memory.used_bytes, "free")
    yield m.TIER_READS.at(counts.read[Tier.MEMORY], "memory")
    yield m.TIER_READS.at(counts.read[Tier.DISK], "disk")
    yield m.TIER_READS.at(counts.missed, "missing")
    yield m.TIER_READS.at(tiers.num_slow, "slow")
    pins = tiers.pins.all()
    yield m.PINS.at(len(pins), "held")
    yield m.PINS.at(sum(pin.is_leaked(loop_time()) for pin in pins), "leaked")
    yield m.PINS_LAPSED.at(counts.lapsed_pins)
    violated = counts.violated_bytes
    if tiers.disk is not None:
        violated = violated + tiers.disk.cleaner.counts.violated_bytes
        yield from _disk(tiers, clock())
    for retention in (Retention.AGENT, Retention.CHAT, Retention.PINNED):
        yield m.RETENTION_VIOLATIONS.at(violated[retention], retention)


def _disk(tiers: Tiers, now_s: float) -> Iterator[m.Reading]:
    disk, queue = tiers.disk, tiers.queue
    assert disk is not None and queue is not None
    writes, cleanings = queue.counts, disk.cleaner.counts
    yield m.TIER_PARTS.at(disk.segments.num_parts, "disk")
    yield m.TIER_QUEUED_BYTES.at(queue.queued_bytes)
    for result in ("written", "dropped_full", "dropped_room", "dropped_error", "dropped_deleted"):
        yield m.TIER_WRITES.at(getattr(writes, result), result)
    yield m.KV_CHECKSUM_FAILURES.at(disk.reader.counts.corrupt, "disk")
    yield m.RETENTION_FREED.at(cleanings.expired_bytes, "expired")
    for rank, why in _WHY.items():
        yield m.RETENTION_FREED.at(cleanings.evicted_bytes[rank], why)
    balance, live = disk.balance, Counter[Retention]()
    ages: Counter[tuple[Retention, int]] = Counter()
    with disk.segments.lock:
        rows = list(disk.segments.ledger.rows())
    for _, kept, size in rows:
        live[kept.retention] += size
        ages[kept.retention, max(0, day_of(now_s) - kept.day)] += size
    for retention, size in live.items():
        state = "pinned" if retention is Retention.PINNED else "live"
        yield m.RETENTION_BYTES.at(size, retention, state)
    yield m.RETENTION_BYTES.at(balance.dead, "all", "dead")
    yield m.RETENTION_BYTES.at(balance.reserved, "all", "reserved")
    yield m.RETENTION_BYTES.at(balance.free, "all", "free")
    for (retention, days), size in ages.items():
        yield m.RETENTION_AGE_BYTES.at(size, retention, str(days))
    age_s = tiers.age_s
    per_day = {
        kind: size / age_s * DAY_S if age_s > _RATE_AFTER_S else 0.0
        for kind, size in disk.written_bytes.items()
    }
    for retention, shown in shown_days(TTL_DAYS, per_day, disk.capacity_bytes).items():
        yield m.RETENTION_SHOWN_SECONDS.at(shown * DAY_S, retention)
