"""An engine and its cache tier: bring what a prompt need not compute, keep what was computed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from diptych.core.ids import Key
from diptych.core.layout import Layout
from diptych.engine.imports import Import
from diptych.engine.ledger import Ledger
from diptych.engine.loading import Load, Rates, choose
from diptych.engine.pools import Note
from diptych.engine.snapshots import Resumption
from diptych.engine.tier import Found, Kept, Place, Snapshot, Stored, Tier

log = logging.getLogger(__name__)

T = TypeVar("T")


class PageBytes(Protocol):
    """The arenas."""

    def block(self, page: int) -> memoryview: ...

    def anchor(self, page: int) -> memoryview: ...


class Ask(Protocol):
    """Runs an action on the engine thread, between two steps."""

    def __call__(self, action: Callable[[], T]) -> Awaitable[T]: ...


class Tiering:
    """Of one engine."""

    def __init__(
        self, tier: Tier, ledger: Ledger, pages: PageBytes, layout: Layout, rates: Rates, ask: Ask
    ) -> None:
        self._tier = tier
        self._ledger = ledger
        self._pages = pages
        self._layout = layout
        self._rates = rates
        self._ask = ask

    async def bring(self, key: Key) -> None:
        """Load what the tier has of a prompt that is being prepared, if that is faster.

        Whatever goes wrong, the prompt is computed; cancelled, it leaves no page behind.
        """
        if await self._resume(key):
            return
        missing = await self._ask(lambda: self._ledger.missing(key))
        if missing is None:
            return
        found = await self._tier.find(missing.owner, missing.chain, missing.start)
        load = choose(
            missing.local,
            found.stored,
            self._ledger.limits,
            self._rates,
            block_bytes=self._layout.block_bytes,
            anchor_bytes=self._layout.anchor_bytes,
        )
        if load is None:
            return
        begun = await self._begin(key, load)
        if begun is not None:
            await self._fill(key, begun, found)

    async def _resume(self, key: Key) -> bool:
        """Bring a slot of the output that exists already, and all blocks before it."""
        spots = await self._ask(lambda: self._ledger.resumptions(key))
        if not spots:
            return False
        owner, chain = spots[0].owner, spots[0].chain
        local = await self._ask(lambda: self._ledger.local(key, len(chain)))
        if local is None:
            return False
        found = await self._tier.find(owner, chain, local.blocks)
        reach = local.blocks + len(found.stored)
        slot = bytearray(self._layout.slot_bytes)
        for spot in (spot for spot in spots if len(spot.chain) <= reach):
            if await self._tier.load_slot(owner, spot.name, memoryview(slot)):
                return await self._go_on(key, spot, bytes(slot), local.blocks, found)
        log.info("no snapshot to resume from key=%s", key)
        return False

    async def _go_on(
        self, key: Key, spot: Resumption, slot: bytes, num_here: int, found: Found
    ) -> bool:
        if num_here < len(spot.chain):
            begun = await self._begin(key, Load(num_here, len(spot.chain), has_anchor=False))
            if begun is None or not await self._fill(key, begun, found):
                return False
        await self._ask(lambda: self._ledger.resume(key, spot.position, slot))
        log.info("resuming key=%s position=%d", key, spot.position)
        return True

    async def _begin(self, key: Key, load: Load) -> Import | None:
        """Pages, which nobody loses if the caller is cancelled meanwhile."""
        beginning = asyncio.ensure_future(self._ask(lambda: self._ledger.begin_import(key, load)))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            begun = await beginning
            if begun is not None:
                await self._end(key, begun, (), has_anchor=False)
            raise

    async def _fill(self, key: Key, begun: Import, found: Found) -> bool:
        """Whether all of it has come."""
        places = self._places(begun)
        coming = found.stored[begun.first - found.start :][: len(begun.pages)]
        num_filled = 0
        began_s = time.perf_counter()
        try:
            num_filled = await self._tier.load(found, places)
        finally:
            has_anchor = num_filled == len(places)
            ending = self._end(key, begun, coming[:num_filled], has_anchor=has_anchor)
            await asyncio.shield(asyncio.ensure_future(ending))
        took_s = time.perf_counter() - began_s
        size_bytes = sum(len(place.into) for place in places[:num_filled])
        if size_bytes:
            self._rates.loaded(size_bytes, took_s)
        log.debug("brought key=%s parts=%d of=%d s=%.4f", key, num_filled, len(places), took_s)
        return num_filled == len(places)

    async def _end(
        self, key: Key, begun: Import, arrived: Sequence[Stored], *, has_anchor: bool
    ) -> None:
        await self._ask(lambda: self._ledger.end_import(key, begun, arrived, has_anchor=has_anchor))

    def _places(self, begun: Import) -> list[Place]:
        blocks = enumerate(zip(begun.names, begun.pages, strict=True), begun.first)
        places = [Place(i, name, False, self._pages.block(page)) for i, (name, page) in blocks]
        if begun.anchor_page is not None:
            index, view = begun.end - 1, self._pages.anchor(begun.anchor_page)
            places.append(Place(index, begun.anchor_block, True, view))
        return places

    def copy_notes(self) -> list[Kept | Snapshot]:
        """Of what the last step wrote, what the tier has room for. On the engine thread.

        Copied here and now, because the next plan may give the pages to somebody else.
        """
        notes = self._ledger.take_notes()
        return [self._copy(note) for note in notes] if notes and self._tier.has_room() else []

    def keep(self, items: Sequence[Kept | Snapshot]) -> None:
        """Hand copies to the tier. On the asyncio thread."""
        self._tier.keep(items)

    def _copy(self, note: Note | Snapshot) -> Kept | Snapshot:
        if isinstance(note, Snapshot):
            return note
        view = self._pages.anchor(note.page) if note.is_anchor else self._pages.block(note.page)
        return Kept(
            note.owner, note.chain, note.index, note.is_anchor, note.full_window, bytes(view)
        )
