"""The cache tier of a random world: marks by name, which come late, in part, or never."""

import random
from dataclasses import dataclass, field

from diptych.core.ids import BlockHash, Key
from diptych.engine.imports import Import
from diptych.engine.ledger import Missing
from diptych.engine.pools import Note
from diptych.engine.tier import Stored

Mark = tuple[int, int]  # a position and the value of the position before it

NOT_HERE = (-2, 0)  # on a page that waits for what was asked for


@dataclass
class Shelf:
    """Holds what it was given, until it loses it."""

    grain: int
    blocks: dict[BlockHash, tuple[Mark, Stored]] = field(default_factory=dict)
    anchors: dict[BlockHash, Mark] = field(default_factory=dict)
    _ever: dict[BlockHash, Mark] = field(default_factory=dict)  # what a name was first given to

    def keep(self, note: Note, mark: Mark, tier: str) -> None:
        """A name has tokens and scope in it: it can only ever stand for one mark."""
        name = note.chain[note.index]
        assert note.owner.retention != "none", "kept against its owner's will"
        assert mark[0] == (note.index + 1) * self.grain, "noted before it was written"
        assert self._ever.setdefault(name, mark) == mark, "noted, and given away before it was kept"
        if note.is_anchor:
            self.anchors[name] = mark
        else:
            self.blocks[name] = mark, Stored(tier, note.full_window)

    def lose(self, rng: random.Random) -> None:
        shelf = rng.choice([self.blocks, self.anchors])
        if shelf:
            del shelf[rng.choice(list(shelf))]  # type: ignore[attr-defined]

    def find(self, missing: Missing) -> list[Stored]:
        """Without a gap from the block that is asked for on."""
        found: list[Stored] = []
        for name in missing.chain[missing.start :]:
            if name not in self.blocks:
                break
            _, stored = self.blocks[name]
            found.append(Stored(stored.tier, stored.full_window, name in self.anchors))
        return found


@dataclass
class Asked:
    """Somebody was told what the shelf holds, and has no pages for it yet."""

    key: Key
    missing: Missing
    stored: list[Stored]


@dataclass(frozen=True)
class Fill:
    """Where a mark goes; None: it was lost after it was found."""

    pages: dict[int, Mark]
    page: int
    mark: Mark | None


@dataclass
class Delivery:
    """Pages that are being filled, one at a time."""

    key: Key
    begun: Import
    coming: list[Stored]
    fills: list[Fill]
    num_filled: int = 0

    def fill_one(self) -> None:
        if not self.is_whole and (fill := self.fills[self.num_filled]).mark is not None:
            fill.pages[fill.page] = fill.mark
            self.num_filled += 1

    @property
    def is_whole(self) -> bool:
        return self.num_filled == len(self.fills)
