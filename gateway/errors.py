"""Errors as HTTP: status, envelope and headers. The only place that knows their HTTP shape."""

import math
import random
import re
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
POISON = "poison_request"  # it has killed its workers twice: nobody shall send it again
_OVERLOADED = {"no_capacity", "draining", "queue_timeout", POISON}

_ANTHROPIC_PATH = re.compile(r"/(anthropic|v1/messages)(/.*)?")
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    501: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


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


def is_anthropic(path: str) -> bool:
    """Whether a path speaks Anthropic's dialect."""
    return _ANTHROPIC_PATH.fullmatch(path) is not None


def envelope_for(path: str, error: DiptychError, request_id: str) -> dict[str, Any]:
    """The body of every answer from 400 up: the path decides its shape."""
    return (anthropic_envelope if is_anthropic(path) else envelope)(error, request_id)


def envelope(error: DiptychError, request_id: str) -> dict[str, Any]:
    """OpenAI's, as a body and as an error event in a stream."""
    return {
        "error": {
            "message": message_of(error),
            "type": _type_of(error),
            "param": error.param,
            "code": code_of(error),
            "request_id": request_id,
        }
    }


def anthropic_envelope(error: DiptychError, request_id: str) -> dict[str, Any]:
    """Anthropic's, likewise. It has no place for the field, so the message begins with it."""
    message = message_of(error)
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"[:MAX_MESSAGE_CHARS]
    kind = _ANTHROPIC_TYPES.get(error.http_status, "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": request_id,
    }


def message_of(error: DiptychError) -> str:
    """What a person may read of it."""
    return _BUG if _is_bug(error) else error.message[:MAX_MESSAGE_CHARS]


def code_of(error: DiptychError) -> str:
    """The documented code; finer ones are for us."""
    if _is_bug(error):
        return "internal_error"
    if isinstance(error, Overloaded) and error.code not in _OVERLOADED:
        return Overloaded.default_code
    return error.default_code if isinstance(error, Lost | Expired) else error.code


def headers(error: DiptychError) -> dict[str, str]:
    """What a client's retry logic reads."""
    fields: dict[str, str] = {}
    if error.http_status in (429, 503):
        wait_s = (error.retry_after_s or 1.0) * random.uniform(1.0, 1.5)  # or all come at once
        fields["retry-after-ms"] = str(round(wait_s * 1000))
        fields["retry-after"] = str(max(1, math.ceil(wait_s)))
    if isinstance(error, Lost):
        fields["x-should-retry"] = "true"
    if error.code == POISON:
        fields["x-should-retry"] = "false"
    if isinstance(error, HttpError):
        fields |= error.headers
    return fields


def _is_bug(error: DiptychError) -> bool:
    return isinstance(error, Broken) or error.http_status == 500


def _type_of(error: DiptychError) -> str:
    if isinstance(error, Overloaded) and error.code != POISON:
        return "overloaded_error"
    return _TYPES.get(error.http_status, "invalid_request_error")
