"""`POST /v1/messages`, and what its prompt would cost: `POST /v1/messages/count_tokens`."""

from collections.abc import MutableMapping
from typing import Any

import orjson

from diptych.gateway.anthropic.request import CountRequest, MessagesRequest, translate
from diptych.gateway.anthropic.shapes import MessageShapes
from diptych.gateway.body import read_json
from diptych.gateway.chat.preparation import chat_of
from diptych.gateway.dialect import Ask
from diptych.gateway.endpoint import send_json
from diptych.gateway.served import Served
from diptych.gateway.stream import Receive, Send, unless_gone
from diptych.gateway.tenancy.visit import Visit, visit_of
from diptych.gateway.traffic import Traffic
from diptych.text.chat import render


class MessagesDialect:
    """Anthropic's. `thinks`: whether the model reasons if a request does not say."""

    def __init__(self, served: Served, *, thinks: bool = True) -> None:
        self._served = served
        self._thinks = thinks

    async def read(self, body: dict[str, Any], visit: Visit) -> Ask:
        translation = translate(body, MessagesRequest, thinks=self._thinks)
        request, prepared = await translation.prepare(visit, self._served)
        shapes = MessageShapes(
            self._served.model_name, len(prepared.prompt), self._served.identity().max_model_len
        )
        return Ask(
            prepared.calls,
            prepared.answers,
            shapes,
            is_stream=bool(request.stream),
            user=request.user_id,
            ignored=translation.ignored,
        )

    async def count(self, body: dict[str, Any], visit: Visit) -> int:
        """Tokens of the prompt that a request would have, however many they are."""
        request = translate(body, CountRequest, thinks=self._thinks).read()
        self._served.check_model(request.model)
        visit.choose(request.model)
        segments, tenant = render(chat_of(request)), visit.caller.tenant
        identity = self._served.identity()
        prompt = await self._served.encode(segments, identity, tenant, request.user_id, "")
        return len(prompt.token_ids)


class CountTokens:
    """ASGI."""

    def __init__(self, dialect: MessagesDialect, traffic: Traffic) -> None:
        self._dialect = dialect
        self._traffic = traffic

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self._traffic.check_open()
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        body = await read_json(headers, receive)
        with self._traffic.entered():
            await unless_gone(receive, self._answer(body, visit_of(scope), send))

    async def _answer(self, body: dict[str, Any], visit: Visit, send: Send) -> None:
        count = await self._dialect.count(body, visit)
        await send_json(send, orjson.dumps({"input_tokens": count}), {})
