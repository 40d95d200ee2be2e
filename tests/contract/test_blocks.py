"""The GetBlocks stream itself: credits, silence, and peers that do not keep to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from diptych.contract import worker_pb2 as pb
from diptych.core.errors import BadRequest, Broken, DiptychError, Expired, Lost
from diptych.core.ids import BlockHash, WorkerId
from diptych.transport.blocks import CREDIT_BYTES, BlockServer, pull_blocks
from diptych.transport.channel import connect
from diptych.transport.errors import from_rpc
from diptych.transport.frames import (
    BadFrame,
    Fault,
    Part,
    PartKind,
    Place,
    Receiver,
    checksum,
    decode,
    encode,
)
from diptych.transport.server import Server

METHOD = "/diptych.contract.Blocks/GetBlocks"
ME = WorkerId("decode-1")


def part(index: int, size: int, kind: PartKind = PartKind.BLOCK) -> Part:
    data = bytes([index]) * size
    return Part(kind, BlockHash(bytes([index]) * 16), checksum(data), memoryview(data))


class Library:
    """A BlockReader over some parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {p.name: p for p in parts}

    async def open(self, ticket: bytes, asker: WorkerId) -> "Library":
        assert (ticket, asker) == (b"ticket", ME)
        return self

    def read(self, name: BlockHash) -> Part:
        if name not in self.parts:
            raise Lost("no such part", code="unknown_block")
        return self.parts[name]


class Shelf:
    """A BlockWriter with room for some parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.rooms = {p.name: Place(p.kind, memoryview(bytearray(len(p.payload)))) for p in parts}

    def place(self, name: BlockHash) -> Place:
        return self.rooms[name]


@asynccontextmanager
async def served(
    register: Callable[[grpc.aio.Server], object],
) -> AsyncIterator[grpc.aio.Channel]:
    async with Server("127.0.0.1:0", [register], grace_s=0) as server:
        channel = connect(server.address)
        yield channel
        await channel.close()


def library(parts: Sequence[Part], silence_s: float = 2.0) -> Callable[[grpc.aio.Server], object]:
    return BlockServer(Library(parts).open, silence_s=silence_s).register


def impostor(frames: Sequence[bytes], then: float = 0.1) -> Callable[[grpc.aio.Server], object]:
    """A server that sends whatever it likes."""

    async def method(requests: AsyncIterator[bytes], context: Any) -> None:
        await anext(requests)
        for frame in frames:
            await context.write(frame)
        await asyncio.sleep(then)

    handler = grpc.stream_stream_rpc_method_handler(method)
    service = grpc.method_handlers_generic_handler(
        "diptych.contract.Blocks", {"GetBlocks": handler}
    )
    return lambda server: server.add_generic_rpc_handlers((service,))


def want(parts: Sequence[Part]) -> bytes:
    names = b"".join(p.name for p in parts)
    return pb.BlocksUp(
        want=pb.WantBlocks(ticket=b"ticket", worker_id=ME, hashes=names)
    ).SerializeToString()


async def pull(
    channel: grpc.aio.Channel, parts: Sequence[Part], silence_s: float = 2.0
) -> tuple[Receiver, Shelf]:
    shelf = Shelf(parts)
    receiver = Receiver([p.name for p in parts], shelf)
    await pull_blocks(channel, b"ticket", ME, receiver, silence_s=silence_s)
    return receiver, shelf


async def test_parts_arrive_in_frames_of_eight_of_a_kind() -> None:
    parts = [part(i, 1000) for i in range(19)]
    parts += [part(100, 1000, PartKind.TAIL), part(101, 9999, PartKind.SLOT)]
    async with served(library(parts)) as channel:
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(want(parts))
        frames = [decode(await stream.read()) for _ in range(5)]
        assert [len(f.parts) for f in frames] == [8, 8, 3, 1, 1]
        assert [f.seq for f in frames] == [0, 1, 2, 3, 4]
        assert [f.is_last for f in frames] == [False] * 4 + [True]
        stream.cancel()
        _, shelf = await pull(channel, parts)
        for sent in parts:
            assert shelf.place(sent.name).into == sent.payload


async def test_more_than_the_credit_arrives_because_credit_is_returned() -> None:
    parts = [part(i, 1 << 20) for i in range(40)]
    async with served(library(parts)) as channel:
        receiver, _ = await pull(channel, parts)
        assert len(receiver.done) == 40


async def test_a_sender_without_credit_overdraws_once_and_then_waits() -> None:
    half = CREDIT_BYTES // 2 // 8
    parts = [part(i, half) for i in range(32)]
    async with served(library(parts)) as channel:
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(want(parts))
        sizes = [len(await stream.read()) for _ in range(2)]
        assert sum(sizes) > CREDIT_BYTES  # two frames of half the credit, and their headers
        third = asyncio.create_task(stream.read())
        done, _ = await asyncio.wait([third], timeout=0.2)
        assert not done
        await stream.write(pb.BlocksUp(credit_bytes=sum(sizes)).SerializeToString())
        async with asyncio.timeout(2):
            assert decode(await third).seq == 2
        stream.cancel()


async def test_a_receiver_that_returns_no_credit_is_given_up() -> None:
    parts = [part(i, CREDIT_BYTES) for i in range(16)]
    async with served(library(parts, silence_s=0.2)) as channel:
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(want(parts))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert from_rpc(caught.value).code == "no_credit"


async def test_the_reason_reaches_a_receiver_that_reads_too_late() -> None:
    """Its first frame is given up while gRPC still holds it; the status comes behind it."""
    parts = [part(i, CREDIT_BYTES) for i in range(8)]
    async with served(library(parts, silence_s=0.1)) as channel:
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(want(parts))
        await asyncio.sleep(0.5)
        async with asyncio.timeout(5):
            assert len(await stream.read()) > 8 * CREDIT_BYTES
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
        assert from_rpc(caught.value).code == "no_credit"


async def test_a_part_the_sender_lacks_is_a_named_error() -> None:
    async with served(library([part(1, 10)])) as channel:
        with pytest.raises(Lost) as caught:
            await pull(channel, [part(1, 10), part(2, 10)])
        assert caught.value.code == "unknown_block"


@pytest.mark.parametrize("first", [b"", b"\xff\xff", want([])], ids=["empty", "noise", "nothing"])
async def test_a_stream_that_does_not_say_what_it_wants_is_refused(first: bytes) -> None:
    async with served(library([])) as channel:
        stream: Any = channel.stream_stream(METHOD)()
        await stream.write(first)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert isinstance(from_rpc(caught.value), BadRequest)


def _flipped(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ([encode(0, [part(1, 10)], is_last=False)], Fault.INCOMPLETE),
        ([], Fault.INCOMPLETE),
        ([encode(1, [part(1, 10)], is_last=True)], Fault.SEQUENCE),
        ([encode(0, [part(3, 10)], is_last=True)], Fault.UNKNOWN),
        ([_flipped(encode(0, [part(1, 10)], is_last=True))], Fault.CHECKSUM),
        ([encode(0, [part(1, 10)], is_last=True)[:-1]], Fault.LENGTH),
        ([b""], Fault.LENGTH),
    ],
)
async def test_a_wrong_stream_is_never_taken_for_a_transfer(
    frames: list[bytes], fault: Fault
) -> None:
    async with served(impostor(frames)) as channel:
        with pytest.raises(BadFrame) as caught:
            await pull(channel, [part(1, 10), part(2, 10)])
        assert caught.value.code == fault


async def test_a_sender_that_falls_silent_is_expired() -> None:
    first = encode(0, [part(1, 10)], is_last=False)
    async with served(impostor([first], then=30.0)) as channel:
        with pytest.raises(Expired) as caught:
            async with asyncio.timeout(2):
                await pull(channel, [part(1, 10), part(2, 10)], silence_s=0.2)
        assert caught.value.code == "transfer_silent"


async def test_a_bug_in_a_method_is_broken_and_keeps_its_text_at_home() -> None:
    async def stumble(ticket: bytes, asker: WorkerId) -> Library:
        raise RuntimeError("a secret")

    async with served(BlockServer(stumble).register) as channel:
        with pytest.raises(Broken) as caught:
            await pull(channel, [part(1, 10)])
        assert "RuntimeError" in caught.value.message
        assert "a secret" not in caught.value.message


async def test_a_server_without_blocks_is_refused_by_name() -> None:
    async with served(lambda server: None) as channel:
        with pytest.raises(DiptychError, match="UNIMPLEMENTED"):
            await pull(channel, [part(1, 10)])
