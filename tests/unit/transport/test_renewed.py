"""A channel that outlives its credentials, over connections that only pretend."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from diptych.transport.renewed import RenewedChannel


class Call:
    def __init__(self, channel: "Channel", method: str) -> None:
        self.channel, self.method = channel, method
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Channel:
    def __init__(self, secrets: str) -> None:
        self.secrets = secrets
        self.closed = asyncio.Event()

    def unary_unary(self, method: str, *coders: object, **options: object) -> Any:
        return lambda request, timeout=None: Call(self, method)

    unary_stream = stream_unary = stream_stream = unary_unary

    def get_state(self, try_to_connect: bool) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    async def close(self, grace: float | None = None) -> None:
        self.closed.set()


class Site:
    """Credentials that change, and the connections that were made with them."""

    def __init__(self) -> None:
        self.secrets = "first"
        self.made: list[Channel] = []
        self.channel = RenewedChannel(lambda: self.secrets, self._connect)

    def _connect(self, secrets: str) -> Any:
        self.made.append(Channel(secrets))
        return self.made[-1]


async def test_one_connection_serves_until_the_credentials_change() -> None:
    site = Site()
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    stubs = [getattr(site.channel, kind)(f"/{kind}") for kind in kinds]
    first = [stub(b"") for stub in stubs]
    assert [call.method for call in first] == [f"/{kind}" for kind in kinds]
    assert {call.channel.secrets for call in first} == {"first"}
    assert site.channel.get_state() is grpc.ChannelConnectivity.READY
    site.secrets = "second"
    assert {stub(b"").channel.secrets for stub in stubs} == {"second"}
    assert [channel.secrets for channel in site.made] == ["first", "second"]
    await site.channel.close()


async def test_the_old_connection_closes_when_its_last_call_has_ended() -> None:
    site = Site()
    stub = site.channel.unary_unary("/m")
    one, two = stub(b""), stub(b"")
    site.secrets = "second"
    stub(b"")
    one.end()
    old = site.made[0]
    await asyncio.sleep(0)
    assert not old.closed.is_set()
    two.end()
    async with asyncio.timeout(5):
        await old.closed.wait()
    assert not site.made[1].closed.is_set()
    await site.channel.close()
    assert site.made[1].closed.is_set()


async def test_closing_it_closes_all_that_it_opened() -> None:
    site = Site()
    async with site.channel as channel:
        stub = channel.unary_stream("/m")
        running = []
        for secrets in ("first", "second", "third"):
            site.secrets = secrets
            running.append(stub(b""))
    assert [channel.closed.is_set() for channel in site.made] == [True, True, True]
    for call in running:
        call.end()  # late news of a call that was cut
