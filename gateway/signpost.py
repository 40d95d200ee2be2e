"""What is answered where no route leads: which paths there are instead."""

import re
from collections.abc import Iterable, Sequence

import orjson
from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from diptych.gateway.errors import HttpError, envelope_for

RENDER = "/v1/chat/completions/render"  # there only where the operator wants it

# What others offer and we do not, as clients look for it, below any base.
_NOT_OFFERED = re.compile(
    r"(/beta)?(/v1)?/(embeddings|audio|images|moderations|files|batches|fine_tuning|assistants"
    r"|threads|rerank|score|pooling|classify|user/balance|responses|messages/batches)(/.*)?"
)


class Signpost:
    """Knows the routes that clients are told of."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.supported = supported(routes)

    async def refuse(self, request: Request, error: Exception) -> Response:
        """What the routing found: no such path, or not with this method."""
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            problem = HttpError(405, "method_not_allowed", f"Use {allowed} here.")
        elif path == RENDER:
            problem = HttpError(501, "not_implemented", "This deployment does not show prompts.")
        elif _NOT_OFFERED.fullmatch(path):
            text = f"This is not offered here. Supported are {self.supported}."
            problem = HttpError(404, "endpoint_not_supported", text)
        else:
            text = f"No such path. Supported are {self.supported}."
            problem = HttpError(404, "unknown_url", text)
        body = orjson.dumps(envelope_for(path, problem, request.scope["request_id"]))
        return Response(body, problem.http_status, error.headers, "application/json")


def supported(routes: Iterable[BaseRoute]) -> str:
    """Methods and paths of the API itself, each once: no aliases, no probes."""
    return ", ".join(dict.fromkeys(_named(route for route in routes if isinstance(route, Route))))


def _named(routes: Iterable[Route]) -> Iterable[str]:
    for route in routes:
        if route.path.startswith("/v1/") and "{" not in route.path:
            yield from (f"{method} {route.path}" for method in methods_of(route))


def methods_of(route: Route) -> Sequence[str]:
    """Those that were asked for; HEAD comes with GET by itself."""
    return sorted((route.methods or set()) - {"HEAD"})


async def no_response(request: Request) -> Response:
    """`/v1/responses/{id}`: whatever is asked of it, nothing was stored."""
    raise HttpError(404, "response_not_found", "Responses are not stored here.")
