"""The playground: a chat page at `/`, and the few files it is made of. Static; it asks nobody."""

import hashlib
from collections.abc import Sequence
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX = "/playground/"  # of every file but the page itself

_PAGE = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No scripts, styles or requests but our own, and no text that becomes markup.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "cache-control": "no-cache",  # keep it, but ask whether it is still the same
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
}


def routes() -> Sequence[Route]:
    """GET and HEAD of the page and of each of its files."""
    files = resources.files("diptych.gateway") / "page"
    return [_route(file.name, file.read_bytes()) for file in files.iterdir() if file.is_file()]


def _route(name: str, content: bytes) -> Route:
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    media_type = _TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if _has(request.headers.get("if-none-match", ""), headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route("/" if name == _PAGE else PREFIX + name, answer, methods=["GET"])


def _has(condition: str, etag: str) -> bool:
    """Whether an If-None-Match names what we have; a proxy may have weakened it."""
    known = (tag.strip().removeprefix("W/") for tag in condition.split(","))
    return condition.strip() == "*" or etag in known
