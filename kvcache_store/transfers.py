"""What a worker asks of the tier, and what it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Found, Tier
from diptych.kvcache_store.messages import Whose
from diptych.kvcache_store.retention import Retention
from diptych.transport.frames import Part


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part was found."""

    node: str
    found: Found


@dataclass(frozen=True, slots=True)
class Hit:
    """What the tier has of a chain: every block from `start` to `end`, and some anchors."""

    whose: Whose
    chain: tuple[BlockHash, ...]
    start: int
    blocks: tuple[Place, ...]
    anchors: Mapping[int, Place]  # by index of the block that the anchor ends
    pins: tuple[tuple[str, int], ...] = ()

    @property
    def end(self) -> int:
        """Index behind the last block found."""
        return self.start + len(self.blocks)

    def num_in(self, tier: Tier) -> int:
        return sum(place.found.tier is tier for place in self.blocks)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What arrived and checked; nothing else may be used."""

    wanted: tuple[int, ...]
    done: frozenset[int]
    size_bytes: int

    @property
    def num_leading(self) -> int:
        """How many of the first wanted ones are here without a gap."""
        for number, index in enumerate(self.wanted):
            if index not in self.done:
                return number
        return len(self.wanted)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive blocks of a chain to be put, with the anchors that lie among them.

    The payloads must stay as they are until `put` has returned.
    """

    whose: Whose
    chain: tuple[BlockHash, ...]  # from the chain's start
    start: int  # index of blocks[0]
    blocks: Sequence[Part]
    exact: Sequence[bool]
    anchors: Mapping[int, Part] = field(default_factory=dict)  # by index of their block
    retention: Retention = Retention.CHAT
    is_complete: bool = True  # a turn that is over; others reach the disk when touched again

    @property
    def size_bytes(self) -> int:
        parts = (*self.blocks, *self.anchors.values())
        return sum(len(part.payload) for part in parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run, in parts: sent are those that nobody had."""

    sent: int = 0
    on_disk: int = 0  # only if it was awaited
    dropped: int = 0  # no node, no room, no time: always legal
