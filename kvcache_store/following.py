"""The news of a node, for whoever keeps an index of what it holds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from diptych.core.errors import Lost
from diptych.kvcache_store import wire
from diptych.kvcache_store.messages import Heard, News
from diptych.kvcache_store.node import GREET_S
from diptych.transport.channel import Dial, call, connect
from diptych.transport.errors import from_rpc


@asynccontextmanager
async def following(
    address: str, heard: Heard, *, dial: Dial = connect
) -> AsyncIterator[AsyncIterator[News]]:
    """Entered once the node has answered. Its news behind those that were heard, if it still has
    them, else all that it holds; then what happens, until the node is lost: a DiptychError."""
    channel = dial(address)
    try:
        stub = wire.stub(channel)
        await call(stub.Greet, wire.greet_to_pb(), timeout_s=GREET_S)
        yield _news(stub, heard)
    finally:
        await channel.close()


async def _news(stub: Any, heard: Heard) -> AsyncIterator[News]:
    try:
        async for message in stub.Watch(wire.watch_to_pb(heard)):
            yield wire.news_from_pb(message)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    raise Lost("the store ended its news")
