"""Objects: which members, in which order, and how the rest of them is bounded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from diptych.text.constraints.grammar import (
    EMPTY,
    NOTHING,
    Lexeme,
    Node,
    OtherKey,
    alt,
    invalid,
    optional,
    repeat,
    seq,
)
from diptych.text.constraints.json_text import Layout, constant, joined, object_of, string_of
from diptych.text.constraints.keywords import Schema, count

MAX_KEY_STATES = 48


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """The object keywords of one schema, checked against each other."""

    properties: tuple[tuple[str, object], ...]  # in order, with those only `required` names
    required: frozenset[str]
    names: object  # schema of further keys; None for any
    extra: object  # schema of further values; False for none
    names_keyword: str
    extra_keyword: str
    least: int  # further members, at least
    most: int | None  # and at most
    is_empty_allowed: bool

    @property
    def is_anything(self) -> bool:
        """Whether any object will do."""
        free = self.names is None and self.extra in (True, {}) and self.most is None
        return free and not self.properties and self.least == 0


def object_shape(schema: Schema, param: str, *, is_closed: bool) -> ObjectShape:
    """Read the object keywords; refuse what the order of the text cannot count."""
    declared = schema.get("properties", {})
    if not isinstance(declared, dict):
        raise invalid("properties is an object", f"{param}.properties")
    required = _required(schema, param)
    names, names_keyword = schema.get("propertyNames"), "propertyNames"
    is_open = not (is_closed and declared)
    extra, keyword = schema.get("additionalProperties", is_open), "additionalProperties"
    if "patternProperties" in schema:
        if names is not None:
            raise invalid(
                "propertyNames beside patternProperties cannot be enforced",
                f"{param}.propertyNames",
            )
        names, extra = _by_pattern(schema, param)
        names_keyword = keyword = "patternProperties"
    elif names is not None:
        names = _key_schema(names, f"{param}.propertyNames")
    known = set(declared)
    if names is not None and (known or required):
        raise invalid("it cannot be enforced beside properties or required", f"{param}.{keyword}")
    late = [(name, extra) for name in dict.fromkeys(required) if name not in known]
    properties = (*cast(dict[str, object], declared).items(), *late)
    least, most, is_empty_allowed = _counts(
        schema, len(set(required)), len(properties), extra is False, param
    )
    return ObjectShape(
        properties=properties,
        required=frozenset(required),
        names=names,
        extra=extra,
        names_keyword=names_keyword,
        extra_keyword=keyword,
        least=least,
        most=most,
        is_empty_allowed=is_empty_allowed,
    )


def _required(schema: Schema, param: str) -> list[str]:
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(n, str) for n in required):
        raise invalid("required is a list of names", f"{param}.required")
    return required


def _key_schema(names: object, param: str) -> object:
    """`propertyNames`, as the schema of a string that it is."""
    types = names.get("type", "string") if isinstance(names, dict) else None
    if types != "string" or {"$ref", "anyOf", "oneOf", "allOf"} & set(cast(Schema, names)):
        raise invalid("propertyNames can be enforced as a plain string schema only", param)
    return {**cast(Schema, names), "type": "string"}


def _by_pattern(schema: Schema, param: str) -> tuple[object, object]:
    """`patternProperties` as the one source of keys."""
    patterns = schema["patternProperties"]
    here = f"{param}.patternProperties"
    if not isinstance(patterns, dict) or len(patterns) != 1:
        raise invalid("patternProperties can be enforced with one pattern only", here)
    if schema.get("properties") or schema.get("additionalProperties", True) is not False:
        raise invalid(
            "patternProperties can be enforced only without properties "
            "and with additionalProperties false",
            here,
        )
    ((pattern, value),) = patterns.items()
    return {"type": "string", "pattern": pattern}, value


def _counts(
    schema: Schema, sure: int, possible: int, is_closed: bool, param: str
) -> tuple[int, int | None, bool]:
    """Bounds on further members, and whether the object may be empty."""
    least, most = count(schema, "minProperties", param) or 0, count(schema, "maxProperties", param)
    if least > max(sure, 1):  # a key may be written twice and counts once
        raise invalid(
            "minProperties cannot be enforced here; use required", f"{param}.minProperties"
        )
    more: int | None = None
    if most is not None and not (is_closed and possible <= most):
        if possible != sure:
            raise invalid(
                "maxProperties cannot be enforced beside optional properties",
                f"{param}.maxProperties",
            )
        more = most - sure
    return int(least == 1 and possible == 0), more, least == 0


def object_node(
    layout: Layout,
    shape: ObjectShape,
    values: Sequence[Node],
    key: Node | None,
    extra: Node,
    rule: Callable[[Node], Node],
) -> Node:
    """The object: members in order, those that are not required optional, further ones last."""
    if shape.most is not None and shape.most < 0:
        return NOTHING
    members = [
        seq(Lexeme(constant(name)), layout.colon, value)
        for (name, _), value in zip(shape.properties, values, strict=True)
    ]
    must = [name in shape.required for name, _ in shape.properties]
    more: Node = NOTHING
    if extra != NOTHING and shape.most != 0:
        words = tuple(name for name, _ in shape.properties)
        other = key or (Lexeme(other_key(words)) if words else string_of(0, None))
        more = seq(other, layout.colon, extra)
    return object_of(layout, _members(layout, shape, members, must, more, rule))


def other_key(words: tuple[str, ...]) -> OtherKey:
    """A key apart from the declared ones. Each beginning of a declared key is a state that costs
    the backend milliseconds to compile; where there are too many, keys are told apart by their
    first letters only: a few keys more are ruled out than must be."""
    depth, states = 0, {""}
    while depth < max(map(len, words)):
        deeper = states | {w[: depth + 1] for w in words}
        if len(deeper) > MAX_KEY_STATES:
            break
        depth, states = depth + 1, deeper
    depth += 1
    exact = tuple(w for w in words if len(w) < depth)
    stems = dict.fromkeys(w[:depth] for w in words if len(w) >= depth)
    return OtherKey(exact, tuple(stems))


def _members(
    layout: Layout,
    shape: ObjectShape,
    members: Sequence[Node],
    must: Sequence[bool],
    more: Node,
    rule: Callable[[Node], Node],
) -> Node:
    if not members:
        return (
            joined(layout, more, shape.least, shape.most)
            if more != NOTHING
            else (NOTHING if shape.least else EMPTY)
        )
    tail = repeat(seq(layout.comma, more), 0, shape.most) if more != NOTHING else EMPTY
    if True in must:  # before the first sure member the comma follows, after it it leads
        first = must.index(True)
        before = [optional(seq(m, layout.comma)) for m in members[:first]]
        after = [
            seq(layout.comma, m) if is_sure else optional(seq(layout.comma, m))
            for m, is_sure in zip(members[first + 1 :], must[first + 1 :], strict=True)
        ]
        return seq(*before, members[first], *after, tail)
    options: list[Node] = [EMPTY] if shape.is_empty_allowed else []
    if more != NOTHING:
        options.append(joined(layout, more, 1, shape.most))
    rest = tail
    for member in reversed(members):
        options.append(seq(member, rest))
        rest = rule(seq(optional(seq(layout.comma, member)), rest))
    return alt(*options)
