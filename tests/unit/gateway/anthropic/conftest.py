"""A gateway over scripted stations, asked in Anthropic's way."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest


@dataclass
class Client:
    """Asks one site."""

    site: Any
    parse: Callable[[str], list[tuple[str, Any]]]

    def body(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Hello"}]
        return {"model": "tiny", "max_tokens": 400, "messages": messages, **fields}

    async def post(self, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
        reply: httpx.Response = await self.site.http.post(path, json=self.body(**fields))
        return reply

    async def whole(self, **fields: Any) -> dict[str, Any]:
        reply = await self.post(**fields)
        assert reply.status_code == 200, reply.text
        message: dict[str, Any] = reply.json()
        return message

    async def events(self, **fields: Any) -> list[tuple[str, Any]]:
        reply = await self.post(stream=True, **fields)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        return self.parse(reply.text)

    @property
    def prompt(self) -> tuple[int, ...]:
        """Of the last request."""
        ids: tuple[int, ...] = self.site.hops.generations[-1].prompt
        return ids

    def encoded(self, *segments: Any) -> tuple[int, ...]:
        ids: tuple[int, ...] = self.site.served.tokenizer.encode(segments)
        return ids


@pytest.fixture
def client(serve: Any, named_events: Any) -> Callable[..., Client]:
    def build(*segments: Any, context: int = 4096, **output: Any) -> Client:
        site = serve(*segments, **output)
        site.fleet = replace(site.fleet, max_model_len=context)
        return Client(site, named_events)

    return build
