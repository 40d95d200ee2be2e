"""What a tier holds: parts with what must be known beside their bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from diptych.core.ids import BlockHash
from diptych.transport.frames import Part, PartKind

MAX_PARTS = 16  # of an extent


class Tier(IntEnum):
    """Where a part is found; on the wire, too."""

    NOWHERE = 0
    MEMORY = 1
    DISK = 2


@dataclass(frozen=True, slots=True)
class Found:
    """Where a part is; asking renewed nothing."""

    tier: Tier
    is_exact: bool = False


NOWHERE = Found(Tier.NOWHERE)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose bytes they are and who can read them: never mixed, in no tier."""

    namespace: bytes  # 16 bytes, core/blocks.py
    layout_hash: bytes  # 16 bytes
    scope: bytes  # 16 bytes: a tenant's root of the chain
    group: bytes  # 16 bytes: the tenant whose key, quota and deletion count


@dataclass(frozen=True, slots=True)
class Item:
    """A block, an anchor or a slot."""

    origin: Origin
    kind: PartKind
    name: BlockHash
    parent: bytes  # of a block: the one before it, or the scope, as of a slot; of an anchor: its
    # block
    index: int  # of the block in its chain, from 0; of the block that an anchor ends
    is_exact: bool  # full window: its bytes continue an unclamped or anchored computation
    crc32c: int
    payload: memoryview

    @property
    def part(self) -> Part:
        return Part(self.kind, self.name, self.crc32c, self.payload)

    def follows(self, before: "Item") -> bool:
        """Whether both may lie in one extent, side by side."""
        if self.origin != before.origin or self.kind is not before.kind:
            return False
        return self.kind is PartKind.ANCHOR or (
            self.parent == before.name and self.index == before.index + 1
        )


def runs(items: Sequence[Item]) -> Iterator[tuple[Item, ...]]:
    """Cut a sequence into what an extent can hold."""
    run: list[Item] = []
    for item in items:
        if run and (len(run) == MAX_PARTS or not item.follows(run[-1])):
            yield tuple(run)
            run = []
        run.append(item)
    if run:
        yield tuple(run)
