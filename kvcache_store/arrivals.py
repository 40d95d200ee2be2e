"""The parts of one PutBlocks stream: what was announced, what is wanted, what came and is right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Item, Origin
from diptych.transport.frames import BadFrame, Fault, Part, PartKind, checksum, decode

Name = tuple[PartKind, BlockHash]


@dataclass(frozen=True, slots=True)
class Expected:
    """A part before its bytes are there."""

    kind: PartKind
    name: BlockHash
    parent: bytes
    index: int
    is_exact: bool


def announced(
    blocks: Sequence[BlockHash],
    exact: bytes,
    anchors: Sequence[int],
    *,
    parent: bytes,
    first_index: int,
) -> list[Expected]:
    """Blocks in order, then anchors by the position of the block they end."""
    parents = [parent, *blocks[:-1]]
    found = [
        Expected(PartKind.BLOCK, name, before, first_index + i, bool(exact[i]))
        for i, (name, before) in enumerate(zip(blocks, parents, strict=True))
    ]
    found += [
        Expected(PartKind.ANCHOR, blocks[i], blocks[i], first_index + i, bool(exact[i]))
        for i in anchors
    ]
    return found


def announced_slots(names: Sequence[BlockHash], *, scope: bytes) -> list[Expected]:
    """Slots: each stands for itself."""
    return [Expected(PartKind.SLOT, name, scope, 0, is_exact=True) for name in names]


class Arrivals:
    """Takes frames in order; every part is checked before anybody else sees it."""

    def __init__(self, origin: Origin, wanted: Sequence[Expected]) -> None:
        self._origin = origin
        self._missing = {(one.kind, one.name): one for one in wanted}
        self._next_seq = 0
        self.has_ended = not wanted

    @property
    def missing(self) -> list[Expected]:
        """What is wanted and has not come yet, in order."""
        return list(self._missing.values())

    def accept(self, data: bytes) -> list[Item]:
        """A frame's parts, or BadFrame and nothing of it."""
        frame = decode(data)
        if self.has_ended or frame.seq != self._next_seq:
            raise BadFrame(
                Fault.SEQUENCE, f"frame {frame.seq} came where {self._next_seq} was expected"
            )
        self._next_seq += 1
        return self.take(frame.parts, is_last=frame.is_last)

    def take(self, parts: Sequence[Part], *, is_last: bool) -> list[Item]:
        """Likewise for parts that came by another way than a frame."""
        items = list(self._items(parts))
        self.has_ended = is_last
        for item in items:
            del self._missing[item.kind, item.name]
        return items

    def _items(self, parts: Sequence[Part]) -> Iterator[Item]:
        seen: set[Name] = set()
        for part in parts:
            one = self._missing.get((part.kind, part.name))
            if one is None:
                raise BadFrame(Fault.UNKNOWN, f"part {part.name.hex()} is not wanted")
            if (part.kind, part.name) in seen:
                raise BadFrame(Fault.DUPLICATE, f"part {part.name.hex()} came twice")
            if not part.payload:
                raise BadFrame(Fault.SIZE, f"part {part.name.hex()} is empty")
            if checksum(part.payload) != part.crc32c:
                raise BadFrame(
                    Fault.CHECKSUM, f"part {part.name.hex()} does not match its checksum"
                )
            seen.add((part.kind, part.name))
            yield Item(
                origin=self._origin,
                kind=one.kind,
                name=one.name,
                parent=one.parent,
                index=one.index,
                is_exact=one.is_exact,
                crc32c=part.crc32c,
                payload=part.payload,
            )
