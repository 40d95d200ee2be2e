"""Copies of a running sequence's slot, with which another worker goes on if this one dies.

Blocks and slot together are all that a sequence has: from a copy at some position the rows behind
it give the bits they would have given here. Knows positions; knows no bytes but those it carries.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from diptych.core.blocks import slot_name
from diptych.core.ids import BlockHash
from diptych.engine.requests import Request
from diptych.engine.tier import Owner

NEWEST = 3  # of a sequence that are asked for: the last one may not have been kept in time


@dataclass(slots=True, eq=False)
class SlotCopy:
    """An order: keep the bytes of a slot as they are when `position` positions are written.

    Whoever executes it fills in `payload`; the slot is used again at once.
    """

    slot: int
    position: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class SlotFill:
    """An order: put the bytes of a copy into a slot."""

    slot: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Resumption:
    """A copy that may exist, and the blocks before it."""

    request: Request
    owner: Owner
    name: BlockHash
    position: int
    chain: tuple[BlockHash, ...]


def is_due(request: Request, end: int, every: int) -> bool:
    """Whether the slot is copied when `end` positions of a request are written.

    Output only: a prompt is computed faster than it was decoded, and has its anchors.
    """
    if not every or end % every or request.chain is None or request.chain.kept_from is None:
        return False
    return end > len(request.generation.prompt)


def resumptions(request: Request, every: int, grain: int) -> Iterator[Resumption]:
    """Where a request with forced output might go on, the furthest first."""
    chain, prompt_len = request.chain, len(request.generation.prompt)
    if not every or chain is None or chain.kept_from is None:
        return
    last = (len(request.tokens) - 1) // every * every  # at least one row must be computed
    for position in range(last, max(prompt_len, last - NEWEST * every), -every):
        blocks = position // grain
        name = slot_name(chain.name(blocks - 1, request.tokens), request.floor)
        yield Resumption(request, request.owner, name, position, tuple(chain.names[:blocks]))
