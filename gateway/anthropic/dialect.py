"""`POST /v1/messages`, and what its prompt would cost: `POST /v1/messages/count_tokens`."""

from typing import Any

from diptych.gateway.anthropic.request import CountRequest, MessagesRequest, translate
from diptych.gateway.anthropic.shapes import MessageShapes
from diptych.gateway.chat.preparation import chat_of
from diptych.gateway.dialect import Ask
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit
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

    async def count(self, body: dict[str, Any], visit: Visit) -> dict[str, Any]:
        """Tokens of the prompt that a request would have, however many they are."""
        request = translate(body, CountRequest, thinks=self._thinks).read()
        self._served.check_model(request.model)
        visit.choose(request.model)
        segments, tenant = render(chat_of(request)), visit.caller.tenant
        identity = self._served.identity()
        prompt = await self._served.encode(segments, identity, tenant, request.user_id, "")
        return {"input_tokens": len(prompt.token_ids)}
