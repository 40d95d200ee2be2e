"""One method of one path, as clients are told of it."""

from dataclasses import dataclass, field
from typing import Any

from diptych.gateway.openapi.replies import ErrorReply

# Errors by where they come from. 400 can always be: HTTP itself may be broken.
ANYWHERE = frozenset((400, 500))
BEHIND_THE_DOOR = ANYWHERE | {401, 402, 403, 413, 429, 503}
WITH_A_BODY = BEHIND_THE_DOOR | {408, 415}
GENERATING = WITH_A_BODY | {404, 501, 504}


@dataclass(frozen=True, slots=True)
class Operation:
    """`body` and `replies` are types that pydantic knows; None: nothing in it."""

    method: str
    path: str
    summary: str
    replies: dict[int, Any]  # by status
    body: Any = None
    errors: frozenset[int] = field(default=BEHIND_THE_DOOR)
    error: Any = ErrorReply
    can_stream: bool = False
    is_open: bool = False  # needs no key
