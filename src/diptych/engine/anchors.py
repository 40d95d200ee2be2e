"""Copies of the encoder layers' windows at some positions. Knows page numbers; knows no bytes.

An anchor belongs to the block that ends at its position: without it, whoever adopts the blocks of a
prefix has no windows to go on from.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.core.ids import BlockHash


@dataclass(frozen=True, slots=True)
class AnchorCopy:
    """The encoder windows of a sequence at `position`: records of [position - W, position).

    In the slot they lie in rings (position mod ring), in the anchor page in order of position;
    where position < W, the page has zeros in front. Anchor pages are numbered from 0.
    """

    slot: int
    page: int
    position: int


class AnchorPool:
    """Anchor pages 0 … num_anchors - 1: empty, being written, or an anchor that can be loaded."""

    def __init__(self, num_anchors: int) -> None:
        self.num_anchors = num_anchors
        self._empty = deque(range(num_anchors))
        self._anchors: OrderedDict[BlockHash, int] = OrderedDict()  # least recently used first
        self._loads: Counter[int] = Counter()  # by page: loads that are not done

    @property
    def num_used(self) -> int:
        return len(self._anchors)

    def __contains__(self, block: BlockHash) -> bool:
        return block in self._anchors

    def page(self, block: BlockHash) -> int | None:
        """Where the anchor of a block lies; None if it has none."""
        return self._anchors.get(block)

    def take(self) -> int | None:
        """A page to write to; the least recently used anchor makes room. None if none can."""
        if self._empty:
            return self._empty.popleft()
        for block, page in self._anchors.items():
            if not self._loads[page]:
                del self._anchors[block]
                return page
        return None

    def attach(self, block: BlockHash, page: int) -> bool:
        """A page is written: it belongs to this block. False if the block has an anchor already."""
        if block in self._anchors:
            self._anchors.move_to_end(block)
            self.give_back(page)
            return False
        self._anchors[block] = page
        return True

    def give_back(self, page: int) -> None:
        """A page that was taken is not needed."""
        self._empty.append(page)

    def begin_load(self, block: BlockHash) -> int:
        """The page of a block's anchor; it stays until `end_load`."""
        self._anchors.move_to_end(block)
        page = self._anchors[block]
        self._loads[page] += 1
        return page

    def end_load(self, page: int) -> None:
        self._loads[page] -= 1
        if not self._loads[page]:
            del self._loads[page]

    def forget(self, block: BlockHash) -> None:
        """A block is gone, or its anchor has been superseded; one being loaded stays."""
        page = self._anchors.get(block)
        if page is not None and not self._loads[page]:
            del self._anchors[block]
            self._empty.append(page)

    def check(self, taken: Sequence[int], loading: Sequence[int]) -> None:
        """Assert that each page is empty, an anchor, or in `taken`, and what is being loaded."""
        pages = [*self._empty, *self._anchors.values(), *taken]
        assert sorted(pages) == list(range(self.num_anchors)), "an anchor page is lost or doubled"
        assert self._loads == Counter(loading), "loads differ"
