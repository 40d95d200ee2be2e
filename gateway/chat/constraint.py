"""What a chat request demands of its answer, and what the prompt says of it."""

import re
from typing import Any

from diptych.core.constraint import Constraint
from diptych.core.errors import BadRequest
from diptych.gateway.chat.request import ChatRequest
from diptych.text.constraints import from_response_format, from_structured_outputs

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_FIELDS = ("response_format", "structured_outputs", "regex", "ebnf")


def constraint_of(request: ChatRequest) -> Constraint | None:
    """The constraint, not yet checked whether it can be enforced; None if the answer is free.

    With tools: a call of one of them, or what else the answer may be.
    """
    named = _named(request)
    answer = _of_field(request, named) if named else None
    found = request.calling.constrained(answer, is_opened=opens_calls(request))
    if found is None:
        return None
    field = named or ("tool_choice" if request.calling.is_forced else "tools")
    if request.ignore_eos:
        raise _conflict(f"an answer with {field} ends when it is complete", "ignore_eos")
    if request.is_continued:
        raise _conflict(f"{field} cannot hold for an answer that has begun", field)
    return found


def opens_calls(request: ChatRequest) -> bool:
    """Whether the prompt itself begins the block of calls."""
    return request.calling.is_forced and request.effort is None


def _named(request: ChatRequest) -> str | None:
    """The one field that constrains the text."""
    given = [name for name in _FIELDS if getattr(request, name) is not None]
    if (request.response_format or {}).get("type") == "text":
        given.remove("response_format")
    if len(given) > 1:
        raise _conflict(f"{given[0]} and {given[1]} cannot hold at the same time", given[1])
    return given[0] if given else None


def _of_field(request: ChatRequest, name: str) -> Constraint | None:
    match name:
        case "response_format":
            _check_name(request.response_format or {})
            return from_response_format(request.response_format)
        case "structured_outputs":
            return from_structured_outputs(request.structured_outputs)
        case "regex":
            return from_structured_outputs({"regex": request.regex})
    return from_structured_outputs({"grammar": request.ebnf})


def schema_of(request: ChatRequest) -> object:
    """The schema that the prompt states; None where the model was not trained to be told."""
    asked = request.response_format or {}
    match asked.get("type"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            return asked["json_schema"]["schema"]
    return None


def _check_name(response_format: dict[str, Any]) -> None:
    inner = response_format.get("json_schema")
    name = inner.get("name") if isinstance(inner, dict) else None
    if name is not None and not (isinstance(name, str) and NAME.fullmatch(name)):
        message = "expected up to 64 letters, digits, underscores and dashes"
        raise BadRequest(message, param="response_format.json_schema.name")


def _conflict(message: str, param: str) -> BadRequest:
    return BadRequest(message, code="conflicting_parameters", param=param)
