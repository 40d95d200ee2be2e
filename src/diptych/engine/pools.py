"""All pages of an engine: who gets which, what of a prefix is there already, when they come back.

Pages of a request are handed back when no plan that is out touches them any more (the fence).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from diptych.core.blocks import slot_name
from diptych.core.ids import BlockHash
from diptych.engine.anchors import AnchorCopy, AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.imports import Imports
from diptych.engine.prefix_cache import Entry
from diptych.engine.requests import Request, blocks_for
from diptych.engine.scheduler import Limits
from diptych.engine.slots import SlotPool
from diptych.engine.snapshots import SlotCopy, is_due
from diptych.engine.swap import SwapCopy, SwapSpace
from diptych.engine.tier import Owner, Snapshot


@dataclass(slots=True)
class Holding:
    """Pages on their way back."""

    blocks: tuple[int, ...] = ()
    slot: int = 0
    swapped: SwapCopy | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """What a request need not compute again: positions [0, length), whose pages are `entries`."""

    entries: tuple[Entry, ...] = ()
    length: int = 0
    anchored: bool = True  # the encoder windows at `length` can be loaded; else they are replayed
    branch: int = 0  # the cache holds blocks up to here; 0: no further than `length`
    slot: bytes = b""  # the whole slot at `length`, in place of an anchor


@dataclass(frozen=True, slots=True)
class Note:
    """A page that the cache tier may copy now: a block that was written, or its anchor."""

    owner: Owner
    chain: Sequence[BlockHash]
    index: int
    page: int
    is_anchor: bool
    full_window: bool


@dataclass(slots=True)
class Fence:
    """What a plan that is out holds back until it is retired."""

    holdings: list[Holding] = field(default_factory=list)
    saves: list[tuple[Request, AnchorCopy]] = field(default_factory=list)
    loads: list[AnchorCopy] = field(default_factory=list)
    snapshots: list[tuple[Request, SlotCopy]] = field(default_factory=list)


class Pools:
    """Blocks, slots, anchors and host pages of one engine."""

    def __init__(
        self,
        limits: Limits,
        blocks: BlockPool,
        slots: SlotPool,
        anchors: AnchorPool,
        space: SwapSpace,
    ) -> None:
        self.blocks = blocks
        self.slots = slots
        self.anchors = anchors
        self.space = space
        self._limits = limits
        self._fences: defaultdict[int, Fence] = defaultdict(Fence)  # by step
        self._retired = -1
        self._notes: list[Note | Snapshot] = []
        self.imports = Imports(blocks, anchors)
        blocks.cache.on_evict = anchors.forget

    def in_flight(self, request: Request) -> bool:
        """Whether a plan that is out touches the pages of a request."""
        return request.last_step > self._retired

    @property
    def num_coming(self) -> int:
        """Blocks that a fence holds back."""
        fences = self._fences.values()
        return sum(len(h.blocks) for fence in fences for h in fence.holdings)

    # Admission

    def hit(self, request: Request) -> Hit:
        """How much of a request's prompt is cached, as far as that may be used."""
        limits, chain = self._limits, request.chain
        if chain is None:
            return Hit()
        grain = limits.grain
        if request.resumed is not None:
            position, slot = request.resumed
            found = self._found(request, position // grain)
            if len(found) * grain == position:
                return Hit(tuple(found), position, slot=slot)
        usable = max(0, len(request.generation.prompt) - limits.keep) // grain
        found = self._found(request, usable)
        matched = len(found)
        anchored = matched
        while anchored and found[anchored - 1].name not in self.anchors:
            anchored -= 1
        take = anchored
        far = (matched - anchored) * grain > limits.window
        if not limits.deterministic and far and matched * grain > limits.window:
            take = matched
        return Hit(
            tuple(found[:take]),
            take * grain,
            anchored=take == anchored,
            branch=matched * grain if matched > take else 0,
        )

    def _found(self, request: Request, limit: int) -> list[Entry]:
        """What is cached of the first blocks, as far as the mode allows its use."""
        assert request.chain is not None
        found = self.blocks.cache.match(request.chain, request.tokens, limit)
        if self._limits.deterministic:
            full = (i for i, entry in enumerate(found) if not entry.full_window)
            del found[next(full, len(found)) :]
        return found

    def num_needed(self, request: Request, hit: Hit) -> int:
        """Blocks that admission takes from the free ones: for its tokens, and one row more."""
        positions = min(len(request.tokens) + 1, request.capacity)
        held = hit.length // self._limits.grain
        idle = self.blocks.num_idle([entry.page for entry in hit.entries])
        return blocks_for(positions, self._limits.grain) - held + idle

    def open(self, request: Request, hit: Hit) -> None:
        """Give pages to a request; they are known to be there."""
        pages = tuple(entry.page for entry in hit.entries)
        fresh = self.num_needed(request, hit) - self.blocks.num_idle(pages)
        self.blocks.share(pages)
        request.blocks = pages + self._take_blocks(fresh)
        request.slot = self._take_slot()
        request.launched = request.written = hit.length
        request.encoder_floor = request.replay_end = 0
        if not hit.anchored:
            request.launched = request.encoder_floor = hit.length - self._limits.window
            request.replay_end = hit.length
        chain = request.chain
        if chain is not None:
            chain.published = len(pages)
            chain.full_window = hit.anchored and all(e.full_window for e in hit.entries)
            chain.stops = self._stops(request, hit)
            for entry in hit.entries:
                self.blocks.cache.promote(entry, chain.retention)

    def load(self, request: Request, hit: Hit, step: int) -> AnchorCopy:
        """The order that brings the windows of an anchored hit into the request's slot."""
        page = self.anchors.begin_load(hit.entries[-1].name)
        order = AnchorCopy(request.slot, page, hit.length)
        self._fences[step].loads.append(order)
        return order

    def reserve(self, positions: int) -> tuple[tuple[int, ...], int]:
        """Pages for so many positions; they are known to be there."""
        return self._take_blocks(blocks_for(positions, self._limits.grain)), self._take_slot()

    # Growth and preemption

    def grow(self, request: Request) -> bool:
        """One more block; False if there is none."""
        more = self.blocks.alloc(1)
        if more is None:
            return False
        request.blocks += more
        return True

    def swap_out(self, request: Request, step: int) -> SwapCopy | None:
        """Take the pages of a request away; the order that keeps their bytes, if there is room."""
        positions = max(request.written, request.replay_end)
        used = request.blocks[: blocks_for(positions, self._limits.grain)]
        order = None
        if used and self.space.fits(len(used)):
            order = self.space.take(used, request.slot)
            request.last_step = step
        written, launched = request.written, request.launched
        self.take_away(request)
        if order is not None:
            request.swapped, request.written, request.launched = order, written, launched
        return order

    def take_away(self, request: Request) -> None:
        """Take the pages of a request; it is computed again."""
        self._give_back(Holding(request.blocks, request.slot), request.last_step)
        request.blocks, request.slot = (), 0
        request.launched = request.written = 0
        if request.chain is not None:
            request.chain.published = 0

    def swap_in(self, request: Request, step: int) -> SwapCopy:
        """Give pages to a swapped request; the order that fills them. They are there."""
        copy = request.swapped
        assert copy is not None
        request.blocks = self._take_blocks(self.num_needed(request, Hit()))
        request.slot = self._take_slot()
        request.swapped = None
        self._give_back(Holding(swapped=copy), step)
        used = request.blocks[: len(copy.blocks)]
        return SwapCopy(used, request.slot, copy.host_blocks, copy.host_slot)

    def lose_swapped(self, request: Request) -> None:
        """The copy of a swapped request failed: it is computed again."""
        self._give_back(Holding(swapped=request.swapped), request.last_step)
        request.swapped = None
        request.launched = request.written = 0

    # Steps

    def save(self, request: Request, end: int, step: int) -> AnchorCopy | None:
        """The order that keeps the windows at `end`, where a piece ends, if they are wanted."""
        chain = request.chain
        if chain is None or end % self._limits.grain:
            return None
        if end not in chain.stops and end <= len(request.generation.prompt):
            return None
        page = self.anchors.take()
        if page is None:
            return None
        order = AnchorCopy(request.slot, page, end)
        self._fences[step].saves.append((request, order))
        return order

    def snapshot(self, request: Request, end: int, step: int) -> SlotCopy | None:
        """The order that copies the slot at `end`, where a piece ends, if that is due."""
        if not is_due(request, end, self._limits.snapshot_every):
            return None
        order = SlotCopy(request.slot, end)
        self._fences[step].snapshots.append((request, order))
        return order

    def publish(self, request: Request) -> None:
        """Put the full blocks that are written into the cache.

        A block that is there already is held instead of the request's own, so that a chain has no
        gap as long as somebody holds its end.
        """
        chain = request.chain
        if chain is None:
            return
        full = request.written // self._limits.grain
        if full <= chain.published:
            return
        pages = list(request.blocks)
        spare: list[int] = []
        for index in range(chain.published, full):
            name = chain.name(index, request.tokens)
            page = self.blocks.cache.publish(
                pages[index], name, chain.retention, full_window=chain.full_window
            )
            if page != pages[index]:
                self.blocks.share((page,))
                spare.append(pages[index])
                pages[index] = page
            else:
                self._note(request, index, page, is_anchor=False, full_window=chain.full_window)
            entry = self.blocks.cache.find(name)
            assert entry is not None
            self.blocks.cache.promote(entry, chain.retention)
            chain.full_window = chain.full_window and entry.full_window
        chain.published = full
        if spare:
            request.blocks = tuple(pages)
            self._give_back(Holding(tuple(spare)), request.last_step)

    def release(self, request: Request) -> None:
        """Take the pages of a request back for good."""
        holding = Holding(request.blocks, request.slot, request.swapped)
        request.swapped = None
        self._give_back(holding, request.last_step)
        newest = request.chain.newest_anchor if request.chain else None
        if newest is not None:
            self._note_anchor(request, newest)

    def take_notes(self) -> list[Note | Snapshot]:
        """What was written since the last time. The pages keep their bytes until the next plan."""
        notes, self._notes = self._notes, []
        return notes

    def free(self, holding: Holding) -> None:
        """Pages that no plan touches."""
        self.blocks.free(holding.blocks)
        if holding.slot:
            self.slots.free(holding.slot)
        if holding.swapped is not None:
            self.space.free(holding.swapped)

    def begin_retire(self, step: int) -> None:
        """Plan `step` has come back: what it touched may be given back from now on."""
        self._retired = step

    def end_retire(self, step: int) -> None:
        """What it wrote is recorded: free what it held back, keep the anchors it made."""
        fence = self._fences.pop(step, None)
        if fence is None:
            return
        for holding in fence.holdings:
            self.free(holding)
        for load in fence.loads:
            self.anchors.end_load(load.page)
        for request, save in fence.saves:
            self._keep_anchor(request, save)
        for request, snapshot in fence.snapshots:
            self._keep_snapshot(request, snapshot)

    def check(self, owners: list[Holding]) -> None:
        """Assert that every page has its owners, or is free."""
        fences = self._fences.values()
        owners = [*owners, *(h for fence in fences for h in fence.holdings)]
        owners += [Holding(each.all_pages) for each in self.imports.under_way]
        self.blocks.check([page for owner in owners for page in owner.blocks])
        self.slots.check([owner.slot for owner in owners if owner.slot])
        self.space.check([owner.swapped for owner in owners if owner.swapped is not None])
        self.anchors.check(
            [save.page for fence in fences for _, save in fence.saves] + self.imports.anchor_pages,
            [load.page for fence in fences for load in fence.loads],
        )

    def _stops(self, request: Request, hit: Hit) -> tuple[int, ...]:
        """Where chunks of a prompt end for an anchor: what another turn or a branch can adopt."""
        chain, grain = request.chain, self._limits.grain
        if chain is None or not self.anchors.num_anchors:
            return ()
        length = len(request.generation.prompt)
        wanted = {length // grain, max(0, length - self._limits.keep) // grain, hit.branch // grain}
        return tuple(
            blocks * grain
            for blocks in sorted(wanted)
            if blocks * grain > hit.length
            and chain.name(blocks - 1, request.tokens) not in self.anchors
        )

    def _keep_anchor(self, request: Request, save: AnchorCopy) -> None:
        chain = request.chain
        index = save.position // self._limits.grain - 1
        if (
            chain is None or chain.published <= index
        ):  # the sequence ended before, or the step broke
            self.anchors.give_back(save.page)
            return
        block = chain.names[index]
        entry = self.blocks.cache.find(block)
        assert entry is not None, "what a plan has written is in the cache until the next plan"
        if entry.full_window and not chain.full_window:
            self.anchors.give_back(save.page)  # the windows are not as good as the block
            return
        is_output = save.position > len(request.generation.prompt)
        if not self.anchors.attach(block, save.page):
            return
        if is_output:
            if chain.newest_anchor is not None:
                self.anchors.forget(chain.newest_anchor)
            chain.newest_anchor = block
        if not is_output or request.ended:  # of an answer, the last one is enough
            self._note_anchor(request, block)

    def _keep_snapshot(self, request: Request, order: SlotCopy) -> None:
        chain = request.chain
        blocks = order.position // self._limits.grain
        if request.ended or chain is None or chain.published < blocks:
            return  # nobody will go on from there, or the step broke
        name = slot_name(chain.names[blocks - 1], request.floor)
        self._notes.append(Snapshot(request.owner, name, order.payload))

    def _note_anchor(self, request: Request, block: BlockHash) -> None:
        """The tier keeps an anchor with its block: it is offered again, and rarely taken."""
        chain, page = request.chain, self.anchors.page(block)
        entry = self.blocks.cache.find(block)
        if chain is None or page is None or entry is None:
            return
        index = chain.names.index(block)
        self._note(request, index, entry.page, is_anchor=False, full_window=entry.full_window)
        self._note(request, index, page, is_anchor=True, full_window=entry.full_window)

    def _note(
        self, request: Request, index: int, page: int, *, is_anchor: bool, full_window: bool
    ) -> None:
        chain = request.chain
        if chain is None or chain.kept_from is None or index < chain.kept_from:
            return
        note = Note(request.owner, chain.names, index, page, is_anchor, full_window)
        self._notes.append(note)

    def _give_back(self, holding: Holding, last_step: int) -> None:
        if last_step > self._retired:
            self._fences[last_step].holdings.append(holding)
        else:
            self.free(holding)

    def _take_blocks(self, count: int) -> tuple[int, ...]:
        blocks = self.blocks.alloc(count)
        assert blocks is not None, "blocks were promised that are not free"
        return blocks

    def _take_slot(self) -> int:
        slot = self.slots.take()
        assert slot is not None, "a slot was promised that is not free"
        return slot
