"""What the next step computes. Knows lengths and counts; knows no tensors, no threads, no clock."""

from collections.abc import Iterable
from dataclasses import dataclass

from diptych.engine.anchors import AnchorCopy
from diptych.engine.requests import Request, blocks_for
from diptych.engine.swap import SwapCopy


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a step."""

    grain: int  # tokens a block
    max_batch_tokens: int  # rows of a step, at least one a sequence


@dataclass(slots=True)  # not frozen: that costs 3 us each, and a step makes hundreds
class Piece:
    """Positions [start, start + count) of one sequence, computed in one step.

    A snapshot of its request as the step needs it: the request moves on while the step runs, so
    `request` is for what never changes (generation) and for tokens at positions below `end`.
    """

    request: Request
    start: int
    count: int
    samples: bool  # the last row is followed by a new token, at position `end`
    blocks: tuple[int, ...]  # pages in order of position, as far as this piece reads and writes
    slot: int
    unknown: bool = False  # the only token is what the previous step samples for this slot
    floor: int = 0  # of the decoder's windows: rows below it stop at the border
    encoder_floor: int = 0  # of the encoder's windows: over 0 where a prefix came without anchor
    replayed: int = 0  # the first rows so many: their entries are cached and not written again

    @classmethod
    def of(cls, request: Request, start: int, count: int) -> "Piece":
        """Positions of a request all of whose tokens are known."""
        return cls(
            request,
            start,
            count,
            samples=start + count == len(request.tokens),
            blocks=request.blocks,
            slot=request.slot,
            floor=request.floor,
            encoder_floor=request.encoder_floor,
        )

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def ends_prompt(self) -> bool:
        """Whether this is the last chunk of a prompt computed here."""
        request = self.request
        return self.samples and not request.adopted and self.end == len(request.generation.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step, as data. Whoever executes it does, in this order and before the next plan:

    1. `swap_ins`: copy host pages into pages; then `loads`: copy an anchor into a slot's rings.
    2. the forward of `pieces`, if there are any.
    3. `saves`: copy a slot's windows into an anchor page, for the position at which its piece
       ended; then `swap_outs`: copy pages into host pages.

    A plan may have orders and no pieces: it is executed and committed like any other. No page or
    host page of an order is reused before the plan is committed (or failed).
    """

    pieces: tuple[Piece, ...] = ()
    step: int = 0  # counts plans that have something to execute
    loads: tuple[AnchorCopy, ...] = ()
    saves: tuple[AnchorCopy, ...] = ()
    swap_ins: tuple[SwapCopy, ...] = ()
    swap_outs: tuple[SwapCopy, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to execute: not to be committed either."""
        return not (self.pieces or self.swap_outs)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to compute, and how many requests from the front of the queue get pages for it."""

    rows: tuple[tuple[Request, int], ...] = ()  # request, positions
    admit: int = 0


def choose(
    running: Iterable[Request],
    waiting: Iterable[Request],
    free_blocks: int,
    free_slots: int,
    limits: Limits,
) -> Choice:
    """Choose the rows of the next step. Touches nothing.

    1. Every sequence that is one row away from a token gets its row.
    2. Prompts under way go on, oldest first, as far as the row budget reaches.
    3. The queue is admitted in order while budget, a slot, and all blocks a request may ever need
       are there; so whatever was admitted can finish, and the first that does not fit holds
       back those behind it.
    """
    budget = limits.max_batch_tokens
    rows: list[tuple[Request, int]] = []

    def compute(request: Request) -> None:
        nonlocal budget
        count = min(request.remaining, budget)
        rows.append((request, count))
        budget -= count

    prompts: list[Request] = []
    for request in running:
        if request.is_done_when_retired:
            continue
        if request.remaining == 1:
            compute(request)
        else:
            prompts.append(request)
    for request in prompts:
        if budget <= 0:
            break
        compute(request)
    admit = 0
    for request in waiting:
        need = blocks_for(request.capacity, limits.grain)
        if budget <= 0 or free_slots == 0 or need > free_blocks:
            break
        free_slots -= 1
        free_blocks -= need
        admit += 1
        compute(request)
    assert budget >= 0, "more sequences are running than a step has rows"
    return Choice(tuple(rows), admit)
