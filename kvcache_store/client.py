"""Front door of the cache tier: chains of blocks for whoever moves them, a `Tier` for engines."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from diptych.core.ids import BlockHash, WorkerId
from diptych.engine.tier import Found as EngineFound
from diptych.engine.tier import Kept, Owner, Place, Snapshot, Stored
from diptych.kvcache_store.chains import LOOKUP_S, ClientCounts, StoreClient
from diptych.kvcache_store.following import following
from diptych.kvcache_store.items import Found, Tier
from diptych.kvcache_store.links import Transport
from diptych.kvcache_store.messages import Heard, News, Whose
from diptych.kvcache_store.remote_desk import RemoteDesk
from diptych.kvcache_store.report import Stats
from diptych.kvcache_store.retention import Retention
from diptych.kvcache_store.transfers import Fetched, Hit, Outcome, Run
from diptych.transport.channel import Dial, connect, deadline
from diptych.transport.frames import Part, PartKind, checksum
from diptych.transport.frames import Place as FramePlace

__all__ = [
    "Fetched", "Found", "Heard", "Hit", "News", "Outcome", "Retention", "Run", "Stats",
    "StoreClient", "StoreTier", "Tier", "Transport", "Whose", "following", "stats",
]  # fmt: skip

LOAD_S = 1.0  # and what follows for each MiB: then what has arrived must be enough
LOAD_MIB_S = 0.25
SLOT_S = 1.0  # for a slot, a few MiB at most
PUT_S = 30.0
WAITING_BYTES = 64 << 20  # of copies that no node has taken yet
NAMES = {Tier.MEMORY: "memory", Tier.DISK: "disk"}

log = logging.getLogger(__name__)

WhoseOf = Callable[[Owner], Whose]


@dataclass(frozen=True, slots=True)
class _Writer:
    """Where the parts of one fetch go."""

    kind: PartKind
    into: Mapping[BlockHash, memoryview]

    def place(self, name: BlockHash) -> FramePlace:
        return FramePlace(self.kind, self.into[name])


@dataclass(frozen=True, slots=True)
class _Found(EngineFound):
    """Remembers at which node each block was found."""

    hit: Hit


class StoreTier:
    """An `engine.tier.Tier` over the nodes of a store.

    What it keeps waits in order and in bounded memory; when that is full, the newest is dropped.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        worker_id: WorkerId,
        *,
        lookup_s: float = LOOKUP_S,
        dial: Dial = connect,
    ) -> None:
        self._client = StoreClient(addresses, worker_id, lookup_s=lookup_s, dial=dial)
        self._namespace = self._layout_hash = b""
        self._waiting: asyncio.Queue[Run | Snapshot] = asyncio.Queue()
        self._waiting_bytes = 0
        self._refused = 0  # parts; counted on the engine's thread
        self._putting: asyncio.Task[None] | None = None

    def use(self, addresses: Sequence[str]) -> None:
        """These are the nodes from now on. On the event loop; see StoreClient."""
        self._client.use(addresses)

    def bind(self, namespace: bytes, layout_hash: bytes) -> Self:
        """Say what engine it is of; until then it finds nothing. An `engine.tier.OpenTier`."""
        self._namespace, self._layout_hash = namespace, layout_hash
        return self

    @property
    def counts(self) -> ClientCounts:
        """Since start."""
        return self._client.counts

    @property
    def parts_dropped(self) -> int:
        """Since start: of what an engine would have had it keep."""
        return self._refused + self.counts.parts_dropped

    async def find(self, owner: Owner, chain: Sequence[BlockHash], start: int) -> EngineFound:
        hit = await self._client.lookup(self._whose(owner), chain, start=start)
        stored = (
            Stored(NAMES[place.found.tier], place.found.is_exact, _has_anchor(hit, index))
            for index, place in enumerate(hit.blocks, hit.start)
        )
        return _Found(owner, start, tuple(stored), hit)

    async def load(self, found: EngineFound, places: Sequence[Place]) -> int:
        """Blocks first, then the anchor, which is worth nothing without them."""
        assert isinstance(found, _Found)
        num_bytes = sum(len(place.into) for place in places)
        deadline_s = LOAD_S + LOAD_MIB_S * num_bytes / 2**20
        num_blocks = sum(not place.is_anchor for place in places)
        num_filled = 0
        if num_blocks:
            fetched = await self._get(found.hit, PartKind.BLOCK, places[:num_blocks], deadline_s)
            num_filled = fetched.num_leading
        if num_filled == num_blocks < len(places):
            fetched = await self._get(found.hit, PartKind.ANCHOR, places[num_blocks:], deadline_s)
            num_filled += fetched.num_leading
        return num_filled

    def has_room(self, count: int) -> bool:
        has_room = self._client.has_nodes and self._waiting_bytes < WAITING_BYTES
        self._refused += 0 if has_room else count
        return has_room

    def keep(self, items: Sequence[Kept | Snapshot]) -> None:
        blocks = [item for item in items if isinstance(item, Kept)]
        coming: list[Run | Snapshot] = [*runs_of(blocks, self._whose)]
        coming += [item for item in items if isinstance(item, Snapshot)]
        for one in coming:
            size_bytes = _size_bytes(one)
            if self._waiting_bytes + size_bytes > WAITING_BYTES:
                self.counts.parts_dropped += _num_parts(one)
                continue
            self._waiting_bytes += size_bytes
            self._waiting.put_nowait(one)
        if self._putting is None:
            self._putting = asyncio.create_task(self._put())

    async def load_slot(self, owner: Owner, name: BlockHash, into: memoryview) -> bool:
        writer = _Writer(PartKind.SLOT, {name: into})
        whose = self._whose(owner)
        return await self._client.get_slot(whose, name, writer, deadline_s=SLOT_S)

    async def flush(self, within_s: float) -> None:
        """Wait until all that was kept has been taken or dropped."""
        try:
            async with asyncio.timeout(within_s):
                await self._waiting.join()
        except TimeoutError:
            log.warning("not all was kept bytes=%d", self._waiting_bytes)

    async def close(self) -> None:
        if self._putting is not None:
            self._putting.cancel()
            await asyncio.gather(self._putting, return_exceptions=True)
        await self._client.close()

    async def _get(
        self, hit: Hit, kind: PartKind, places: Sequence[Place], deadline_s: float
    ) -> Fetched:
        writer = _Writer(kind, {place.name: place.into for place in places})
        indices = [place.index for place in places]
        return await self._client.get(hit, kind, indices, writer, deadline_s=deadline_s)

    async def _put(self) -> None:
        while True:
            one = await self._waiting.get()
            try:
                if isinstance(one, Run):
                    await self._client.put(one, deadline_s=PUT_S)
                else:
                    await self._put_slot(one)
            finally:
                self._waiting_bytes -= _size_bytes(one)
                self._waiting.task_done()

    async def _put_slot(self, snapshot: Snapshot) -> None:
        view = memoryview(snapshot.payload)
        part = Part(PartKind.SLOT, snapshot.name, checksum(view), view)
        retention = Retention(snapshot.owner.retention)
        whose = self._whose(snapshot.owner)
        await self._client.put_slot(whose, part, retention, deadline_s=PUT_S)

    def _whose(self, owner: Owner) -> Whose:
        return Whose(self._namespace, self._layout_hash, owner.scope, owner.tenant)


async def stats(address: str, timeout_s: float, *, dial: Dial = connect) -> Stats:
    """What a node holds; Lost or Expired if it does not answer."""
    async with dial(address) as channel, deadline(timeout_s, f"the store at {address}"):
        return await RemoteDesk(channel).stats()


def _size_bytes(one: Run | Snapshot) -> int:
    return one.size_bytes if isinstance(one, Run) else len(one.payload)


def _num_parts(one: Run | Snapshot) -> int:
    return len(one.blocks) + len(one.anchors) if isinstance(one, Run) else 1


def runs_of(items: Sequence[Kept], whose: WhoseOf) -> list[Run]:
    """The same as runs of consecutive blocks, each with the anchors among them."""
    chains: dict[tuple[Owner, int], dict[int, Kept]] = {}
    anchors: dict[tuple[Owner, int], dict[int, Kept]] = {}
    for item in items:
        kind = anchors if item.is_anchor else chains
        kind.setdefault((item.owner, id(item.chain)), {})[item.index] = item
    return [
        run for key, blocks in chains.items() for run in _runs(blocks, anchors.get(key, {}), whose)
    ]


def _runs(blocks: Mapping[int, Kept], anchors: Mapping[int, Kept], whose: WhoseOf) -> list[Run]:
    runs: list[Run] = []
    span: list[Kept] = []
    for index in sorted(blocks):
        if span and index != span[-1].index + 1:
            runs.append(_run(span, anchors, whose))
            span = []
        span.append(blocks[index])
    return [*runs, _run(span, anchors, whose)] if span else runs


def _run(span: Sequence[Kept], anchors: Mapping[int, Kept], whose: WhoseOf) -> Run:
    first, last = span[0], span[-1]
    return Run(
        whose=whose(first.owner),
        chain=tuple(last.chain[: last.index + 1]),
        start=first.index,
        blocks=[_part(PartKind.BLOCK, item) for item in span],
        exact=[item.full_window for item in span],
        anchors={
            i: _part(PartKind.ANCHOR, anchors[i])
            for i in range(first.index, last.index + 1)
            if i in anchors
        },
        retention=Retention(first.owner.retention),
    )


def _has_anchor(hit: Hit, index: int) -> bool:
    """One that is no less exact than its block: they may come from different workers."""
    anchor, block = hit.anchors.get(index), hit.blocks[index - hit.start]
    return anchor is not None and (anchor.found.is_exact or not block.found.is_exact)


def _part(kind: PartKind, item: Kept) -> Part:
    view = memoryview(item.payload)
    return Part(kind, item.name, checksum(view), view)
