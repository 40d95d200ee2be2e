"""`POST /v1/messages`, and what its prompt would cost: `POST /v1/messages/count_tokens`."""

from typing import Any

from diptych.gateway.anthropic.request import CountRequest, MessagesRequest, translate
from diptych.gateway.anthropic.shapes import MessageShapes
from diptych.gateway.aside import aside
from diptych.gateway.chat.preparation import segments_of
from diptych.gateway.dialect import Ask
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit
from diptych.gateway.translation import Translation


class MessagesDialect:
    """Anthropic's."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def read(self, body: dict[str, Any], visit: Visit) -> Ask:
        translation = await self._translate(body, MessagesRequest, visit)
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
            harmless=translation.harmless,
        )

    async def count(self, body: dict[str, Any], visit: Visit) -> dict[str, Any]:
        """Tokens of the prompt that a request would have, however many they are."""
        translation, policy = await self._translate(body, CountRequest, visit), self._served.policy
        request = await aside(lambda: translation.read(policy), visit.size_bytes)
        visit.choose(self._served.check_model(request.model))
        with translation.names.spoken():
            segments = await segments_of(request, visit.size_bytes)
        identity, tenant = self._served.identity(), visit.caller.tenant
        prompt = await self._served.encode(segments, identity, tenant, request.user_id, "")
        return {"input_tokens": len(prompt.token_ids)}

    async def _translate(
        self, body: dict[str, Any], kind: type[CountRequest], visit: Visit
    ) -> Translation:
        policy, model = self._served.policy, body.get("model")
        default = policy.messages_default_thinking
        thinks = policy.thinks(model, default) if isinstance(model, str) else default
        return await aside(lambda: translate(body, kind, thinks=thinks), visit.size_bytes)
