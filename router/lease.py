"""A placed request, as its gateway holds it: what the router says, and what it is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import DiptychError, Lost, Overloaded
from diptych.core.phases import Phase
from diptych.router import wire
from diptych.router.messages import Again, Have, Placement, Progress, RefusedBy, Want
from diptych.transport.errors import from_rpc


class Lease:
    """One placed request; it lives until `close` or the router's end.

    Iterate for what the router says about the current attempt; answers to older attempts are
    dropped. Raises Overloaded when refused (code `no_capacity` or `queue_timeout`), Lost when the
    router is gone. Only `RouterClient.place` makes one.
    """

    def __init__(
        self, stub: pb_grpc.RouterStub, want: Want, *, waits_for_router: bool = True
    ) -> None:
        self._attempt = want.attempt
        self._ups: asyncio.Queue[wire.PlaceUp | None] = asyncio.Queue()  # None ends them
        self._ups.put_nowait(want)
        self._downs: asyncio.Queue[wire.PlaceDown | DiptychError] = asyncio.Queue()
        self._call = stub.Place(self._send(), wait_for_ready=waits_for_router)
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, timeout_s: float) -> None:
        """Wait until the router has the lease; Lost if it does not answer in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.initial_metadata()
                await self._call.wait_for_connection()  # raises what ended the call, if it did
        except TimeoutError:
            self._call.cancel()
            raise Lost(f"the router did not answer for {timeout_s:.1f} s") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        # Apart, so that who stops waiting for an answer does not end the call.
        self._reader = asyncio.create_task(self._read())

    def __aiter__(self) -> AsyncIterator[Placement]:
        return self

    async def __anext__(self) -> Placement:
        while not self._is_closed:
            down = await self._downs.get()
            if isinstance(down, DiptychError):
                self._downs.put_nowait(down)  # for whoever asks again
                raise down
            if down.attempt < self._attempt:
                continue
            if isinstance(down, RefusedBy):
                raise Overloaded(down.message, code=down.code, retry_after_s=down.retry_after_s)
            return down
        raise StopAsyncIteration

    async def progress(self, phase: Phase, tokens: int, last_chunk_started: bool = False) -> None:
        """Tell how far the attempt is; with `last_chunk_started` the router answers DecodeAt."""
        self._ups.put_nowait(Progress(phase, tokens, last_chunk_started))

    async def again(
        self,
        attempt: int,
        failed_worker: str,
        why: str,
        have: Have,
        code: str = "",
        kind: str = "",
        partner: str = "",
    ) -> None:
        """Open the next attempt; `code` and `kind` are those of the error that ended the last one.

        `partner`: whose KV the failed worker could not fetch.
        """
        self._attempt = attempt
        self._ups.put_nowait(Again(attempt, failed_worker, why, have, code, kind, partner))

    async def close(self) -> None:
        """End the lease; the router forgets the request. Twice is once."""
        self._is_closed = True
        self._ups.put_nowait(None)
        self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
            self._reader = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def _send(self) -> AsyncIterator[pb.PlaceUp]:
        while (up := await self._ups.get()) is not None:
            yield wire.place_up_to_pb(up)

    async def _read(self) -> None:
        try:
            async for message in self._call:
                down = wire.place_down_from_pb(message)
                if down is not None:
                    self._downs.put_nowait(down)
            self._downs.put_nowait(Lost("the router ended the lease"))
        except grpc.aio.AioRpcError as error:
            self._downs.put_nowait(from_rpc(error))
        except asyncio.CancelledError:  # the channel was closed, or the lease
            self._downs.put_nowait(Lost("the way to the router was closed"))
            raise
        finally:
            self._ups.put_nowait(None)  # or grpc would wait for the next one for ever
