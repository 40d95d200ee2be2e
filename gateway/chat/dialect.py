"""`POST /v1/chat/completions`."""

from functools import partial
from typing import Any

from diptych.gateway import timings
from diptych.gateway.aside import aside
from diptych.gateway.chat.preparation import Prepared, prepare
from diptych.gateway.chat.request import ChatRequest, read_chat
from diptych.gateway.chat.shapes import ChatShapes
from diptych.gateway.dialect import Ask
from diptych.gateway.generation import NO_EFFECT
from diptych.gateway.logprobs import Logprobs, PromptLogprobs
from diptych.gateway.served import Served
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.visit import Visit


class ChatDialect:
    """OpenAI's, with DeepSeek's fields."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def read(self, body: dict[str, Any], visit: Visit) -> Ask:
        policy = self._served.policy
        request, ignored = await aside(lambda: read_chat(body, policy), visit.size_bytes)
        prepared = await prepare(request, visit, self._served)
        return Ask(
            prepared.calls,
            prepared.answers,
            self._shapes(request, prepared, visit),
            is_stream=bool(request.stream),
            user=request.user_id,
            choices_per_prompt=request.n,
            ignored=tuple(ignored),
            harmless=tuple(sorted(NO_EFFECT & body.keys())),
        )

    def _shapes(self, request: ChatRequest, prepared: Prepared, visit: Visit) -> ChatShapes:
        tokenizer, policy = self._served.tokenizer, self._served.policy
        asks_for_prompt = request.prompt_logprobs is not None
        return ChatShapes(
            model=self._served.model_name,
            fingerprint=prepared.fingerprint,
            prompt_tokens=len(prepared.prompt),
            has_reasoning=request.is_reasoning_separate,
            reasoning_field=policy.reasoning_field,
            num_choices=request.n,
            has_usage=request.has_usage,
            closes_with_usage=policy.stream_usage_style == "deepseek",
            has_running_usage=request.has_running_usage,
            has_token_ids=request.return_token_ids,
            logprobs=Logprobs(tokenizer) if request.logprobs else None,
            prompt_logprobs=(
                PromptLogprobs(tokenizer, prepared.prompt) if asks_for_prompt else None
            ),
            timings=partial(_timings, visit, request.n) if visit.notes.wants_timings else None,
        )


def _timings(visit: Visit, num_choices: int) -> dict[str, Any] | None:
    """Once all choices are over."""
    notes = visit.notes
    if len(notes.courses) < num_choices:
        return None
    return timings.of(notes, shows_reasons=Scope.DEBUG in visit.caller.scopes)
