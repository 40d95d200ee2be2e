"""The news of a node, for whoever keeps an index of what it holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from diptych.core.errors import Lost
from diptych.kvcache_store import wire
from diptych.kvcache_store.messages import Heard, News
from diptych.kvcache_store.node import GREET_S
from diptych.transport.channel import Dial, connect, deadline
from diptych.transport.errors import from_rpc


@asynccontextmanager
async def following(
    address: str, heard: Heard, *, dial: Dial = connect
) -> AsyncIterator[AsyncIterator[News]]:
    """Entered once the node has answered. Its news behind those that were heard, if it still has
    them, else all that it holds; then what happens, until the node is lost: a DiptychError."""
    channel = dial(address)
    try:
        stream = wire.stub(channel).Watch(wire.watch_to_pb(heard))
        try:
            async with deadline(GREET_S, "a store that is to be followed"):
                await stream.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        yield _news(stream)
    finally:
        await channel.close()


async def _news(stream: Any) -> AsyncIterator[News]:
    try:
        async for message in stream:
            yield wire.news_from_pb(message)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    raise Lost("the store ended its news")
