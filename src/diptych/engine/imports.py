"""Blocks on their way from the cache tier into pages. Knows page numbers; knows no bytes.

The pages belong to the import until it ends; what has arrived by then is a cached prefix like any
other, and whoever asked for it adopts it when it is admitted, if it is still there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from diptych.core.ids import BlockHash
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.loading import Load, Local
from diptych.engine.prefix_cache import Chain
from diptych.engine.requests import Request
from diptych.engine.tier import Stored


@dataclass(frozen=True, slots=True, eq=False)
class Import:
    """Pages that are being filled. `held` are the blocks before them, kept until it ends."""

    request: Request
    first: int  # index of the first block that comes
    held: tuple[int, ...]
    pages: tuple[int, ...]
    names: tuple[BlockHash, ...]  # of the pages; the last one is the anchor's, too
    anchor_page: int | None
    anchor_block: BlockHash

    @property
    def end(self) -> int:
        """Index behind the last block."""
        return self.first + len(self.pages)

    @property
    def all_pages(self) -> tuple[int, ...]:
        return self.held + self.pages


class Imports:
    """Those under way, over the pools that they take pages from."""

    def __init__(self, blocks: BlockPool, anchors: AnchorPool) -> None:
        self._blocks = blocks
        self._anchors = anchors
        self._spare = blocks.num_blocks // 100  # left free for those that run to grow
        self.under_way: set[Import] = set()

    def local(self, chain: Chain, tokens: Sequence[int], usable: int, *, full: bool) -> Local:
        """What is here of the first `usable` blocks; with `full`, up to one of cut windows."""
        found = self._blocks.cache.match(chain, tokens, usable)
        if full:
            cut = (index for index, entry in enumerate(found) if not entry.full_window)
            del found[next(cut, len(found)) :]
        anchored = len(found)
        while anchored and found[anchored - 1].name not in self._anchors:
            anchored -= 1
        return Local(len(found), anchored)

    def begin(self, request: Request, load: Load) -> Import | None:
        """Take pages; None if there are none to spare, or if what it builds on is gone."""
        chain, tokens = request.chain, request.tokens
        if chain is None:
            return None
        before = self._blocks.cache.match(chain, tokens, load.first)
        held = tuple(entry.page for entry in before)
        count = load.blocks - load.first
        room = self._blocks.num_free - self._blocks.num_idle(held) - self._spare
        if len(held) < load.first or count > room:
            return None
        anchor_page = self._anchors.take() if load.has_anchor else None
        if load.has_anchor and anchor_page is None:
            return None
        self._blocks.share(held)
        pages = self._blocks.alloc(count)
        assert pages is not None, "so many pages were free"
        names = tuple(chain.name(index, tokens) for index in range(load.first, load.blocks))
        anchor_block = chain.name(load.blocks - 1, tokens)
        begun = Import(request, load.first, held, pages, names, anchor_page, anchor_block)
        self.under_way.add(begun)
        return begun

    def end(self, ended: Import, arrived: Sequence[Stored], *, has_anchor: bool) -> None:
        """The first pages so many have arrived, and the anchor; the others hold nothing."""
        self.under_way.remove(ended)
        cache, chain = self._blocks.cache, ended.request.chain
        assert chain is not None, "it had one when it began"
        for page, name, stored in zip(ended.pages, ended.names, arrived, strict=False):
            cache.publish(page, name, chain.retention, full_window=stored.full_window)
        if ended.anchor_page is not None:
            entry = cache.find(ended.anchor_block) if has_anchor else None
            if entry is None:
                self._anchors.give_back(ended.anchor_page)
            else:
                self._anchors.attach(ended.anchor_block, ended.anchor_page)
        self._blocks.free(ended.all_pages)

    @property
    def anchor_pages(self) -> list[int]:
        """Anchor pages that are being filled."""
        return [i.anchor_page for i in self.under_way if i.anchor_page is not None]


def brought(request: Request, cached: int, grain: int, tier: str) -> int:
    """Of a prompt's `cached` positions, those in blocks that came from a tier."""
    used = request.brought[: max(0, cached // grain - request.brought_from)]
    return grain * sum(stored.tier == tier for stored in used)
