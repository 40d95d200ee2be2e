"""Moving blocks: the GetBlocks stream, both ends, over a reader of parts and a BlockWriter."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from diptych.contract import worker_pb2 as pb
from diptych.core.blocks import HASH_BYTES
from diptych.core.errors import BadRequest, Expired, Lost
from diptych.core.ids import BlockHash, WorkerId
from diptych.transport.channel import deadline
from diptych.transport.errors import from_rpc
from diptych.transport.frames import (
    PARTS_A_FRAME,
    BlockReader,
    Credit,
    Part,
    Receiver,
    RunReader,
    encode,
)

CREDIT_BYTES = 4 << 20
SILENCE_S = 10.0
_SERVICE = "diptych.contract.Blocks"
_METHOD = "GetBlocks"


OpenReader = Callable[[bytes, WorkerId], Awaitable[BlockReader | RunReader]]


class BlockServer:
    """Serves GetBlocks; who may read what is `open_reader`'s to say (sealed ticket, asker)."""

    def __init__(self, open_reader: OpenReader, *, silence_s: float = SILENCE_S) -> None:
        self._open_reader = open_reader
        self._silence_s = silence_s

    def register(self, server: grpc.aio.Server) -> None:
        """Add the raw-bytes method to a server."""
        method: Any = grpc.stream_stream_rpc_method_handler(self._get_blocks)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method}),)
        )

    async def _get_blocks(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async with deadline(self._silence_s, "what to send"):
            first = await anext(requests, None)
        want = _parse(first or b"").want
        size = len(want.hashes)
        if not size or size % HASH_BYTES:
            raise BadRequest(f"{size} bytes of hashes; expected 16 each", param="hashes")
        names = [BlockHash(want.hashes[i : i + HASH_BYTES]) for i in range(0, size, HASH_BYTES)]
        reader = await self._open_reader(want.ticket, WorkerId(want.worker_id))
        sender = FrameSender(context, self._silence_s)
        listener = asyncio.create_task(_listen(requests, sender))
        try:
            if isinstance(reader, RunReader):
                await _send_runs(names, reader, sender)
            else:
                await _send(names, reader, sender)
            # A status sent before the receiver is done could overtake the frames.
            async with deadline(self._silence_s, "the receiver's end"):
                await asyncio.wait([listener])
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)


class FrameSender:
    """Numbers frames and writes each when the receiver has given credit for it."""

    def __init__(self, stream: Any, silence_s: float) -> None:
        self._stream = stream
        self._silence_s = silence_s
        self._credit = Credit(CREDIT_BYTES)
        self._returned = asyncio.Event()
        self._seq = 0

    async def send(self, parts: Sequence[Part], *, is_last: bool) -> None:
        """Write a frame; Expired with `no_credit` when the receiver does not take it."""
        await self.ready()
        frame = encode(self._seq, parts, is_last=is_last)
        self._seq += 1
        self._credit.spend(len(frame))
        async with deadline(self._silence_s, "writing a frame", code="no_credit"):
            await self._stream.write(frame)

    async def ready(self) -> None:
        """Until a frame may go."""
        while not self._credit.is_open:
            self._returned.clear()
            async with deadline(self._silence_s, "the receiver's credit", code="no_credit"):
                await self._returned.wait()

    def give(self, size_bytes: int) -> None:
        """The receiver has taken so many bytes."""
        self._credit.give(size_bytes)
        self._returned.set()


async def _send(names: Sequence[BlockHash], reader: BlockReader, sender: FrameSender) -> None:
    start = 0
    while start < len(names):
        await sender.ready()  # then read: what is read is sent at once
        parts = list(_run(names[start:], reader))
        start += len(parts)
        await sender.send(parts, is_last=start == len(names))


async def _send_runs(names: Sequence[BlockHash], reader: RunReader, sender: FrameSender) -> None:
    """Read one frame ahead of what is written, and one more to know whether it is the last."""

    start = 0

    async def read() -> Sequence[Part]:
        nonlocal start
        if start == len(names):
            return ()
        parts = await reader.read_run(names[start : start + PARTS_A_FRAME])
        start = start + len(parts) if parts else len(names)
        return parts

    parts = await read()
    if not parts:
        raise Lost(f"part {names[0].hex()} is not here", code="unknown_block")
    following = await read()
    while parts:
        ahead = asyncio.create_task(read())
        try:
            await sender.send(parts, is_last=not following)
            parts, following = following, await ahead
        finally:
            ahead.cancel()


def _run(names: Sequence[BlockHash], reader: BlockReader) -> Iterator[Part]:
    """The next frame's parts: up to 8 of one kind."""
    kind = None
    for name in names[:PARTS_A_FRAME]:
        part = reader.read(name)
        if kind is not None and part.kind is not kind:
            return
        kind = part.kind
        yield part


async def _listen(requests: AsyncIterator[bytes], sender: FrameSender) -> None:
    async for data in requests:
        sender.give(_parse(data).credit_bytes)


def _parse(data: bytes) -> pb.BlocksUp:
    try:
        return pb.BlocksUp.FromString(data)
    except DecodeError as error:
        raise BadRequest("not a BlocksUp message") from error


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a transfer moved."""

    size_bytes: int
    frames: int


async def pull_blocks(
    channel: grpc.aio.Channel,
    ticket: bytes,
    worker_id: WorkerId,
    receiver: Receiver,
    *,
    silence_s: float = SILENCE_S,
) -> Pulled:
    """Fetch what the receiver wants; BadFrame, Lost, Expired or the holder's refusal.

    Whatever ends it, no byte is written to a place after it has returned or raised.
    """
    stream: Any = channel.stream_stream(f"/{_SERVICE}/{_METHOD}")()
    want = pb.WantBlocks(ticket=ticket, worker_id=worker_id, hashes=b"".join(receiver.wanted))
    size_bytes = frames = 0
    try:
        async with asyncio.timeout(silence_s):
            await stream.write(pb.BlocksUp(want=want).SerializeToString())
        while True:
            async with asyncio.timeout(silence_s):
                data = await stream.read()
            if data is grpc.aio.EOF:
                break
            consumed = receiver.accept(data)
            size_bytes += consumed
            frames += 1
            async with asyncio.timeout(silence_s):
                if receiver.has_ended:
                    await stream.done_writing()
                else:
                    await stream.write(pb.BlocksUp(credit_bytes=consumed).SerializeToString())
    except TimeoutError as error:
        raise Expired(f"no frame for {silence_s:g} s", code="transfer_silent") from error
    except asyncio.InvalidStateError as error:
        raise Lost("the stream ended while credit was returned") from error
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    finally:
        stream.cancel()
    receiver.finish()
    return Pulled(size_bytes, frames)
