"""Which block pages are free. Knows page numbers; knows no bytes."""

from collections import deque
from collections.abc import Sequence

PADDING_PAGE = 0  # never handed out: what padding rows and absent blocks point at


class BlockPool:
    """Pages 1 … num_blocks. The free list is first in, first out, so reuse comes late."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(1, num_blocks + 1))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def alloc(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages, or none at all while others hold them."""
        if count > len(self._free):
            return None
        pages = tuple(self._free.popleft() for _ in range(count))
        self._taken.update(pages)
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back; each must be taken."""
        assert self._taken.issuperset(pages), f"freeing pages that are not taken: {pages}"
        self._taken.difference_update(pages)
        self._free.extend(pages)

    def check(self, owned: Sequence[int]) -> None:
        """Assert that exactly the pages in `owned` are taken, each once, and no page is lost."""
        assert len(set(owned)) == len(owned), "a page has two owners"
        assert set(owned) == self._taken, "taken pages and owned pages differ"
        assert len(self._free) + len(self._taken) == self.num_blocks, "a page is lost or doubled"
        assert set(self._free).isdisjoint(self._taken), "a taken page is in the free list"
        assert PADDING_PAGE not in self._taken and PADDING_PAGE not in self._free
