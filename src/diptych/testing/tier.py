"""A cache tier in a dictionary, that can be slow, forgetful, or stop in the middle."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from diptych.core.ids import BlockHash
from diptych.engine.tier import Found, Kept, Owner, Place, Snapshot, Stored


@dataclass
class MemoryTier:
    """Holds all it is given, until a test takes it away."""

    name: str = "memory"
    room: bool = True
    stops_after: int | None = None  # places that a load fills before it gives up
    blocks: dict[tuple[bytes, BlockHash], Kept] = field(default_factory=dict)
    anchors: dict[tuple[bytes, BlockHash], Kept] = field(default_factory=dict)
    slots: dict[tuple[bytes, BlockHash], Snapshot] = field(default_factory=dict)
    may_find: asyncio.Event = field(default_factory=asyncio.Event)
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    finds: int = 0
    loads: int = 0

    def __post_init__(self) -> None:
        self.may_find.set()
        self.may_load.set()

    async def find(self, owner: Owner, chain: Sequence[BlockHash], start: int) -> Found:
        self.finds += 1
        await self.may_find.wait()
        stored: list[Stored] = []
        for name in chain[start:]:
            block = self.blocks.get((owner.scope, name))
            if block is None:
                break
            has_anchor = (owner.scope, name) in self.anchors
            stored.append(Stored(self.name, block.full_window, has_anchor))
        return Found(owner, start, tuple(stored))

    async def load(self, found: Found, places: Sequence[Place]) -> int:
        self.loads += 1
        for number, place in enumerate(places):
            if number == self.stops_after:
                return number
            await self.may_load.wait()
            kept = (self.anchors if place.is_anchor else self.blocks)[found.owner.scope, place.name]
            place.into[:] = kept.payload
        return len(places)

    def has_room(self, count: int) -> bool:
        return self.room

    async def load_slot(self, owner: Owner, name: BlockHash, into: memoryview) -> bool:
        snapshot = self.slots.get((owner.scope, name))
        if snapshot is None:
            return False
        into[:] = snapshot.payload
        return True

    def keep(self, items: Sequence[Kept | Snapshot]) -> None:
        for item in items:
            if isinstance(item, Snapshot):
                self.slots[item.owner.scope, item.name] = item
                continue
            kind = self.anchors if item.is_anchor else self.blocks
            kind[item.owner.scope, item.name] = item
