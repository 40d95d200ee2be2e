"""Stores on loopback, and what a worker needs to talk to them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from diptych.core.ids import BlockHash, Incarnation
from diptych.kvcache_store.caretaker import Caretaker
from diptych.kvcache_store.client import Retention, Run, StoreClient, Whose
from diptych.kvcache_store.desk import Desk
from diptych.kvcache_store.items import Item
from diptych.kvcache_store.quota import Quotas
from diptych.kvcache_store.service import SNAPSHOT_HASHES, StoreService
from diptych.kvcache_store.tenants import Tenants
from diptych.kvcache_store.tiers import Tiers
from diptych.kvcache_store.volume import Folder, Volume
from diptych.testing.chains import item_of, names_of, origin_of
from diptych.transport.frames import PartKind, Place
from diptych.transport.server import Server
from diptych.transport.tls import Credentials

MASTER_KEY = b"a master key for tests"


@dataclass
class RunningStore:
    """A node and its insides."""

    tiers: Tiers
    caretaker: Caretaker
    desk: Desk
    address: str


@asynccontextmanager
async def running_store(
    folder: Path,
    *,
    memory_bytes: int = 64 << 20,
    disk_bytes: int = 64 << 20,
    volume: Volume | None = None,
    encrypt: bool = False,
    clock: Callable[[], float] = time.time,
    incarnation: int = 7,
    listen: str = "127.0.0.1:0",
    quotas: Quotas = Quotas(),  # noqa: B008 - frozen
    read_s: float = 2.0,
    queue_bytes: int | None = None,
    silence_s: float = 10.0,
    credentials: Credentials | None = None,
    snapshot_hashes: int = SNAPSHOT_HASHES,
) -> AsyncIterator[RunningStore]:
    """One that serves, and is ended in good order."""
    tiers = Tiers(
        memory_bytes=memory_bytes,
        tenants=Tenants(folder / "tenants", MASTER_KEY, encrypt=encrypt),
        incarnation=Incarnation(incarnation),
        volume=(volume or Folder(folder / "segments")) if disk_bytes else None,
        disk_bytes=disk_bytes,
        quotas=quotas,
        fsync_s=0.05,
        read_s=read_s,
        queue_bytes=queue_bytes,
        clock=clock,
    )
    await tiers.open()
    writing = asyncio.create_task(tiers.run())
    caretaker = Caretaker(tiers, clock=clock)
    desk = Desk("store-1", tiers, caretaker, clock)
    service = StoreService(tiers, desk, silence_s=silence_s, snapshot_hashes=snapshot_hashes)
    try:
        async with Server(listen, [service.register], grace_s=0, credentials=credentials) as server:
            yield RunningStore(tiers, caretaker, desk, server.address)
        await tiers.flush()
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await tiers.close()


def whose_of(tenant: str, namespace: str = "model") -> Whose:
    """The same as chains.origin_of, as a worker says it."""
    origin = origin_of(tenant, namespace)
    return Whose(origin.namespace, origin.layout_hash, origin.scope, tenant)


@dataclass(frozen=True)
class Text:
    """A conversation of a tenant as blocks of one token each."""

    tenant: str
    tokens: Sequence[int]
    namespace: str = "model"
    size_bytes: int = 1000

    @property
    def whose(self) -> Whose:
        return whose_of(self.tenant, self.namespace)

    @property
    def chain(self) -> list[BlockHash]:
        return names_of(origin_of(self.tenant, self.namespace), self.tokens)

    def item(self, index: int, kind: PartKind = PartKind.BLOCK) -> Item:
        origin, chain = origin_of(self.tenant, self.namespace), self.chain
        parent = chain[index - 1] if index else origin.scope
        return item_of(origin, kind, chain[index], parent, index, self.size_bytes)

    def run(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        anchors: Sequence[int] = (),
        retention: Retention = Retention.CHAT,
        is_complete: bool = True,
        exact: bool = True,
    ) -> Run:
        """Blocks of the text, ready to be put."""
        chain = self.chain
        origin = origin_of(self.tenant, self.namespace)
        indices = range(start, len(chain) if end is None else end)
        blocks = [
            item_of(
                origin,
                PartKind.BLOCK,
                chain[i],
                chain[i - 1] if i else origin.scope,
                i,
                self.size_bytes,
            ).part
            for i in indices
        ]
        return Run(
            whose=self.whose,
            chain=tuple(chain),
            start=start,
            blocks=blocks,
            exact=[exact] * len(blocks),
            anchors={
                i: item_of(origin, PartKind.ANCHOR, chain[i], chain[i], i, self.size_bytes).part
                for i in anchors
            },
            retention=retention,
            is_complete=is_complete,
        )


@dataclass
class Shelf:
    """A BlockWriter with room for parts of one size."""

    kind: PartKind
    size_bytes: int
    rooms: dict[BlockHash, bytearray] = field(default_factory=dict)

    def place(self, name: BlockHash) -> Place:
        room = self.rooms.setdefault(name, bytearray(self.size_bytes))
        return Place(self.kind, memoryview(room))


@dataclass(frozen=True)
class Brought:
    """What a worker got of a text: blocks and anchors by index, each known to be right."""

    blocks: Mapping[int, bytes]
    anchors: Mapping[int, bytes]
    num_leading: int


async def bring(
    client: StoreClient, text: Text, *, deadline_s: float = 5.0, exact_only: bool = False
) -> Brought:
    """Look a text up and fetch all there is of it; AssertionError for a single wrong byte."""
    hit = await client.lookup(text.whose, text.chain, exact_only=exact_only)
    found: dict[PartKind, dict[int, bytes]] = {}
    leading = 0
    for kind, indices in (
        (PartKind.BLOCK, list(range(hit.start, hit.end))),
        (PartKind.ANCHOR, list(hit.anchors)),
    ):
        shelf = Shelf(kind, text.size_bytes)
        fetched = await client.get(hit, kind, indices, shelf, deadline_s=deadline_s)
        found[kind] = {i: bytes(shelf.rooms[text.chain[i]]) for i in fetched.done}
        for i, data in found[kind].items():
            assert data == bytes(text.item(i, kind).payload), f"{kind.name} {i} is wrong"
        if kind is PartKind.BLOCK:
            leading = fetched.num_leading
    return Brought(found[PartKind.BLOCK], found[PartKind.ANCHOR], leading)
