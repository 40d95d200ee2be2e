"""The bounded queue before a stream."""

import asyncio

import pytest

from diptych.transport.outbox import Outbox


class Message:
    def __init__(self, size: int) -> None:
        self.size = size

    def ByteSize(self) -> int:
        return self.size


async def test_messages_come_out_in_order_and_free_their_bytes() -> None:
    outbox: Outbox[Message] = Outbox(100)
    first, second = Message(40), Message(60)
    outbox.put(first)
    outbox.put(second)
    assert outbox.size_bytes == 100 and not outbox.overflowed.is_set()
    assert [await outbox.get(), await outbox.get()] == [first, second]
    assert outbox.size_bytes == 0


async def test_one_byte_too_many_overflows() -> None:
    outbox: Outbox[Message] = Outbox(100)
    outbox.put(Message(100))
    outbox.put(Message(1))
    assert outbox.overflowed.is_set()
    outbox.put(Message(1000))
    assert outbox.size_bytes == 101


async def test_a_reader_that_gives_up_loses_nothing() -> None:
    outbox: Outbox[Message] = Outbox(100)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await outbox.get()
    message = Message(1)
    outbox.put(message)
    assert await outbox.get() is message
