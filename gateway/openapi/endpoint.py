"""`GET /openapi.json`."""

from functools import cached_property

import orjson
from starlette.requests import Request
from starlette.responses import Response

from diptych.gateway.openapi.document import document
from diptych.gateway.openapi.operations import operations
from diptych.gateway.policy import Policy


class Description:
    """Written when somebody first asks for it: that takes a while, and most never do."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def answer(self, request: Request) -> Response:
        """The document."""
        return Response(self._text, media_type="application/json")

    @cached_property
    def _text(self) -> bytes:
        hidden = () if self._policy.allow_tasks else ("task",)
        return orjson.dumps(document(operations(has_render=self._policy.allow_render), hidden))
