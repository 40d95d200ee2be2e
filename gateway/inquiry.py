"""An endpoint that answers from what the gateway knows: JSON in, JSON out, nothing generated."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from diptych.gateway.aside import aside
from diptych.gateway.body import MAX_BODY_BYTES, read_json
from diptych.gateway.stream import Receive, Send, unless_gone
from diptych.gateway.tenancy.visit import Visit, visit_of
from diptych.gateway.traffic import Traffic

Answer = Callable[[dict[str, Any], Visit], Awaitable[dict[str, Any]]]


class Inquiry:
    """ASGI."""

    def __init__(self, answer: Answer, traffic: Traffic, max_bytes: int = MAX_BODY_BYTES) -> None:
        """`max_bytes`: of a body."""
        self._answer = answer
        self._traffic = traffic
        self._max_bytes = max_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self._traffic.check_open()
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        visit = visit_of(scope)
        body, visit.size_bytes = await read_json(headers, receive, self._max_bytes)
        await unless_gone(receive, self._reply(body, visit, send))

    async def _reply(self, body: dict[str, Any], visit: Visit, send: Send) -> None:
        answer = await self._answer(body, visit)
        reply = await aside(lambda: orjson.dumps(answer), visit.size_bytes)
        fields = {"content-type": "application/json", "content-length": str(len(reply))}
        raw = [(name.encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": reply})
