"""Who holds which block page. Knows page numbers; knows no bytes."""

from collections import Counter, deque
from collections.abc import Sequence

from diptych.engine.prefix_cache import PrefixCache

PADDING_PAGE = 0  # never handed out: what padding rows and absent blocks point at


class BlockPool:
    """Pages 1 … num_blocks. Each is held (by one or more), cached (held by none, but its block has
    a name), or empty.

    Empty pages go first in, first out, so reuse comes late; cached ones follow when they are out.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.cache = PrefixCache()
        self._empty = deque(range(1, num_blocks + 1))
        self._holders = [0] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        """Pages that can be had: empty or cached."""
        return len(self._empty) + self.cache.num_idle

    def alloc(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages, or none at all while others hold them."""
        if count > len(self._empty) and count > self.num_free:
            return None
        pages = tuple(
            self._empty.popleft() if self._empty else self.cache.evict() for _ in range(count)
        )
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Hold pages whose blocks are in the cache."""
        for page in pages:
            if not self._holders[page]:
                self.cache.wake(page)
            self._holders[page] += 1

    def free(self, pages: Sequence[int]) -> None:
        """Let go of pages that are held, given in order of position."""
        for page in reversed(pages):
            assert self._holders[page] > 0, f"freeing page {page}, which nobody holds"
            self._holders[page] -= 1
            if not self._holders[page] and not self.cache.rest(page):
                self._empty.append(page)

    def num_idle(self, pages: Sequence[int]) -> int:
        """How many of these pages nobody holds: sharing them leaves so many fewer free."""
        return sum(not self._holders[page] for page in pages)

    def num_sole(self, pages: Sequence[int]) -> int:
        """How many of these pages have a single holder: what letting go of them would free."""
        return sum(self._holders[page] == 1 for page in pages)

    def check(self, held: Sequence[int]) -> None:
        """Assert that exactly the pages in `held` are held, as often as they occur there."""
        holders = Counter(held)
        assert PADDING_PAGE not in holders and not self._holders[PADDING_PAGE]
        for page in range(1, self.num_blocks + 1):
            assert self._holders[page] == holders[page], f"holders of page {page} differ"
        empty = set(self._empty)
        assert len(empty) == len(self._empty), "a page is doubled in the free list"
        assert empty.isdisjoint(holders), "a held page is in the free list"
        self.cache.check(set(range(1, self.num_blocks + 1)) - empty - set(holders))
