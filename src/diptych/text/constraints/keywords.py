"""What each JSON Schema keyword may say: known, annotation or refused, and what its value means."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

from diptych.text.constraints.formats import NUMBER_FORMATS, STRING_FORMATS
from diptych.text.constraints.grammar import Node, invalid, length_bounds, lexeme
from diptych.text.constraints.ranges import Bound, integers, numbers
from diptych.text.constraints.regex import read_regex

Schema = Mapping[str, object]
Types = Literal["null", "boolean", "integer", "number", "string", "array", "object"]

MAX_COUNT = 1_000_000
_MAX_BOUND_DIGITS = 40

_ALL_TYPES: tuple[Types, ...] = ("null", "boolean", "number", "string", "array", "object")
_ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "externalDocs",
        "xml",
        "$schema",
        "$comment",
        "$defs",
        "definitions",
    }
)
_ENFORCED = frozenset(
    {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
    }
)


def check_keywords(schema: Schema, param: str, *, is_root: bool) -> None:
    """Refuse whatever we do not enforce: a misspelt keyword must not pass for a constraint."""
    for keyword, value in schema.items():
        known = keyword in _ENFORCED or keyword in _ANNOTATIONS or keyword.startswith("x-")
        harmless = (keyword == "$id" and is_root) or (keyword == "nullable" and value is False)
        if not known and not harmless:
            raise invalid(f"{keyword} cannot be enforced", f"{param}.{keyword}")


def is_assertion(keyword: str) -> bool:
    """Whether the keyword restricts anything."""
    return keyword in _ENFORCED


def types_of(schema: Schema, param: str) -> tuple[Types, ...]:
    """The types a value may have; all of them if the schema does not say."""
    declared = schema.get("type", list(_ALL_TYPES))
    names = declared if isinstance(declared, list) else [declared]
    known: dict[object, Types] = {name: name for name in (*_ALL_TYPES, "integer")}
    if not names or any(not isinstance(n, str) or n not in known for n in names):
        raise invalid("type names one or more of the JSON types", f"{param}.type")
    found = dict.fromkeys(known[n] for n in names)
    if "number" in found:
        found.pop("integer", None)
    return tuple(found)


def is_type(value: object, name: Types) -> bool:
    """Whether a value is of the type, as JSON Schema sees it: 1.0 is an integer."""
    match value:
        case None:
            return name == "null"
        case bool():
            return name == "boolean"
        case int():
            return name in ("integer", "number")
        case float():
            return name == "number" or (name == "integer" and value.is_integer())
        case str():
            return name == "string"
        case list():
            return name == "array"
    return name == "object"


def count(schema: Schema, keyword: str, param: str) -> int | None:
    """A limit that counts something."""
    value = schema.get(keyword)
    if value is None and keyword not in schema:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise invalid(f"{keyword} is an integer from 0 to {MAX_COUNT}", f"{param}.{keyword}")
    return value


def string_content(schema: Schema, param: str) -> Node | None:
    """The content of a string by `pattern` or `format`; None if neither restricts it."""
    name, pattern = schema.get("format"), schema.get("pattern")
    if "format" in schema and name not in STRING_FORMATS and name not in NUMBER_FORMATS:
        known = ", ".join(STRING_FORMATS)
        raise invalid(f"format cannot be enforced; we know {known}", f"{param}.format")
    by_format = isinstance(name, str) and name in STRING_FORMATS
    if "pattern" not in schema:
        if not by_format:
            return None
        node = read_regex(STRING_FORMATS[str(name)], f"{param}.format", whole=True)
    else:
        if by_format:
            raise invalid("format beside pattern cannot be enforced", f"{param}.format")
        if not isinstance(pattern, str):
            raise invalid("pattern is a string", f"{param}.pattern")
        node = read_regex(pattern, f"{param}.pattern", whole=False)
    shortest, longest = length_bounds(node)
    least, most = count(schema, "minLength", param), count(schema, "maxLength", param)
    for keyword, is_implied in (
        ("minLength", least is None or shortest >= least),
        ("maxLength", most is None or (longest is not None and longest <= most)),
    ):
        if not is_implied:
            raise invalid(
                f"{keyword} beside pattern or format cannot be enforced; say it in the pattern",
                f"{param}.{keyword}",
            )
    return node


def number_node(schema: Schema, name: Literal["integer", "number"], param: str) -> Node | None:
    """The numbers between the bounds; None if there are no bounds."""
    step = schema.get("multipleOf", 1 if name == "integer" else None)
    if "multipleOf" in schema and (isinstance(step, bool) or step != 1):
        raise invalid("multipleOf other than 1 cannot be enforced", f"{param}.multipleOf")
    low = _tighter(schema, "minimum", "exclusiveMinimum", param, upper=False)
    high = _tighter(schema, "maximum", "exclusiveMaximum", param, upper=True)
    span = _format_span(schema, param)
    if step == 1:
        whole_low = None if low is None else _whole(low, upper=False)
        whole_high = None if high is None else _whole(high, upper=True)
        if span is not None:
            whole_low = span[0] if whole_low is None else max(whole_low, span[0])
            whole_high = span[1] if whole_high is None else min(whole_high, span[1])
        if whole_low is None and whole_high is None and name == "integer":
            return None
        return lexeme(integers(whole_low, whole_high))
    if span is not None:
        raise invalid("this format is for type integer", f"{param}.format")
    return None if low is None and high is None else lexeme(numbers(low, high))


def _format_span(schema: Schema, param: str) -> tuple[int, int] | None:
    name = schema.get("format")
    return NUMBER_FORMATS.get(name) if isinstance(name, str) else None


def _tighter(schema: Schema, plain: str, exclusive: str, param: str, *, upper: bool) -> Bound:
    """The bound that decides, of the inclusive and the exclusive one."""
    bounds = [
        (_decimal(schema[keyword], f"{param}.{keyword}"), keyword == exclusive)
        for keyword in (plain, exclusive)
        if keyword in schema
    ]
    if not bounds:
        return None
    return min(bounds, key=lambda b: (b[0] if upper else -b[0], not b[1]))


def _decimal(value: object, param: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid("a bound is a number", param)
    found = Decimal(repr(value))
    if len(format(found, "f")) > _MAX_BOUND_DIGITS:
        raise invalid(f"a bound has at most {_MAX_BOUND_DIGITS} digits", param)
    return found


def _whole(bound: tuple[Decimal, bool], *, upper: bool) -> int:
    value, is_exclusive = bound
    if upper:
        return math.ceil(value) - 1 if is_exclusive else math.floor(value)
    return math.floor(value) + 1 if is_exclusive else math.ceil(value)
