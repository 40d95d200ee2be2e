"""Strict scalars, and what is said about a field that is wrong: its path and what was expected.

Never the value itself: an answer must not grow with, or repeat, what was sent.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from diptych.core.errors import BadRequest

MAX_PROBLEMS = 10


def _whole(value: Any) -> Any:
    """Some clients write integers as 256.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int = Annotated[int, BeforeValidator(_whole)]

Member = TypeVar("Member")
Long = Annotated[list[Member], Field(fail_fast=True)]
"""A list that may be long: it is read up to the first that is wrong."""

OUR_CODES = {
    "conflicting_parameters",
    "invalid_messages",
    "invalid_tools",
    "invalid_type",
    "invalid_value",
    "unsupported_content_part",
    "unsupported_parameter",
}
_TOOLS = (("tools",), ("tool_choice",))
_FUNCTION = "@function"


def given_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """A null is an absent field, and naming no model is not naming one."""
    given = {name: value for name, value in body.items() if value is not None}
    if given.get("model") == "":
        del given["model"]
    return given


def refuse_unsupported(
    given: Mapping[str, Any],
    unsupported: Mapping[str, tuple[object, ...]],
    hints: Mapping[str, str],
) -> None:
    """Refuse known fields that do not work, unless with a value that asks for nothing."""
    for name, neutral in unsupported.items():
        if name in given and not any(_is_same(given[name], value) for value in neutral):
            hint = f"; {hints[name]}" if name in hints else ""
            message = f"{name} is not supported{hint}"
            raise BadRequest(message, code="unsupported_parameter", param=name)


def _is_same(value: object, neutral: object) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def explain(error: ValidationError) -> BadRequest:
    """The first problem decides code and param; the message lists the first ten."""
    problems = error.errors(include_url=False, include_input=False)
    lines = [f"{_path(p['loc'])}: {_wanted(p)}" for p in problems[:MAX_PROBLEMS]]
    more = len(problems) - len(lines)
    if more:
        lines.append(f"and {more} more")
    first = problems[0]
    return BadRequest("; ".join(lines), code=_code(first), param=_path(first["loc"]) or None)


def _path(loc: Sequence[int | str]) -> str:
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("@"):
            path += f".{step}" if path else step
    return path


def _code(problem: ErrorDetails) -> str:
    kind = problem["type"]
    if problem["loc"][:1] in _TOOLS:
        return "invalid_tools"
    if kind in OUR_CODES:
        return kind
    if kind == "missing":
        return "missing_required_parameter"
    if kind.startswith("union_tag"):
        return _union_code(problem)
    if kind == "too_short" and problem["loc"] == ("messages",):
        return "invalid_messages"
    return "invalid_type" if kind.endswith("_type") else "invalid_value"


def _union_code(problem: ErrorDetails) -> str:
    tag = problem.get("ctx", {}).get("tag")
    if "@parts" in problem["loc"]:
        return "unsupported_content_part"
    return "unsupported_parameter" if tag == _FUNCTION else "invalid_messages"


def _expected(problem: ErrorDetails) -> str:
    tags = str(problem.get("ctx", {}).get("expected_tags", ""))
    return tags.replace("'", "").replace("@", "").replace(", ", " or ")


def _wanted(problem: ErrorDetails) -> str:
    kind = problem["type"]
    if kind == "missing":
        return "required"
    if kind.startswith("union_tag"):
        if "@parts" in problem["loc"]:
            return f"expected a part of type {_expected(problem)}"
        if problem.get("ctx", {}).get("tag") == _FUNCTION:
            return "role function is not supported; use role tool"
        return "expected a message with role system, developer, user, assistant or tool"
    if kind == "model_type":
        return "input should be an object"
    text = problem["msg"]
    return text[:1].lower() + text[1:]
