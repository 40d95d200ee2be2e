"""Static pages and the files they are made of: their headers, their validators. They ask nobody."""

import hashlib
from collections.abc import Iterable
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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


def routes(files: Iterable[Traversable], prefix: str) -> list[Route]:
    """GET and HEAD of a page at `/`, and of each of its files below the prefix."""
    return [_route(file.name, file.read_bytes(), prefix) for file in files if file.is_file()]


def _route(name: str, content: bytes, prefix: str) -> Route:
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
    media_type = _TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if _has(request.headers.get("if-none-match", ""), headers["etag"]):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return Route("/" if name == _PAGE else prefix + name, answer, methods=["GET"])


def _has(condition: str, etag: str) -> bool:
    """Whether an If-None-Match names what we have; a proxy may have weakened it."""
    known = (tag.strip().removeprefix("W/") for tag in condition.split(","))
    return condition.strip() == "*" or etag in known
