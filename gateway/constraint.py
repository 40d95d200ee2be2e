"""The fields of an OpenAI-style body that constrain its text: at most one of them at a time."""

import re
from typing import Any, Protocol

from diptych.core.constraint import Constraint
from diptych.core.errors import BadRequest
from diptych.text.constraints import from_response_format, from_structured_outputs

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS = ("response_format", "structured_outputs", "regex", "ebnf")


class Constrained(Protocol):
    """A request that may have these fields."""

    @property
    def response_format(self) -> dict[str, Any] | None: ...

    @property
    def structured_outputs(self) -> dict[str, Any] | None: ...

    @property
    def regex(self) -> str | None: ...

    @property
    def ebnf(self) -> str | None: ...


def constraining_field(request: Constrained) -> str | None:
    """The one field that constrains the text."""
    given = [name for name in _FIELDS if getattr(request, name) is not None]
    if (request.response_format or {}).get("type") == "text":
        given.remove("response_format")
    if len(given) > 1:
        raise conflict(f"{given[0]} and {given[1]} cannot hold at the same time", given[1])
    return given[0] if given else None


def text_constraint(request: Constrained, field: str) -> Constraint | None:
    """What this field demands, not yet checked whether it can be enforced."""
    match field:
        case "response_format":
            _check_name(request.response_format or {})
            return from_response_format(request.response_format)
        case "structured_outputs":
            return from_structured_outputs(request.structured_outputs)
        case "regex":
            return from_structured_outputs({"regex": request.regex})
    return from_structured_outputs({"grammar": request.ebnf})


def conflict(message: str, param: str) -> BadRequest:
    """Fields that are fine by themselves."""
    return BadRequest(message, code="conflicting_parameters", param=param)


def _check_name(response_format: dict[str, Any]) -> None:
    inner = response_format.get("json_schema")
    name = inner.get("name") if isinstance(inner, dict) else None
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        message = "expected up to 64 letters, digits, underscores and dashes"
        raise BadRequest(message, param="response_format.json_schema.name")
