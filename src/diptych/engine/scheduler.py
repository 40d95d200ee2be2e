"""A step as data, and the rules it is made by. Knows lengths; knows no tensors, no threads."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diptych.engine.anchors import AnchorCopy
from diptych.engine.requests import Request
from diptych.engine.snapshots import SlotCopy, SlotFill
from diptych.engine.swap import SwapCopy

KEEP_MARGIN = 12  # rows of a prompt, beside a window, that its decoder layers always compute


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a step, and what the engine's mode allows."""

    grain: int  # tokens a block
    max_batch_tokens: int  # rows of a step, at least one a sequence
    window: int = 0  # W
    replay: bool = (
        False  # decoder layers see the end of a prompt only; without it nothing is cached
    )
    deterministic: bool = True  # a cached prefix is used up to its last anchor only
    tiered: bool = False  # what is written is noted for the cache tier
    snapshot_every: int = 0  # positions of output between copies of its slot for the tier; 0: none
    class_limits_s: tuple[float, ...] = (math.inf, 30.0, 120.0)  # of waiting in each of PRIORITIES

    @property
    def keep(self) -> int:
        return self.window + KEEP_MARGIN

    def floor(self, prompt_len: int) -> int:
        """R: where the decoder layers begin."""
        return max(0, prompt_len - self.keep) if self.replay else 0


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
    def lapsed(self) -> bool:
        """Whether nobody waits for it: its sequence has ended, or lost its pages as a step broke.

        Those pages are nobody else's before this step is retired, so its slot tells.
        """
        return self.request.ended or self.request.slot != self.slot

    @property
    def ends_prompt(self) -> bool:
        """Whether this is the last chunk of a prompt computed here."""
        request = self.request
        return self.samples and not request.adopted and self.end == len(request.generation.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step, as data. Whoever executes it does, in this order and before the next plan:

    1. `swap_ins`: copy host pages into pages; then `loads`: copy an anchor into a slot's rings;
       then `fills`: put bytes into a slot.
    2. the forward of `pieces`, if there are any.
    3. `saves`: copy a slot's windows into an anchor page, for the position at which its piece
       ended; `snapshots`: hand out a slot's bytes; then `swap_outs`: copy pages into host pages.

    A plan may have orders and no pieces: it is executed and committed like any other. No page or
    host page of an order is reused before the plan is committed (or failed).
    """

    pieces: tuple[Piece, ...] = ()
    step: int = 0  # counts plans that have something to execute
    loads: tuple[AnchorCopy, ...] = ()
    saves: tuple[AnchorCopy, ...] = ()
    swap_ins: tuple[SwapCopy, ...] = ()
    swap_outs: tuple[SwapCopy, ...] = ()
    fills: tuple[SlotFill, ...] = ()
    snapshots: tuple[SlotCopy, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to execute: not to be committed either."""
        return not (self.pieces or self.swap_outs)


def cut(request: Request, budget: int) -> int:
    """Positions of a sequence to compute in this step: no further than its next stop."""
    start, end = request.launched, len(request.tokens)
    if request.chain is not None:
        end = next((stop for stop in request.chain.stops if start < stop < end), end)
    return min(end - start, budget)


def urgency(request: Request) -> tuple[int, int]:
    """Who comes first when pages are short."""
    return request.rank, request.order


def victim(
    candidates: Iterable[Request],
    *,
    in_flight: Callable[[Request], bool],
    fits_host: Callable[[Request], bool],
    num_freed: Callable[[Request], int],
) -> Request | None:
    """Whose pages to take: of the least urgent class, and with the least lost for what is won."""

    def key(request: Request) -> tuple[int, bool, bool, float, int]:
        lost = request.launched / max(num_freed(request), 1)
        return -request.rank, in_flight(request), not fits_host(request), lost, -request.order

    return min(candidates, key=key, default=None)
