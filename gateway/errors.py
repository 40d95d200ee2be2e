"""Errors as HTTP: status, envelope and headers. The only place that knows their HTTP shape."""

import math
import random
from collections.abc import Mapping
from typing import Any

from diptych.core.errors import Broken, DiptychError, Expired, Lost, Overloaded

MAX_MESSAGE_CHARS = 1000
_BUG = "Something went wrong on our side. Please name the request id when you report it."

_TYPES = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "server_error",
    503: "server_error",
    504: "timeout_error",
}
_OVERLOADED = {"no_capacity", "draining", "queue_timeout"}


class HttpError(DiptychError):
    """A request that HTTP itself forbids: 401, 402, 403, 404, 405, 408, 413, 415."""

    grpc_status = "INVALID_ARGUMENT"

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.http_status = status
        self.headers = headers or {}


class ClientGone(Exception):
    """Nobody listens any more. Not an error to be told: there is nobody to tell."""


def envelope(error: DiptychError, request_id: str) -> dict[str, Any]:
    """The body of every answer from 400 up, and of an error event in a stream."""
    message = _BUG if _is_bug(error) else error.message[:MAX_MESSAGE_CHARS]
    return {
        "error": {
            "message": message,
            "type": _type_of(error),
            "param": error.param,
            "code": _code_of(error),
            "request_id": request_id,
        }
    }


def headers(error: DiptychError) -> dict[str, str]:
    """What a client's retry logic reads."""
    fields: dict[str, str] = {}
    if error.http_status in (429, 503):
        wait_s = (error.retry_after_s or 1.0) * random.uniform(1.0, 1.5)  # or all come at once
        fields["retry-after-ms"] = str(round(wait_s * 1000))
        fields["retry-after"] = str(max(1, math.ceil(wait_s)))
    if isinstance(error, Lost):
        fields["x-should-retry"] = "true"
    if isinstance(error, HttpError):
        fields |= error.headers
    return fields


def _is_bug(error: DiptychError) -> bool:
    return isinstance(error, Broken) or error.http_status == 500


def _code_of(error: DiptychError) -> str:
    """The documented code; finer ones are for us."""
    if _is_bug(error):
        return "internal_error"
    if isinstance(error, Overloaded) and error.code not in _OVERLOADED:
        return Overloaded.default_code
    return error.default_code if isinstance(error, Lost | Expired) else error.code


def _type_of(error: DiptychError) -> str:
    if isinstance(error, Overloaded):
        return "overloaded_error"
    return _TYPES.get(error.http_status, "invalid_request_error")
