"""The memory tier: parts by name, the longest unused first to go, tails before heads.

Parts that came together, in a frame or by one read, stay views of the bytes they came in: nothing
is copied, and the bytes count until the last of them has gone. Knows no disk. Belongs to the event
loop's thread.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Item, Origin
from diptych.kvcache_store.retention import Kept, later
from diptych.kvcache_store.tenants import Admission
from diptych.transport.frames import PartKind

SHARED_FROM = 0.9  # of the bytes they lie in that parts must fill to keep them

Name = tuple[PartKind, BlockHash]


@dataclass(eq=False, slots=True)
class Lump:
    """Bytes that some parts lie in."""

    size_bytes: int
    num_parts: int = 0


@dataclass(slots=True)
class Held:
    """A part in memory."""

    item: Item
    kept: Kept
    admission: Admission
    lump: Lump
    is_settled: bool = False  # on disk, or on its way there; others wait for a second touch


class MemoryTier:
    """Parts up to a capacity."""

    def __init__(
        self,
        capacity_bytes: int,
        *,
        on_change: Callable[[bool, Sequence[BlockHash]], None] = lambda came, names: None,
        on_evict: Callable[[Held], None] = lambda held: None,
        is_pinned: Callable[[Sequence[BlockHash]], bool] = lambda names: False,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._held: OrderedDict[Name, Held] = OrderedDict()
        self._on_change = on_change
        self._on_evict = on_evict
        self._is_pinned = is_pinned

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_blocks(self) -> int:
        return sum(kind is PartKind.BLOCK for kind, _ in self._held)

    def blocks(self) -> list[BlockHash]:
        return [name for kind, name in self._held if kind is PartKind.BLOCK]

    def find(self, kind: PartKind, name: BlockHash, origin: Origin) -> Held | None:
        """A part of this origin; asking does not touch it."""
        held = self._held.get((kind, name))
        if held is None or held.item.origin != origin:
            return None
        return held

    def prefix(self, origin: Origin, kind: PartKind, names: Sequence[BlockHash]) -> list[Held]:
        """The parts up to the first that is missing, touched: the first of them stays longest."""
        found: list[Held] = []
        for name in names:
            held = self.find(kind, name, origin)
            if held is None:
                break
            found.append(held)
        for held in reversed(found):
            self._held.move_to_end((kind, held.item.name))
        return found

    def put(self, items: Sequence[Item], kept: Kept, admission: Admission) -> list[Held]:
        """Take parts; what is there already is touched and its promise prolonged.

        Returns what is held now: all of it, unless the parts are larger than the tier or the
        pinned ones leave no room. Their bytes must never change.
        """
        new = [item for item in items if (item.kind, item.name) not in self._held]
        lumps = self._lumps(new)
        taken: list[Held] = []
        fresh: list[BlockHash] = []
        for item in items:
            name = (item.kind, item.name)
            held = self._held.get(name)
            if held is not None:
                held.kept = later(held.kept, kept)
            elif name in lumps:
                one, lump = lumps[name]
                lump.num_parts += 1
                self._held[name] = held = Held(one, kept, admission, lump)
                if item.kind is PartKind.BLOCK:
                    fresh.append(item.name)
            else:
                continue
            taken.append(held)
        for held in reversed(taken):
            self._held.move_to_end((held.item.kind, held.item.name))
        self._on_change(True, fresh)
        return taken

    def drop(self, names: Iterable[Name]) -> int:
        """Forget parts, whoever wants them; bytes freed."""
        freed = 0
        gone: list[BlockHash] = []
        for kind, name in names:
            held = self._held.pop((kind, name), None)
            if held is not None:
                held.lump.num_parts -= 1
                freed += 0 if held.lump.num_parts else held.lump.size_bytes
                if kind is PartKind.BLOCK:
                    gone.append(name)
        self.used_bytes -= freed
        self._on_change(False, gone)
        return freed

    def of_group(self, group: bytes) -> list[Name]:
        return [name for name, held in self._held.items() if held.item.origin.group == group]

    def expire(self, now_s: float) -> int:
        """Forget what nothing is owed for any more; bytes freed."""
        return self.drop([name for name, held in self._held.items() if held.kept.is_over(now_s)])

    def _lumps(self, items: Sequence[Item]) -> dict[Name, tuple[Item, Lump]]:
        """Room for new parts: together if they fill the bytes they lie in, else as copies."""
        by_bytes: dict[int, list[Item]] = {}
        for item in items:
            by_bytes.setdefault(id(item.payload.obj), []).append(item)
        found: dict[Name, tuple[Item, Lump]] = {}
        for together in by_bytes.values():
            whole = memoryview(together[0].payload.obj).nbytes
            size = sum(len(item.payload) for item in together)
            if SHARED_FROM * whole <= size <= whole and self._make_room(whole):
                lump = Lump(whole)
                self.used_bytes += whole
                found |= {(item.kind, item.name): (item, lump) for item in together}
                continue
            for item in together:
                if self._make_room(len(item.payload)):
                    self.used_bytes += len(item.payload)
                    copy = replace(item, payload=memoryview(bytes(item.payload)))
                    found[item.kind, item.name] = (copy, Lump(len(item.payload)))
        return found

    def _make_room(self, size_bytes: int) -> bool:
        if size_bytes > self.capacity_bytes:
            return False
        spared: list[Name] = []
        while self.used_bytes + size_bytes > self.capacity_bytes and len(spared) < len(self._held):
            name = next(iter(self._held))
            if self._is_pinned([name[1]]):
                self._held.move_to_end(name)
                spared.append(name)
                continue
            self._on_evict(self._held[name])
            self.drop([name])
        return self.used_bytes + size_bytes <= self.capacity_bytes
