"""`POST /v1/responses`, and what is said of responses that were never stored."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from diptych.core.errors import NotFound
from diptych.gateway.aside import aside
from diptych.gateway.dialect import Ask
from diptych.gateway.logprobs import Logprobs
from diptych.gateway.responses.output import Items
from diptych.gateway.responses.request import translate
from diptych.gateway.responses.shapes import ResponseShapes
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import Visit


class ResponsesDialect:
    """OpenAI's newer one, without state."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def read(self, body: dict[str, Any], visit: Visit) -> Ask:
        asked = await aside(lambda: translate(body), visit.size_bytes)
        request, prepared = await asked.translation.prepare(visit, self._served)
        sampling = prepared.calls[0].generation.sampling
        echo = {
            **asked.echo,
            "model": self._served.model_name,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        shapes = ResponseShapes(
            echo,
            Items(asked.namespaces, has_encrypted=asked.has_encrypted),
            len(prepared.prompt),
            Logprobs(self._served.tokenizer) if request.logprobs else None,
        )
        return Ask(
            prepared.calls,
            prepared.answers,
            shapes,
            is_stream=bool(request.stream),
            user=request.user_id,
            ignored=asked.translation.ignored,
            harmless=asked.translation.harmless,
        )


async def not_stored(request: Request) -> Response:
    """For whoever asks for an earlier response."""
    text = "There is no such response: responses are not stored here."
    raise NotFound(text, code="response_not_found")
