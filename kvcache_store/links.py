"""Shared windows to one store: opened when they can be, kept while they live, never in the way."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum, auto

import grpc.aio

from diptych.core.errors import Refused
from diptych.kvcache_store.shared_link import SharedLink

KEPT = 4  # idle windows

log = logging.getLogger(__name__)


class Transport(StrEnum):
    """How blocks travel."""

    AUTO = auto()  # shared memory on this host, else gRPC
    GRPC = auto()
    SHM = auto()  # shared memory or not at all


class Links:
    """Lends a link for one get or put; None means gRPC."""

    def __init__(self, channel: grpc.aio.Channel, address: str, transport: Transport) -> None:
        self.num_opened = 0
        self._channel = channel
        self._address = address
        self._transport = transport
        self._is_possible = transport is not Transport.GRPC
        if transport is Transport.AUTO:
            host = address.rpartition(":")[0].strip("[]")
            self._is_possible = host in ("127.0.0.1", "::1", "localhost")
        self._idle: list[SharedLink] = []

    @asynccontextmanager
    async def borrow(self, part_bytes: int) -> AsyncIterator[SharedLink | None]:
        """A link for parts of up to this size. One whose work failed is not lent again."""
        link = await self._take()
        if link is not None and not link.fits(part_bytes):
            self._give(link)
            link = None
        if link is None:
            yield None
            return
        try:
            yield link
        except BaseException:
            link.close()
            raise
        self._give(link)

    def close(self) -> None:
        """Close the idle ones; those that are lent close when their work ends."""
        while self._idle:
            self._idle.pop().close()

    async def _take(self) -> SharedLink | None:
        while self._idle:
            link = self._idle.pop()
            if link.is_alive:
                return link
            link.close()
        if not self._is_possible:
            return None
        try:
            link = await SharedLink.open(self._channel)
        except Refused as error:
            if self._transport is Transport.SHM:
                raise
            self._is_possible = False
            log.info("no shared memory node=%s why=%s", self._address, error.message)
            return None
        self.num_opened += 1
        return link

    def _give(self, link: SharedLink) -> None:
        if link.is_alive and len(self._idle) < KEPT:
            self._idle.append(link)
        else:
            link.close()
