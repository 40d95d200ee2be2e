"""An engine and its cache tier: bring what a prompt need not compute, keep what was computed."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from diptych.core.ids import Key
from diptych.core.layout import Layout
from diptych.engine.imports import Import
from diptych.engine.ledger import Ledger, Missing
from diptych.engine.loading import Load, Rates, choose
from diptych.engine.pools import Note
from diptych.engine.requests import Request
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


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of one load: ok, partial, or failed."""

    result: str
    size_bytes: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Arrived:
    """The blocks of an import whose bytes were verified, from its first on; its anchor is last."""

    blocks: Sequence[Stored] = ()
    is_whole: bool = False


class Tiering:
    """Of one engine. `order` runs an action as `ask` does, behind all before it, for nobody."""

    def __init__(
        self,
        tier: Tier,
        ledger: Ledger,
        pages: PageBytes,
        layout: Layout,
        rates: Rates,
        *,
        ask: Ask,
        order: Callable[[Callable[[], object]], None],
        on_load: Callable[[Loaded], None],
    ) -> None:
        self._tier = tier
        self._ledger = ledger
        self._pages = pages
        self._layout = layout
        self._rates = rates
        self._ask = ask
        self._order = order
        self._on_load = on_load

    async def bring(self, key: Key) -> None:
        """Load what the tier has of a prompt that is being prepared, if that is faster.

        Whatever goes wrong, the prompt is computed; cancelled, it leaves no page behind.
        """
        if await self._resume(key):
            return
        missing = await self._ask(lambda: self._ledger.missing(key))
        if missing is None:
            return
        found = await self._tier.find(missing.owner, missing.chain, missing.local.anchored)
        stored = found.stored
        load = self._choose(missing, stored)
        if load is None:
            if stored:
                self._rates.passed_over()
            return
        come = await self._load(missing.request, load, found)
        if come is None or come.is_whole:
            return
        # What did not come is not there. Maybe there is an anchor before it.
        missing = await self._ask(lambda: self._ledger.missing(key, is_again=True))
        if missing is None or missing.local.anchored != found.start:
            return
        end = min(load.first + len(come.blocks), load.blocks - 1)
        load = self._choose(missing, stored[: end - found.start])
        if load is not None:
            await self._load(missing.request, load, found)

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
            load = Load(num_here, len(spot.chain), has_anchor=False)
            come = await self._load(spot.request, load, found)
            if come is None or not come.is_whole:
                return False
        await self._ask(lambda: self._ledger.resume(key, spot.position, slot))
        log.info("resuming key=%s position=%d", key, spot.position)
        return True

    def _choose(self, missing: Missing, stored: Sequence[Stored]) -> Load | None:
        return choose(
            missing.local,
            stored,
            self._ledger.limits,
            self._rates,
            block_bytes=self._layout.block_bytes,
            anchor_bytes=self._layout.anchor_bytes,
        )

    async def _load(self, request: Request, load: Load, found: Found) -> Arrived | None:
        """None if there were no pages for it."""
        begun: list[Import] = []
        arrived = Arrived()
        try:
            await self._ask(lambda: begun.extend(self._begin(request, load)))
            for each in begun:
                arrived = await self._fill(each, found)
        finally:  # in order behind the beginning, even if nobody heard of that
            self._order(lambda: self._end(begun, arrived))
        return arrived if begun else None

    def _begin(self, request: Request, load: Load) -> list[Import]:
        begun = self._ledger.begin_import(request, load)
        return [] if begun is None else [begun]

    def _end(self, begun: list[Import], arrived: Arrived) -> None:
        for each in begun:
            self._ledger.end_import(each, arrived.blocks, has_anchor=arrived.is_whole)

    async def _fill(self, begun: Import, found: Found) -> Arrived:
        places = self._places(begun)
        coming = found.stored[begun.first - found.start :][: len(begun.pages)]
        began_s = time.perf_counter()
        num_filled = await self._tier.load(found, places)
        took_s = time.perf_counter() - began_s
        sizes = [len(place.into) for place in places]
        size_bytes = sum(sizes[:num_filled])
        self._rates.loaded(size_bytes, sum(sizes), took_s)
        result = "ok" if num_filled == len(places) else "partial" if num_filled else "failed"
        self._on_load(Loaded(result, size_bytes, took_s))
        log.debug("brought parts=%d of=%d s=%.4f", num_filled, len(places), took_s)
        return Arrived(coming[:num_filled], is_whole=num_filled == len(places))

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
        has_room = bool(notes) and self._tier.has_room(len(notes))
        return [self._copy(note) for note in notes] if has_room else []

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
