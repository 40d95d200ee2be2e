"""All leases of this process at one router. They share a stream: one each would cost more."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial

import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import DiptychError, Lost
from diptych.router import wire
from diptych.router.lease import Lease
from diptych.router.messages import Leave, Want
from diptych.transport.errors import from_rpc


class Leases:
    """Leases at the router behind `channel`, over a stream that is opened when one is wanted."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        self._stream: _Stream | None = None

    async def open(self, want: Want, timeout_s: float) -> Lease:
        """A lease that the router has; Lost if it cannot be reached or does not answer in time."""
        if self._stream is None or self._stream.is_over:
            self._stream = _Stream(self._stub)
        lease = self._stream.lease(want)
        try:
            async with asyncio.timeout(timeout_s):
                await lease.opened()
        except TimeoutError:
            await lease.close()
            raise Lost(f"the router did not answer for {timeout_s:.1f} s") from None
        except BaseException:
            await lease.close()
            raise
        return lease

    async def close(self) -> None:
        """End the stream, and every lease with it."""
        if self._stream is not None:
            await self._stream.close()


class _Stream:
    """One `Place` call. Its end is that of its leases."""

    def __init__(self, stub: pb_grpc.RouterStub) -> None:
        self.is_over = False
        self._numbers = itertools.count(1)
        self._leases: dict[int, Lease] = {}
        self._ups: asyncio.Queue[pb.PlaceUp | None] = asyncio.Queue()  # None ends them
        self._call = stub.Place(self._send())
        self._reader = asyncio.create_task(self._read())

    def lease(self, want: Want) -> Lease:
        number = next(self._numbers)
        lease = self._leases[number] = Lease(want, partial(self._say, number))
        return lease

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader])

    def _say(self, number: int, up: wire.PlaceUp) -> None:
        if self.is_over:
            return
        if isinstance(up, Leave):
            self._leases.pop(number, None)
        self._ups.put_nowait(wire.place_up_to_pb(number, up))

    async def _send(self) -> AsyncIterator[pb.PlaceUp]:
        while (up := await self._ups.get()) is not None:
            yield up

    async def _read(self) -> None:
        error: DiptychError = Lost("the way to the router was closed")
        try:
            async for message in self._call:
                down = wire.place_down_from_pb(message)
                lease = self._leases.get(message.lease)
                if lease is not None and down is not None:
                    lease.hear(down)
            error = Lost("the router ended the leases")
        except grpc.aio.AioRpcError as failure:
            error = from_rpc(failure)
        except asyncio.CancelledError:
            pass  # closed by us, or the channel was; the task ends here anyway
        finally:
            self.is_over = True
            self._ups.put_nowait(None)  # or grpc would wait for the next one for ever
            self._call.cancel()
            for lease in self._leases.values():
                lease.lost(error)
            self._leases.clear()
