"""What workers and stores say to each other, as values."""

from dataclasses import dataclass

from diptych.core.ids import BlockHash
from diptych.kvcache_store.arrivals import Expected
from diptych.kvcache_store.items import Found, Tier
from diptych.kvcache_store.retention import Retention
from diptych.transport.frames import PartKind


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose bytes, as a worker says it."""

    namespace: bytes
    layout_hash: bytes
    scope: bytes
    tenant: str


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a node."""

    incarnation: int
    age_s: float
    was_empty: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """How far the news of a node are known: up to which number of which life."""

    incarnation: int = 0  # 0: nothing is known
    seq: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """Blocks that came to a tier of a node or went from it; or a page of all that it holds."""

    heard: Heard  # with this
    tier: Tier
    came: bool
    names: tuple[BlockHash, ...]
    is_snapshot: bool = False  # its first page: what was known of the node before is void
    is_last: bool = True  # False: more pages of a snapshot follow


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A node's answer, for each hash that was asked."""

    blocks: list[Found]
    anchors: list[Found]
    pin: int
    life: Life


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a put is about."""

    whose: Whose
    retention: Retention
    expected: tuple[Expected, ...]
    is_complete: bool
    await_disk: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node lacks of what was announced."""

    blocks: list[BlockHash]
    anchors: list[BlockHash]
    slots: list[BlockHash]

    def by_kind(self) -> list[tuple[PartKind, list[BlockHash]]]:
        """In the order in which they are sent."""
        names = self.blocks, self.anchors, self.slots
        return list(zip((PartKind.BLOCK, PartKind.ANCHOR, PartKind.SLOT), names, strict=True))


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of what was sent, in parts."""

    retention: str
    taken: int
    on_disk: int
    dropped: int


@dataclass(frozen=True, slots=True)
class WindowOffer:
    """Where a client's window is to be found on this host."""

    pid: int
    fd: int
    num_slots: int
    slot_bytes: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """A get over a shared window, of parts that are equally long."""

    whose: Whose
    kind: PartKind
    names: tuple[BlockHash, ...]
    part_bytes: int
