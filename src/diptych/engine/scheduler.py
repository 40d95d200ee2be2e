"""What the next step computes. Knows lengths and counts; knows no tensors, no threads, no clock."""

from collections.abc import Iterable
from dataclasses import dataclass

from diptych.engine.requests import Request, blocks_for


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a step."""

    grain: int  # tokens a block
    max_batch_tokens: int  # rows of a step, at least one a sequence


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions [start, start + count) of one sequence, computed in one step.

    Windows hold nothing below the floors: neither of the encoder's layers, where a cached prefix
    was adopted without an anchor, nor of the decoder's, where bounded replay begins.
    """

    request: Request
    start: int
    count: int
    floor: int = 0  # of the decoder's windows: rows below it stop at the border
    encoder_floor: int = 0  # of the encoder's windows
    replayed: int = 0  # the first rows so many: their entries are cached and not written again

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """Whether the last row is followed by a new token."""
        return self.end == len(self.request.tokens)

    @property
    def ends_prompt(self) -> bool:
        """Whether this is the last chunk of a prompt computed here."""
        request = self.request
        return self.samples and not request.adopted and self.end == len(request.generation.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step; `admit` counts the requests from the front of the queue that get pages."""

    pieces: tuple[Piece, ...] = ()
    admit: int = 0


def plan(
    running: Iterable[Request],
    waiting: Iterable[Request],
    free_blocks: int,
    free_slots: int,
    limits: Limits,
) -> Plan:
    """Choose the rows of the next step. Touches nothing.

    1. Every sequence that is one row away from a token gets its row.
    2. Prompts under way go on, oldest first, as far as the row budget reaches.
    3. The queue is admitted in order while budget, a slot, and all blocks a request may ever need
       are there; so whatever was admitted can finish, and the first that does not fit holds
       back those behind it.
    """
    budget = limits.max_batch_tokens
    pieces: list[Piece] = []

    def compute(request: Request) -> None:
        nonlocal budget
        count = min(request.remaining, budget)
        pieces.append(Piece(request, request.written, count))
        budget -= count

    prompts: list[Request] = []
    for request in running:
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
    return Plan(tuple(pieces), admit)
