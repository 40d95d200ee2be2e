"""Checks what is to become the source of a constraint."""

import json

from diptych.core.constraint import Constraint, Kind
from diptych.text.constraints.grammar import invalid
from diptych.text.constraints.references import check_size

__all__ = ["Constraint", "Kind", "canonical", "checked_text"]

MAX_SOURCE_BYTES = 256 * 1024


def canonical(value: object, param: str) -> str:
    """JSON as one text: members in their order, no spaces, nothing that UTF-8 or JSON lacks."""
    check_size(value, param)
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise invalid("this is not JSON", param) from error
    return checked_text(text, param)


def checked_text(text: object, param: str, max_bytes: int = MAX_SOURCE_BYTES) -> str:
    """A string that UTF-8 can hold, of bounded size."""
    if not isinstance(text, str):
        raise invalid("expected a string", param)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise invalid("the text holds half a surrogate pair", param) from error
    if size > max_bytes:
        raise invalid(f"at most {max_bytes} bytes can be enforced", param)
    return text
