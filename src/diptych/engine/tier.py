"""The cache tier as an engine uses it: blocks and anchors that outlive the pages of any worker.

`kvcache_store/client.py` stands behind it; what an engine asks never fails: a tier that is away has
nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from diptych.core.ids import BlockHash

TIERS = ("memory", "disk")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose blocks they are, and how long they shall be kept."""

    tenant: str
    scope: bytes  # h_0 of their chain
    retention: str  # one of core.request.RETENTIONS


@dataclass(frozen=True, slots=True)
class Stored:
    """A block that the tier holds."""

    tier: str  # where: one of TIERS
    full_window: bool = True
    has_anchor: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What the tier has of a chain, without a gap from block `start` on.

    A tier may make a class of its own of it, to remember where it found what.
    """

    owner: Owner
    start: int
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a block, or of the anchor at its end, go."""

    index: int  # of the block in its chain
    name: BlockHash
    is_anchor: bool
    into: memoryview


@dataclass(frozen=True, slots=True)
class Kept:
    """A block, or the anchor at its end, for the tier to keep."""

    owner: Owner
    chain: Sequence[BlockHash]  # from the first block on, at least to this one; may still grow
    index: int
    is_anchor: bool
    full_window: bool
    payload: bytes

    @property
    def name(self) -> BlockHash:
        return self.chain[self.index]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The slot of a sequence under way, for the tier to keep for a while."""

    owner: Owner
    name: BlockHash  # core.blocks.slot_name
    payload: bytes


class Tier(Protocol):
    """Called on the asyncio thread, but for `has_room`."""

    async def find(self, owner: Owner, chain: Sequence[BlockHash], start: int) -> Found:
        """The blocks from `start` on, up to the first that is missing. Has its own deadline."""
        ...

    async def load(self, found: Found, places: Sequence[Place]) -> int:
        """How many places, from the first on, were filled with bytes that were verified.

        After it has returned or raised, no byte is written any more.
        """
        ...

    def has_room(self, count: int) -> bool:
        """Whether it would take so many more now; if not, they are dropped. Any thread may ask."""
        ...

    async def load_slot(self, owner: Owner, name: BlockHash, into: memoryview) -> bool:
        """Whether a snapshot was there and verified; no byte is written after it returned."""
        ...

    def keep(self, items: Sequence[Kept | Snapshot]) -> None:
        """Take them in order, some time; it may drop any of them."""
        ...


OpenTier = Callable[[bytes, bytes], Tier]
"""Makes the tier of an engine with this namespace and this layout hash."""
