"""Gives bytes back: expiry, compaction, and eviction when all else is not enough.

Runs on the thread that writes. Its long works are generators of small steps, so that writes go
in between and the caller sets the pace; what is half done at a crash is done again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import runs
from diptych.kvcache_store.policy import Candidate, Rank, eviction_order, value, with_its_segment
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.reading import Reader
from diptych.kvcache_store.retention import DAY_S, Retention, day_of
from diptych.kvcache_store.segment import Extent, Segment
from diptych.kvcache_store.segments import Segments
from diptych.kvcache_store.volume import VolumeFull
from diptych.transport.frames import PartKind

FOREIGN_AFTER_S = DAY_S  # behind the namespace that was used last
FRESH_S = 10.0  # what was used so lately stays: the rest of its chain may be on its way
COMPACT_BELOW = 0.5  # of a segment that lives
ASSUMED_GRAIN = 128  # tokens of a block; only ratios of values count

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Cleanings:
    """What cleaning has done since start."""

    moved_bytes: int = 0
    expired_bytes: int = 0
    scrubbed_bytes: int = 0
    evicted_bytes: Counter[Rank] = field(default_factory=Counter)
    violated_bytes: Counter[Retention] = field(default_factory=Counter)  # promises broken


class Cleaner:
    """Decides with `policy` what goes and lets it go."""

    def __init__(
        self,
        segments: Segments,
        reader: Reader,
        *,
        quotas: Quotas,
        clock: Callable[[], float],
        is_pinned: Callable[[Sequence[BlockHash]], bool],
    ) -> None:
        self.counts = Cleanings()
        self.quotas = quotas
        self._segments = segments
        self._reader = reader
        self._clock = clock
        self._is_pinned = is_pinned
        self._used_s: dict[bytes, float] = {}  # namespaces, by last use

    def touch(self, namespace: bytes) -> None:
        """Somebody uses this namespace."""
        self._used_s[namespace] = self._clock()

    def start(self) -> None:
        """What was found at start counts as used now."""
        for segment in self._segments.all():
            self.touch(segment.head.namespace)

    def is_kept(self, extent: Extent) -> bool:
        """Whether nothing may evict it."""
        return extent.kept.retention is Retention.PINNED or self._is_pinned(extent.names)

    def clean(self) -> Iterator[int]:
        """One sweep in small steps, each with the bytes it moved: expiry, then compaction."""
        now_s = self._clock()
        self._segments.seal_before(day_of(now_s))
        for segment in self._segments.all():
            if segment.head.kept.is_over(now_s):
                yield from self._expire(segment, now_s)
        for segment in self._segments.all():
            if segment.appender is None and _is_sparse(segment):
                yield from self._move_all(segment)

    def collect_foreign(self) -> int:
        """Drop what belongs to namespaces that no worker uses any more; bytes given back."""
        freed = 0
        for segment in self._segments.all():
            if self._is_foreign(segment) and not any(map(self.is_kept, segment.extents)):
                self.counts.evicted_bytes[Rank.FOREIGN] += segment.live_bytes
                freed += self._segments.drop(segment)
        return freed

    def scrub(self) -> Iterator[int]:
        """Read everything once, dropping what is damaged; each step with the bytes it read."""
        for extent in self._segments.extents():
            while extent.num_live:
                before = extent.num_live
                try:
                    items = self._reader.read_extent(extent, 0, len(extent.names) - 1)
                except FileNotFoundError:
                    break  # moved, and read when it was
                except OSError as error:
                    log.error("unreadable segment=%s why=%s", extent.segment.name, error.strerror)
                    break
                size = sum(len(item.payload) for item in items)
                self.counts.scrubbed_bytes += size
                yield size
                if extent.num_live == before:
                    break

    def make_room(self, missing: Callable[[], int], at_once_bytes: int) -> bool:
        """Until nothing is missing; False if that cannot be."""
        while (wanted := missing()) > 0:
            segments = self._segments.all()
            empty = next((s for s in segments if not any(e.num_live for e in s.extents)), None)
            if empty is not None:
                self._segments.drop(empty)
                continue
            sparsest = max(segments, key=_dead_share, default=None)
            if sparsest is None or _dead_share(sparsest) < 1 - COMPACT_BELOW:
                if self._evict_some(max(wanted, at_once_bytes)):
                    continue
                if sparsest is None or not sparsest.reclaimable_bytes:
                    return False
            self._reclaim(sparsest)
        return True

    def _expire(self, segment: Segment, now_s: float) -> Iterator[int]:
        """Delete a segment whose day is over; what was renewed moves to a later day first."""
        for extent in segment.extents:
            if extent.num_live and not extent.kept.is_over(now_s):
                yield self._move(extent)
        self._segments.sync()  # the copies must be safe before the original goes
        self.counts.expired_bytes += segment.live_bytes
        self._segments.drop(segment)
        yield 0

    def _move_all(self, segment: Segment) -> Iterator[int]:
        for extent in segment.extents:
            if extent.num_live:
                yield self._move(extent)
        self._segments.sync()
        self._segments.drop(segment)
        yield 0

    def _reclaim(self, segment: Segment) -> None:
        """Move what lives, all at once; where the volume has no room even for that, evict it."""
        self._segments.seal(segment)
        try:
            for _ in self._move_all(segment):
                pass
        except VolumeFull:
            log.warning("no room to move segment=%s bytes=%d", segment.name, segment.live_bytes)
            for extent in segment.extents:
                self._evict(extent, Rank.PROMISED)
            self._segments.drop(segment)

    def _move(self, extent: Extent) -> int:
        """Copy an extent's live parts into a segment of their own day; bytes copied."""
        moved = 0
        while extent.num_live:
            items = self._reader.read_extent(extent, *_stretch(extent))
            for run in runs(items):
                copy = self._segments.append(run, extent.kept)
                copy.used_s, copy.reads = extent.used_s, extent.reads
                extent.segment.moved_bytes += copy.footprint_bytes
                moved += sum(len(item.payload) for item in run)
        self.counts.moved_bytes += moved
        return moved

    def _evict_some(self, wanted: int) -> bool:
        """Forget what goes first, so many bytes of it; False if nothing may go."""
        now_s = self._clock()
        extents = {
            id(e): e
            for e in self._segments.extents()
            if not self.is_kept(e) and not 0 <= now_s - e.used_s < FRESH_S
        }
        values = {key: _value(e, now_s) for key, e in extents.items()}
        means = _means(extents, values)
        candidates = [
            self._candidate(e, with_its_segment(values[key], means[id(e.segment)]))
            for key, e in extents.items()
        ]
        freed = 0
        for c in eviction_order(candidates):
            extent = extents[c.key]
            if c.rank is Rank.OVER_QUOTA and not self._is_over_quota(extent):
                break  # it is within its quota now: judge again
            freed += self._evict(extent, c.rank)
            if freed >= wanted:
                break
        return freed > 0

    def _evict(self, extent: Extent, rank: Rank) -> int:
        freed = self._segments.forget(extent, list(extent.live_positions()))
        self.counts.evicted_bytes[rank] += freed
        if rank is Rank.PROMISED:
            self.counts.violated_bytes[extent.kept.retention] += freed
        return freed

    def _candidate(self, extent: Extent, worth: float) -> Candidate:
        is_block = extent.kind is PartKind.BLOCK
        return Candidate(
            key=id(extent),
            rank=self._rank(extent),
            value=worth,
            size_bytes=extent.live_bytes,
            parents=frozenset((extent.parent,) if is_block else extent.names),
            names=frozenset(extent.names if is_block else ()),
        )

    def _rank(self, extent: Extent) -> Rank:
        if self._is_foreign(extent.segment):
            return Rank.FOREIGN
        return Rank.OVER_QUOTA if self._is_over_quota(extent) else Rank.PROMISED

    def _is_foreign(self, segment: Segment) -> bool:
        """Whether others are in use and its namespace is not. A quiet weekend counts for nobody."""
        last_s = max(self._used_s.values(), default=0.0)
        return last_s - self._used_s.get(segment.head.namespace, last_s) > FOREIGN_AFTER_S

    def _is_over_quota(self, extent: Extent) -> bool:
        group, retention = extent.segment.head.group, extent.kept.retention
        return self.quotas.is_over(self._segments.ledger, group, retention)


def _value(extent: Extent, now_s: float) -> float:
    return value(
        tokens=len(extent.names) * ASSUMED_GRAIN,
        index_tokens=extent.first_index * ASSUMED_GRAIN,
        size_bytes=sum(extent.sizes),
        reads=extent.reads,
        idle_s=now_s - extent.used_s,
    )


def _means(extents: Mapping[int, Extent], values: Mapping[int, float]) -> dict[int, float]:
    """The mean value of what lives in each segment, by its identity.

    One that has begun to die counts for less: it should go whole rather than be moved.
    """
    found: dict[int, list[float]] = {}
    segments: dict[int, Segment] = {}
    for key, extent in extents.items():
        found.setdefault(id(extent.segment), []).append(values[key])
        segments[id(extent.segment)] = extent.segment
    return {
        key: sum(some) / len(some) * (1 - _dead_share(segments[key])) for key, some in found.items()
    }


def _dead_share(segment: Segment) -> float:
    """Of a file, what moving the rest would give back."""
    return segment.reclaimable_bytes / segment.size_bytes


def _is_sparse(segment: Segment) -> bool:
    taken = sum(extent.footprint_bytes for extent in segment.extents)
    return segment.live_bytes < COMPACT_BELOW * taken or not taken


def _stretch(extent: Extent) -> tuple[int, int]:
    """The first live positions that follow each other."""
    first = last = next(extent.live_positions())
    while last + 1 < len(extent.names) and extent.is_live(last + 1):
        last += 1
    return first, last
