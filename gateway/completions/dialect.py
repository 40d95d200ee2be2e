"""`POST /v1/completions`."""

from typing import Any

from diptych.gateway.aside import aside
from diptych.gateway.completions.preparation import prepare
from diptych.gateway.completions.request import read_completion
from diptych.gateway.completions.shapes import CompletionShapes
from diptych.gateway.dialect import Ask
from diptych.gateway.generation import NO_EFFECT
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit


class CompletionDialect:
    """OpenAI's older API, with DeepSeek's filling in the middle."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def read(self, body: dict[str, Any], visit: Visit) -> Ask:
        policy = self._served.policy
        request, ignored = await aside(lambda: read_completion(body, policy), visit.size_bytes)
        prepared = await prepare(request, visit, self._served)
        shapes = CompletionShapes(
            tokenizer=self._served.tokenizer,
            model=self._served.model_name,
            fingerprint=prepared.fingerprint,
            prompts=prepared.prompts,
            choices_per_prompt=request.n,
            has_echo=request.echo,
            has_special=not request.skip_special_tokens,
            has_usage=request.has_usage,
            closes_with_usage=self._served.policy.stream_usage_style == "deepseek",
            has_running_usage=request.has_running_usage,
            has_token_ids=request.return_token_ids,
            num_top=request.logprobs,
            num_prompt_top=request.prompt_logprobs,
        )
        return Ask(
            prepared.calls,
            prepared.answers,
            shapes,
            is_stream=bool(request.stream),
            user=request.user_id,
            choices_per_prompt=request.n,
            ignored=tuple(ignored),
            harmless=tuple(sorted(NO_EFFECT & body.keys())),
        )
