"""A gateway over scripted stations, spoken to through ASGI."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from diptych.gateway import app, served
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.policy import Policy
from diptych.gateway.served import Served
from diptych.gateway.stream import Patience
from diptych.gateway.traffic import Traffic
from diptych.router.client import Fleet
from diptych.testing.hops import DecodeHop, Output, PrefillHop, ScriptedHops
from diptych.text.markers import Segment

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"
FLEET = Fleet(ready=True, namespace=b"n" * 16, max_model_len=512, block_tokens=8)


@dataclass
class Site:
    """A gateway with all its parts in reach."""

    served: Served
    hops: ScriptedHops
    pipeline: Pipeline
    traffic: Traffic
    app: app.App
    http: httpx.AsyncClient
    fleet: Fleet | None
    is_connected: bool = True

    def body(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Hello"}]
        plain = {"thinking": {"type": "disabled"}}
        return {"model": "tiny", "messages": messages, **plain, **fields}

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=self.body(**fields))

    async def events(self, **fields: Any) -> list[Any]:
        """Data of a stream's events; the last is "[DONE]" or an error."""
        reply = await self.ask(stream=True, **fields)
        assert reply.status_code == 200, reply.text
        return self.parse(reply.text)

    @staticmethod
    def parse(text: str) -> list[Any]:
        """Data of a stream's events."""
        return parse_events(text)


def parse_events(text: str) -> list[Any]:
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    data = [b.removeprefix("data: ") for b in blocks if not b.startswith(": ")]
    return [d if d == "[DONE]" else orjson.loads(d) for d in data]


def parse_named_events(text: str) -> list[tuple[str, Any]]:
    """Name and data of each event of a stream whose events have names."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    events = []
    for block in blocks:
        if block.startswith(": "):
            continue
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    return events


@pytest.fixture
def named_events() -> Callable[[str], list[tuple[str, Any]]]:
    return parse_named_events


class Visit:
    """One request driven message by message, so that the client can leave or stop reading."""

    def __init__(self, site: Site, *, has_body: bool = True, **fields: Any) -> None:
        self._site = site
        self._upload = orjson.dumps(site.body(**fields)) if has_body else b""
        self._left = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.sent: list[MutableMapping[str, Any]] = []
        self._heard = asyncio.Event()
        self.task = asyncio.create_task(self._visit())

    async def _visit(self) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
        }
        await self._site.app(scope, self._receive, self._send)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._upload:
            body, self._upload = self._upload, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self._may_read.wait()
        self.sent.append(message)
        self._heard.set()

    def leave(self) -> None:
        self._left.set()

    def stop_reading(self) -> None:
        self._may_read.clear()

    async def heard(self, text: bytes) -> None:
        """Wait until the client has received a text."""
        async with asyncio.timeout(5):
            while text not in self.body:
                self._heard.clear()
                await self._heard.wait()

    async def over(self) -> None:
        async with asyncio.timeout(5):
            await self.task

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.fixture
def visit() -> type[Visit]:
    return Visit


Serve = Callable[..., Site]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Build a site whose engines sample the ids of the given segments."""
    sites: list[Site] = []

    def build(
        *segments: Segment,
        deadlines: Deadlines | None = None,
        patience: Patience | None = None,
        policy: Policy | None = None,
        is_hybrid: bool = False,
        **output: Any,
    ) -> Site:
        model = served.load(TINY, "tiny", b"master", lambda: site.fleet, policy)
        ids = output.pop("token_ids", None) or model.tokenizer.encode(segments)
        hops = ScriptedHops(Output(ids, **output), is_hybrid=is_hybrid)
        pipeline = Pipeline(Hops(hops, PrefillHop(hops), DecodeHop(hops)), deadlines)
        traffic = Traffic()
        application = app.build(
            model, traffic, pipeline, lambda: site.is_connected, patience=patience
        )
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
        site = Site(model, hops, pipeline, traffic, application, http, FLEET)
        sites.append(site)
        return site

    yield build
    for site in sites:
        await site.http.aclose()
        await site.pipeline.close()
        site.served.close()
        assert site.hops.is_at_baseline, site.hops.open
        assert site.traffic.num_running == 0
