"""Requests for raw text, to a gateway over scripted stations."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import orjson
import pytest

Ask = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def complete() -> Ask:
    """Ask a site for a completion; what is `None` is left out."""

    async def complete(site: Any, prompt: Any = "Hello", **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "prompt": prompt, **fields}
        reply: httpx.Response = await site.http.post("/v1/completions", json=body)
        return reply

    return complete


@pytest.fixture
def events_of() -> Callable[[httpx.Response], list[Any]]:
    """Data of a stream's events; the last is "[DONE]" or an error."""

    def parse(reply: httpx.Response) -> list[Any]:
        assert reply.status_code == 200, reply.text
        *events, end = reply.text.split("\n\n")
        assert end == ""
        data = [event.removeprefix("data: ") for event in events]
        return [each if each == "[DONE]" else orjson.loads(each) for each in data]

    return parse
