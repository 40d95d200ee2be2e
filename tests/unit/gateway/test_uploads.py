"""How much may be on its way in."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from diptych.core.errors import BadRequest, Overloaded
from diptych.gateway.body import read_json
from diptych.gateway.uploads import Uploads


class Client:
    """Sends its body in two parts; the second when it is told to."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self._parts = [first, second]
        self.has_sent = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        if len(self._parts) == 1:
            self.has_sent.set()
            await self.goes_on.wait()
        part = self._parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}


async def test_what_comes_in_at_once_is_bounded_and_room_is_free_again() -> None:
    uploads = Uploads(max_bytes=100)
    slow = Client(b'{"a":"' + b"x" * 60, b'"}')
    reading = asyncio.create_task(read_json({}, slow.receive, uploads))
    await slow.has_sent.wait()
    assert uploads.size_bytes == 66
    late = Client(b'{"b":"' + b"y" * 40, b'"}')
    with pytest.raises(Overloaded):
        await read_json({}, late.receive, uploads)
    assert uploads.size_bytes == 66
    slow.goes_on.set()
    found, size_bytes = await reading
    assert (found, size_bytes) == ({"a": "x" * 60}, 68)
    assert uploads.size_bytes == 0


async def test_room_is_free_again_after_a_body_that_is_no_json_or_never_ends() -> None:
    uploads = Uploads(max_bytes=100)
    broken = Client(b"{", b"")
    broken.goes_on.set()
    with pytest.raises(BadRequest):
        await read_json({}, broken.receive, uploads)
    endless = asyncio.create_task(read_json({}, Client(b"{" * 50, b"").receive, uploads))
    await asyncio.sleep(0)
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert uploads.size_bytes == 0
