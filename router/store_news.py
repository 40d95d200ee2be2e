"""Follows the nodes of the cache tier and tells the index what each of them holds.

A node numbers its news. A stream that breaks is taken up behind the last number heard; a node that
then does not answer is lost, with all the index knew of it. Nobody waits for any of this.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from diptych.core.errors import Broken, DiptychError
from diptych.kvcache_store.client import Heard, News, Tier, following
from diptych.router.messages import BlockTier
from diptych.router.prefix_index import PrefixIndex
from diptych.telemetry import metrics as m
from diptych.transport.channel import Backoff, Dial, connect

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
GAP = "watch_gap"

_TIERS = {Tier.MEMORY: BlockTier.HOST, Tier.DISK: BlockTier.DISK}

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Cursor:
    """How far the news of one node were heard, over one stream."""

    heard: Heard = field(default_factory=Heard)
    is_amid_snapshot: bool = False

    def takes(self, news: News) -> bool:
        """Whether they are new. Broken if some before them are missing."""
        if news.is_snapshot or self.is_amid_snapshot:
            self.is_amid_snapshot = not news.is_last
            self.heard = news.heard if news.is_last else Heard()
            return True
        if news.heard.incarnation != self.heard.incarnation:
            raise Broken("news of a life that was not introduced", code=GAP)
        if news.heard.seq > self.heard.seq + 1:
            raise Broken(f"news {self.heard.seq + 1} are missing", code=GAP)
        is_new = news.heard.seq > self.heard.seq
        if is_new:
            self.heard = news.heard
        return is_new


class StoreNews:
    """One watcher a node. Belongs to the event loop, as the index does."""

    def __init__(self, index: PrefixIndex, *, dial: Dial = connect) -> None:
        self._index = index
        self._dial = dial
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._lost: set[str] = set()

    def use(self, addresses: Sequence[str]) -> None:
        """These are the nodes from now on; what others hold is forgotten."""
        wanted = dict.fromkeys(addresses)
        for address in [known for known in self._watchers if known not in wanted]:
            watcher = self._watchers.pop(address)
            watcher.cancel()
            self._ending.add(watcher)
            watcher.add_done_callback(self._ending.discard)
            self._lost.discard(address)
            self._index.forget(_holder(address))
        for address in wanted:
            if address not in self._watchers:
                self._watchers[address] = asyncio.create_task(self._follow(address))

    def readings(self) -> Iterator[m.Reading]:
        """For /metrics."""
        yield m.INDEX_STORES.at(len(self._watchers) - len(self._lost), "followed")
        yield m.INDEX_STORES.at(len(self._lost), "lost")

    async def close(self) -> None:
        self.use(())
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _follow(self, address: str) -> None:
        """For ever."""
        heard, backoff = Heard(), Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            cursor: Cursor | None = None
            try:
                async with following(address, heard, dial=self._dial) as all_news:
                    cursor = Cursor(heard)
                    self._is_there(address)
                    async for news in all_news:
                        backoff.succeeded()
                        self._hear(address, cursor, news)
            except DiptychError as error:
                heard = self._broke(address, cursor, error)
            await asyncio.sleep(backoff.failed())

    def _hear(self, address: str, cursor: Cursor, news: News) -> None:
        if not cursor.takes(news):
            return
        if news.is_snapshot:
            self._index.forget(_holder(address))
        self._index.stocked(_holder(address), _TIERS[news.tier], news.names, came=news.came)

    def _broke(self, address: str, cursor: Cursor | None, error: DiptychError) -> Heard:
        """From where to go on; from nothing if the node was not there."""
        if cursor is not None:
            log.info("store's news ended node=%s code=%s", address, error.code)
            self._index.gaps_total += error.code in (GAP, "watch_behind")
            return cursor.heard
        if address not in self._lost:
            log.warning("store is lost to the index node=%s code=%s", address, error.code)
            self._lost.add(address)
            self._index.forget(_holder(address))
        return Heard()

    def _is_there(self, address: str) -> None:
        if address in self._lost:
            self._lost.discard(address)
            log.info("store is back node=%s", address)


def _holder(address: str) -> str:
    """A name in the index that no member can have."""
    return f"store {address}"
