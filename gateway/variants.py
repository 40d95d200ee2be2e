"""Values of a body that are one of several kinds, told apart by a field.

    Item = Annotated[
        Annotated[Message, Tag("@message")] | Annotated[Call, Tag("@call")],
        Discriminator(tag("type")),
        BeforeValidator(one_of(("message", "call"), "invalid_messages", refused={"file": "…"})),
    ]

Tags begin with @: `fields.py` leaves them out of the path that a client reads.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import PydanticCustomError


def tag(field: str, default: str = "") -> Callable[[Any], str]:
    """Reads the kind of a value."""

    def read(value: Any) -> str:
        return f"@{_kind(value, field, default)}"

    return read


def one_of(
    kinds: Sequence[str],
    code: str,
    *,
    field: str = "type",
    default: str = "",
    refused: Mapping[str, str] | None = None,
    refused_code: str = "unsupported_parameter",
) -> Callable[[Any], Any]:
    """Lets values of these kinds pass; `refused`: what is said of kinds that are not supported."""
    expected = f"expected an object with {field} {' or '.join(kinds)}"

    def check(value: Any) -> Any:
        kind = _kind(value, field, default)
        if refused is not None and kind in refused:
            raise PydanticCustomError(refused_code, "{why}", {"why": refused[kind]})
        if kind not in kinds:
            raise PydanticCustomError(code, "{expected}", {"expected": expected})
        return value

    return check


def _kind(value: Any, field: str, default: str) -> str:
    found = value.get(field) if isinstance(value, dict) else getattr(value, field, None)
    if found is None and isinstance(value, dict):
        return default
    return found if isinstance(found, str) else ""
