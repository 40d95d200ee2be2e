"""What is answered where no route leads: which paths there are instead."""

import re
from collections.abc import Iterable, Sequence

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route

from diptych.gateway.errors import HttpError

RENDER = "/v1/chat/completions/render"  # there only where the operator wants it

# What others offer and we do not, as clients look for it, below any base.
_NOT_OFFERED = re.compile(
    r"(/beta)?(/v1)?/(embeddings|audio|images|moderations|files|batches|fine_tuning|assistants"
    r"|threads|rerank|score|pooling|classify|user/balance|messages/batches)(/.*)?"
)


class Signpost:
    """Knows the routes that clients are told of."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.supported = supported(routes)

    def refusal(self, path: str, found: HTTPException) -> HttpError:
        """What the routing found: no such path, or not with this method."""
        if found.status_code == 405:
            allowed = (found.headers or {}).get("Allow", "another method")
            text = f"Use {allowed} here."
            return HttpError(405, "method_not_allowed", text, {"allow": allowed})
        if path == RENDER:
            return HttpError(501, "not_implemented", "This deployment does not show prompts.")
        if _NOT_OFFERED.fullmatch(path):
            text = f"This is not offered here. Supported are {self.supported}."
            return HttpError(404, "endpoint_not_supported", text)
        text = f"No such path. Supported are {self.supported}."
        return HttpError(404, "unknown_url", text)


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
