"""The client's half of a shared window: our memory, one get or put at a time."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Self

import grpc.aio

from diptych.core.errors import Broken, Lost
from diptych.core.ids import BlockHash
from diptych.kvcache_store import wire
from diptych.kvcache_store.messages import Fetch, Stored, Wanted, WindowOffer
from diptych.transport.errors import from_rpc
from diptych.transport.frames import Part, PartKind, Receiver
from diptych.transport.window import Filled, Window, parts_in

_SHARE = "/diptych.contract.Store/ShareBlocks"


class SharedLink:
    """A stream and its window. Whatever goes wrong in a work, the link is of no use after it."""

    def __init__(self, stream: Any, window: Window) -> None:
        self._stream = stream
        self._window = window

    @classmethod
    async def open(cls, channel: grpc.aio.Channel) -> Self:
        """Refused with `no_shared_memory` when the store is not on this host."""
        window = Window.create()
        link = cls(channel.stream_stream(_SHARE)(), window)
        try:
            offer = WindowOffer(
                os.getpid(), window.file, window.num_slots, window.slot_bytes, window.nonce
            )
            await link._say(wire.share_up_to_bytes(offer))
            if await link._hear() is not None:
                raise Broken("a store did not say that it has attached")
        except BaseException:
            link.close()
            raise
        return link

    async def fetch(self, fetch: Fetch, receiver: Receiver) -> int:
        """Fetch parts into their places; bytes moved. What is missing ends it early."""
        await self._say(wire.share_up_to_bytes(fetch))
        size_bytes = 0
        while not receiver.has_ended:
            filled = await self._hear()
            if not isinstance(filled, Filled):
                raise Broken("a store did not fill a slot")
            receiver.take(parts_in(self._window.slot(filled.slot), filled), is_last=filled.is_last)
            size_bytes += sum(filled.sizes)
            await self._say(wire.share_up_to_bytes(filled.slot))
        return size_bytes

    async def put(
        self, announced: bytes, by_name: Mapping[PartKind, Mapping[BlockHash, Part]]
    ) -> Stored:
        """Send what the store lacks."""
        await self._say(wire.share_up_to_bytes(announced))
        wanted = await self._hear()
        if not isinstance(wanted, Wanted):
            raise Broken("a store did not say what it wants")
        free = list(range(self._window.num_slots))
        runs = list(self._runs(wanted, by_name))
        for number, (kind, parts) in enumerate(runs, 1):
            if not free:
                free.append(await self._freed())
            filled = self._window.fill(free.pop(), parts, kind, is_last=number == len(runs))
            await self._say(wire.share_up_to_bytes(filled))
        while len(free) < self._window.num_slots:
            free.append(await self._freed())
        stored = await self._hear()
        if not isinstance(stored, Stored):
            raise Broken("a store did not say what became of a put")
        return stored

    @property
    def is_alive(self) -> bool:
        return not self._stream.done()

    def fits(self, size_bytes: int) -> bool:
        """Whether a part of this size can go through the window at all."""
        return 0 < size_bytes <= self._window.slot_bytes

    def close(self) -> None:
        self._stream.cancel()
        self._window.close()

    def _runs(
        self, wanted: Wanted, by_name: Mapping[PartKind, Mapping[BlockHash, Part]]
    ) -> "list[tuple[PartKind, list[Part]]]":
        """What goes, a slot's worth of a kind at a time."""
        runs: list[tuple[PartKind, list[Part]]] = []
        for kind, names in wanted.by_kind():
            room = 0
            for name in names:
                part = by_name[kind].get(name)
                if part is None:
                    raise Broken("a store wants what was not announced")
                if len(part.payload) > room:
                    room = self._window.slot_bytes
                    runs.append((kind, []))
                runs[-1][1].append(part)
                room -= len(part.payload)
        return runs

    async def _freed(self) -> int:
        freed = await self._hear()
        if not isinstance(freed, int):
            raise Broken("a store did not free a slot")
        return freed

    async def _say(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        except asyncio.InvalidStateError:
            await self._hear()  # which raises why the stream has ended
            raise Lost("the store ended a shared stream") from None

    async def _hear(self) -> Filled | Wanted | Stored | int | None:
        try:
            data = await self._stream.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        if data is grpc.aio.EOF:
            raise Lost("the store ended a shared stream")
        return wire.share_down_from_bytes(data)
