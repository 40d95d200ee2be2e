"""Request bodies: read within bounds, parsed strictly."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from diptych.core.errors import BadRequest
from diptych.gateway.aside import aside
from diptych.gateway.errors import ClientGone, HttpError

MAX_BODY_BYTES = 96 << 20
MAX_TEXT_BODY_BYTES = 16 << 20  # where no images can be
MAX_DEPTH = 128
MAX_CONTAINERS = 1 << 20  # objects and arrays; each message of the longest conversation is one
UPLOAD_SILENCE_S = 60.0

# Texts of JSON; one without an end goes to the end. No place is looked at twice.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def read_json(
    headers: Mapping[str, str], receive: Receive, max_bytes: int = MAX_BODY_BYTES
) -> tuple[dict[str, Any], int]:
    """The body as an object, and its size in bytes; HttpError or BadRequest otherwise."""
    _check_headers(headers)
    body = await read(headers, receive, max_bytes=max_bytes)
    return await aside(lambda: parse(body), len(body)), len(body)


async def read(
    headers: Mapping[str, str],
    receive: Receive,
    *,
    silence_s: float = UPLOAD_SILENCE_S,
    max_bytes: int = MAX_BODY_BYTES,
) -> bytes:
    """The whole body; refused as soon as it is known to be too large, or stalls."""
    check_size(headers, max_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        try:
            async with asyncio.timeout(silence_s):
                message = await receive()
        except TimeoutError:
            text = f"The upload made no progress for {silence_s:g} s."
            close = {"connection": "close"}
            raise HttpError(408, "request_timeout", text, close) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > max_bytes:
            raise too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


def check_size(headers: Mapping[str, str], max_bytes: int = MAX_BODY_BYTES) -> None:
    """Refuse what says itself that it is too large."""
    declared = headers.get("content-length", "")
    if declared.isdecimal() and declared.isascii() and int(declared[:20]) > max_bytes:
        raise too_large(max_bytes)


def parse(body: bytes) -> dict[str, Any]:
    """A JSON object: no NaN, no BOM, no lone surrogates, no deep nesting."""
    num_brackets = body.count(b"[") + body.count(b"{")
    if num_brackets > MAX_CONTAINERS and _num_containers(body) > MAX_CONTAINERS:
        raise _invalid(f"The body has more than {MAX_CONTAINERS} objects and arrays.")
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode(errors="replace"))
        raise _invalid(f"The body is not valid JSON (at byte {at}): {error.msg}.") from None
    if num_brackets > MAX_DEPTH and _is_deeper_than(MAX_DEPTH, parsed):
        raise _invalid(f"The body is nested deeper than {MAX_DEPTH} levels.")
    if not isinstance(parsed, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_type")
    return parsed


def _check_headers(headers: Mapping[str, str]) -> None:
    media_type = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if media_type not in ("application/json", ""):
        raise HttpError(415, "unsupported_media_type", "The content type must be application/json.")
    if encoding not in ("identity", ""):
        raise HttpError(415, "unsupported_media_type", "Compressed bodies are not accepted.")


def _num_containers(body: bytes) -> int:
    """Brackets in texts are none."""
    plain = _TEXT.sub(b"", body)
    return plain.count(b"[") + plain.count(b"{")


def _is_deeper_than(limit: int, parsed: Any) -> bool:
    level = [parsed] if isinstance(parsed, dict | list) else []
    for _ in range(limit):
        inside = [v for c in level for v in (c.values() if isinstance(c, dict) else c)]
        level = [value for value in inside if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _invalid(message: str) -> BadRequest:
    return BadRequest(message, code="invalid_json")


def too_large(max_bytes: int) -> HttpError:
    """The refusal of a body."""
    text = f"The body is larger than {max_bytes} bytes."
    return HttpError(413, "request_too_large", text)
