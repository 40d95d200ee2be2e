"""The cache tier as an engine uses it: blocks and anchors that outlive the pages of any worker.

`kvcache_store/client.py` stands behind it; what an engine asks never fails: a tier that is away has
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diptych.core.ids import BlockHash


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose blocks they are, and how long they shall be kept."""

    tenant: str
    scope: bytes  # h_0 of their chain
    retention: str  # one of core.request.RETENTIONS


@dataclass(frozen=True, slots=True)
class Stored:
    """A block that the tier holds."""

    tier: str  # where: memory, disk
    full_window: bool = True
    has_anchor: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a block, or of the anchor at its end, go."""

    name: BlockHash
    is_anchor: bool
    into: memoryview


@dataclass(frozen=True, slots=True)
class Kept:
    """A block, or the anchor at its end, for the tier to keep."""

    owner: Owner
    name: BlockHash
    is_anchor: bool
    full_window: bool
    payload: bytes
    parent: BlockHash | None = None  # the block before it; None: it is the first of its chain


class Tier(Protocol):
    """Called on the asyncio thread, but for `has_room`."""

    async def find(self, owner: Owner, names: Sequence[BlockHash]) -> Sequence[Stored]:
        """The first of these blocks, up to the first that is missing. Has a deadline of its own."""
        ...

    async def load(self, owner: Owner, places: Sequence[Place]) -> int:
        """How many places, from the first on, were filled with bytes that were verified.

        After it has returned or raised, no byte is written any more.
        """
        ...

    def has_room(self) -> bool:
        """Whether it would take more now. Any thread may ask."""
        ...

    def keep(self, items: Sequence[Kept]) -> None:
        """Take them, some time; it may drop any of them."""
        ...
