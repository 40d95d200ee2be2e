"""Full blocks by the hash of all that lies in and before them. Knows page numbers; knows no bytes.

A page whose block has a name is either held by requests or idle. Idle ones are given up when pages
run out: those of batch work first, then the least recently used, and of one chain the last block
first, because whoever uses a block uses all that come before it, and gives them up after it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from diptych.core.blocks import block_hash
from diptych.core.ids import BlockHash
from diptych.engine.block_log import BlockLog


class Retention(IntEnum):
    """What is given up first."""

    EPHEMERAL = 0  # batch work
    SESSION = 1  # turns of a conversation


@dataclass(slots=True)
class Entry:
    """A block with a name. Of whoever used it, the best retention counts."""

    name: BlockHash
    page: int
    retention: Retention
    full_window: bool  # computed from windows that no floor cut short


@dataclass(slots=True)
class Chain:
    """The names of a request's blocks, as far as they were needed, and what the cache has of it."""

    scope: bytes
    grain: int
    retention: Retention = Retention.SESSION
    names: list[BlockHash] = field(default_factory=list)
    published: int = 0  # its first blocks so many are in the cache, in pages it holds
    full_window: bool = True
    stops: tuple[int, ...] = ()  # positions at which a chunk ends and an anchor is made
    newest_anchor: BlockHash | None = None  # made while decoding; the next one takes its place
    kept_from: int | None = None  # blocks from here on go to the cache tier; None: none does

    def name(self, index: int, tokens: Sequence[int]) -> BlockHash:
        """The name of a block, all of whose tokens are known."""
        while len(self.names) <= index:
            start = len(self.names) * self.grain
            parent = self.names[-1] if self.names else self.scope
            self.names.append(block_hash(parent, tokens[start : start + self.grain]))
        return self.names[index]


class PrefixCache:
    """Which page holds which block."""

    def __init__(self) -> None:
        self.on_evict: Callable[[BlockHash], None] = lambda name: None
        self.log = BlockLog()
        self._by_name: dict[BlockHash, Entry] = {}
        self._by_page: dict[int, Entry] = {}
        self._idle: dict[Retention, OrderedDict[int, Entry]] = {
            retention: OrderedDict() for retention in Retention
        }

    @property
    def num_idle(self) -> int:
        return sum(map(len, self._idle.values()))

    def find(self, name: BlockHash) -> Entry | None:
        return self._by_name.get(name)

    def match(self, chain: Chain, tokens: Sequence[int], limit: int) -> list[Entry]:
        """The entries of the first blocks, `limit` at most, up to the first that is missing."""
        found: list[Entry] = []
        for index in range(limit):
            entry = self._by_name.get(chain.name(index, tokens))
            if entry is None:
                break
            found.append(entry)
        return found

    def publish(
        self, page: int, name: BlockHash, retention: Retention, *, full_window: bool
    ) -> int:
        """Give the block in `page` its name; the page that had it before, if there is one."""
        entry = self._by_name.get(name)
        if entry is None:
            entry = Entry(name, page, retention, full_window)
            assert page not in self._by_page, f"page {page} has a name already"
            self._by_name[name] = self._by_page[page] = entry
            self.log.stored(name)
        return entry.page

    def promote(self, entry: Entry, retention: Retention) -> None:
        """Keep a block at least as long as this user would; it is not idle."""
        entry.retention = max(entry.retention, retention)

    def rest(self, page: int) -> bool:
        """Nobody holds the page any more; False if it has no name and is not worth keeping."""
        entry = self._by_page.get(page)
        if entry is None:
            return False
        self._idle[entry.retention][page] = entry
        return True

    def wake(self, page: int) -> None:
        """Somebody holds an idle page again."""
        del self._idle[self._by_page[page].retention][page]

    def evict(self) -> int:
        """Forget the idle block that is missed least; its page."""
        idle = next(pages for pages in self._idle.values() if pages)
        page, entry = idle.popitem(last=False)
        del self._by_name[entry.name], self._by_page[page]
        self.log.removed(entry.name)
        self.on_evict(entry.name)
        return page

    def check(self, idle: set[int]) -> None:
        """Assert that the named pages nobody holds are `idle`, and that names and pages agree."""
        assert {p for pages in self._idle.values() for p in pages} == idle, "idle pages differ"
        assert len(self._by_name) == len(self._by_page), "a name or a page is doubled"
        for page, entry in self._by_page.items():
            assert entry.page == page and self._by_name[entry.name] is entry
            assert (page in self._idle[entry.retention]) == (page in idle)
