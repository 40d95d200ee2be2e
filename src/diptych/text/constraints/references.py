"""What a schema points to, how big it is, and which of its branches exclude each other."""

import json
import re
from collections.abc import Iterator
from typing import cast

from diptych.text.constraints.grammar import invalid
from diptych.text.constraints.keywords import Schema, Types, types_of

MAX_JSON_DEPTH = 256
MAX_PROPERTIES = 5_000
MAX_ENUM_VALUES = 10_000
_MAX_HOPS = 64


def check_size(document: object, param: str) -> None:
    """Refuse what is too deep or too wide, before anything recurses over it."""
    properties = enum_values = 0
    stack: list[tuple[object, int]] = [(document, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_JSON_DEPTH:
            raise invalid("the schema is nested too deep", param)
        if isinstance(value, dict):
            inner, choices = value.get("properties"), value.get("enum")
            properties += len(inner) if isinstance(inner, dict) else 0
            enum_values += len(choices) if isinstance(choices, list) else 0
            stack += [(v, depth + 1) for v in value.values()]
        elif isinstance(value, list):
            stack += [(v, depth + 1) for v in value]
    if properties > MAX_PROPERTIES:
        raise invalid(f"a schema has at most {MAX_PROPERTIES} properties", param)
    if enum_values > MAX_ENUM_VALUES:
        raise invalid(f"a schema has at most {MAX_ENUM_VALUES} enum values", param)


def resolve(document: object, target: str, param: str) -> object:
    """What a local JSON pointer names. Nothing is ever fetched."""
    if target != "#" and not target.startswith("#/"):
        raise invalid("only references inside the schema (#, #/$defs/…) can be enforced", param)
    found = document
    for part in target[2:].split("/") if len(target) > 1 else ():
        name = re.sub("%([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), part)
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise invalid("the reference points to nothing", param)
    return found


def are_disjoint(document: object, one: object, other: object, param: str) -> bool:
    """Whether no value can satisfy both: by type, by const or enum, or by one property's."""
    a, b = _follow(document, one, param), _follow(document, other, param)
    if a is None or b is None:
        return False
    if {_kind(t) for t in types_of(a, param)}.isdisjoint(_kind(t) for t in types_of(b, param)):
        return True
    left, right = _constants(a), _constants(b)
    if left is not None and right is not None:
        return left.isdisjoint(right)
    return _differ_by_property(document, a, b, param)


def _kind(name: Types) -> str:
    return "number" if name == "integer" else name


def _differ_by_property(document: object, a: Schema, b: Schema, param: str) -> bool:
    if types_of(a, param) != ("object",) or types_of(b, param) != ("object",):
        return False
    for name, left in _required_properties(a):
        for other, right in _required_properties(b):
            if name == other:
                x, y = _follow(document, left, param), _follow(document, right, param)
                first, second = x and _constants(x), y and _constants(y)
                if first and second and first.isdisjoint(second):
                    return True
    return False


def _required_properties(schema: Schema) -> Iterator[tuple[str, object]]:
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        yield from ((n, properties[n]) for n in required if isinstance(n, str) and n in properties)


def _follow(document: object, schema: object, param: str) -> Schema | None:
    for _ in range(_MAX_HOPS):
        if not isinstance(schema, dict):
            return None
        if "$ref" not in schema:
            return cast(Schema, schema)
        schema = resolve(document, str(schema["$ref"]), param)
    return None


def _constants(schema: Schema) -> frozenset[str] | None:
    """The values of const or enum, spelled so that equal values are equal texts."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return frozenset(map(_spelling, values)) if isinstance(values, list) else None


def _spelling(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list | dict):
        return "any compound value"  # never told apart
    return json.dumps(value)
