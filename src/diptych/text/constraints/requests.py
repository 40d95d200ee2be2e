"""The shapes in which requests state a constraint, turned into the one value."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from diptych.core.errors import BadRequest
from diptych.text.constraints.constraint import Constraint, Kind, canonical, checked_text
from diptych.text.constraints.strict import strict_parameters

MAX_CHOICES = 1_000

_ONE_OF = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS = ("disable_any_whitespace", "whitespace_pattern")


def from_response_format(value: object, param: str = "response_format") -> Constraint | None:
    """`response_format` of a chat request; None for plain text."""
    if value is None:
        return None
    held = _object(value, param)
    match held.get("type"):
        case "text":
            return None
        case "json_object":
            return Constraint(Kind.JSON_OBJECT, "", param=param)
        case "json_schema":
            here = f"{param}.json_schema"
            inner = _object(held.get("json_schema"), here)
            if "schema" not in inner:
                raise _wrong("json_schema needs a schema", f"{here}.schema")
            is_strict = inner.get("strict")
            if is_strict not in (None, True, False):
                raise _wrong("strict is true or false", f"{here}.strict")
            source = canonical(inner["schema"], f"{here}.schema")
            return Constraint(
                Kind.JSON_SCHEMA, source, is_closed=is_strict is True, param=f"{here}.schema"
            )
        case "regex":
            return _of_text(Kind.REGEX, held.get("regex"), f"{param}.regex")
        case "grammar":
            return _of_text(Kind.EBNF, held.get("grammar"), f"{param}.grammar")
        case "structural_tag":
            return _of_json(Kind.STRUCTURAL_TAG, held, param)
    raise _wrong(
        "type is one of text, json_object, json_schema, regex, grammar, structural_tag",
        f"{param}.type",
    )


def from_structured_outputs(value: object, param: str = "structured_outputs") -> Constraint | None:
    """`structured_outputs`: exactly one kind, and options about white space."""
    if value is None:
        return None
    held = _object(value, param)
    for name in held:
        if name not in _ONE_OF and name not in _OPTIONS:
            raise _wrong(f"{name} is unknown", f"{param}.{name}")
    chosen = [name for name in _ONE_OF if held.get(name) not in (None, False)]
    if len(chosen) != 1:
        raise _wrong(f"give exactly one of {', '.join(_ONE_OF)}", param)
    here = f"{param}.{chosen[0]}"
    found = _of_kind(chosen[0], held[chosen[0]], here)
    space = _whitespace(held, param)
    if space is None:
        return found
    if found.kind not in (Kind.JSON_SCHEMA, Kind.JSON_OBJECT):
        raise _wrong("white space options go with json and json_object only", param)
    return Constraint(found.kind, found.source, space, param=here)


def _of_kind(name: str, value: object, param: str) -> Constraint:
    match name:
        case "json":
            return _of_json(Kind.JSON_SCHEMA, _parsed(value, param), param)
        case "json_object":
            if value is not True:
                raise _wrong("json_object is true or absent", param)
            return Constraint(Kind.JSON_OBJECT, "", param=param)
        case "regex":
            return _of_text(Kind.REGEX, value, param)
        case "grammar":
            return _of_text(Kind.EBNF, value, param)
        case "choice":
            return _choice(value, param)
    return _of_json(Kind.STRUCTURAL_TAG, _parsed(value, param), param)


def _choice(value: object, param: str) -> Constraint:
    are_texts = isinstance(value, list) and all(isinstance(v, str) for v in value)
    if not isinstance(value, list) or not are_texts or not 1 <= len(value) <= MAX_CHOICES:
        raise _wrong(f"choice is a list of 1 to {MAX_CHOICES} strings", param)
    return _of_json(Kind.CHOICE, value, param)


def _whitespace(held: Mapping[str, object], param: str) -> str | None:
    pattern, is_disabled = held.get("whitespace_pattern"), held.get("disable_any_whitespace")
    if is_disabled not in (None, True, False):
        raise _wrong("it is true or false", f"{param}.disable_any_whitespace")
    if pattern is not None and is_disabled:
        raise _wrong("it contradicts disable_any_whitespace", f"{param}.whitespace_pattern")
    if pattern is not None:
        return checked_text(pattern, f"{param}.whitespace_pattern", 256) or "()"
    return "" if is_disabled else None


def _parsed(value: object, param: str) -> object:
    """A schema may come as an object or as its text."""
    if not isinstance(value, str):
        return value
    checked_text(value, param)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _wrong("this text is not JSON", param) from error


@dataclass(frozen=True, slots=True)
class Tool:
    """What a constraint needs to know of a function."""

    name: str
    parameters: object
    is_strict: bool = False


def from_tools(
    tools: Sequence[Tool],
    *,
    forced: bool = False,
    only: str | None = None,
    allowed: Collection[str] | None = None,
    parallel: bool = True,
    opened: bool = False,
    answer: Constraint | None = None,
) -> Constraint | None:
    """Calls of these tools as DSML blocks, and what may stand in their place.

    `forced`: at least one call, no other text (`required`); `only`: that tool alone, forced.
    `allowed`: these tools alone; paths in errors count all `tools`. `opened`: the prompt already
    ends in the opening of the block. `answer`: the constraint of a plain answer, which stays
    possible unless calls are forced. None: nothing to enforce.

    A forced call keeps to its tool's schema even where that is not strict, if we can enforce it.
    """
    held = [t for t in tools if only in (None, t.name) and (allowed is None or t.name in allowed)]
    is_forced = forced or only is not None
    if not held:
        if is_forced:
            raise BadRequest("there is no such tool to call", param="tool_choice")
        return answer
    if not is_forced and answer is None and not any(t.is_strict for t in held):
        return None
    inner = None if is_forced or answer is None else answer
    source = {
        "tools": [
            [t.name, strict_parameters(t.parameters, _where(tools.index(t)))]
            if t.is_strict
            else [t.name, t.parameters if is_forced else None]
            for t in held
        ],
        "loose": [t.name for t in held if not t.is_strict],
        "indexes": [tools.index(t) for t in held],
        "forced": is_forced,
        "parallel": parallel and only is None,
        "opened": opened,
        "answer": inner and inner.pack().decode(),
    }
    return Constraint(Kind.TOOL_CALLS, canonical(source, "tools"), param="tools")


def _where(index: int) -> str:
    return f"tools[{index}].function.parameters"


def _of_json(kind: Kind, value: object, param: str) -> Constraint:
    return Constraint(kind, canonical(value, param), param=param)


def _of_text(kind: Kind, value: object, param: str) -> Constraint:
    return Constraint(kind, checked_text(value, param), param=param)


def _object(value: object, param: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _wrong("expected an object", param)
    return value


def _wrong(message: str, param: str) -> BadRequest:
    return BadRequest(message, param=param)
