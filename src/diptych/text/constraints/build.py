"""From a constraint to its grammar, or to the reason why there is none."""

import json
from collections.abc import Mapping
from typing import cast

from diptych.text.constraints.constraint import Constraint, Kind
from diptych.text.constraints.gbnf import read_gbnf
from diptych.text.constraints.grammar import (
    EMPTY,
    Alt,
    Chars,
    Grammar,
    Node,
    Repeat,
    Seq,
    Text,
    alt,
    invalid,
    length_bounds,
    lexeme,
    optional,
    repeat,
    seq,
)
from diptych.text.constraints.json_text import (
    FLEXIBLE,
    MAX_WHITESPACE,
    PYTHON,
    WHITESPACE,
    Layout,
    layout,
)
from diptych.text.constraints.regex import only_characters, read_regex
from diptych.text.constraints.schema import SchemaReader
from diptych.text.constraints.soundness import sound
from diptych.text.constraints.tags import read_structural_tag
from diptych.text.constraints.tools import read_tool_calls


def check(constraint: Constraint) -> None:
    """Raise BadRequest (`invalid_schema`) if we cannot enforce the constraint.

    This is what a gateway runs. The backends have no say here: both recurse over what they are
    given, and a crash of their stack would take the gateway along. A worker asks them in a
    process of its own.
    """
    build(constraint)


def build(constraint: Constraint) -> Grammar:
    """The grammar of all outputs that satisfy the constraint."""
    whole, rules = _read(constraint)
    return sound({**rules, "root": whole}, constraint.param)


def _read(constraint: Constraint, prefix: str = "") -> tuple[Node, dict[str, Node]]:
    source, param = constraint.source, constraint.param
    match constraint.kind:
        case Kind.JSON_SCHEMA:
            reader = SchemaReader(
                json.loads(source),
                _layout(constraint),
                param,
                prefix,
                is_closed=constraint.is_closed,
            )
            return reader.read()
        case Kind.JSON_OBJECT:
            return SchemaReader({"type": "object"}, _layout(constraint), param, prefix).read()
        case Kind.REGEX:
            return read_regex(source, param, whole=True), {}
        case Kind.CHOICE:
            return alt(*(Text(choice) for choice in json.loads(source))), {}
        case Kind.EBNF:
            return read_gbnf(source, param, prefix)
        case Kind.STRUCTURAL_TAG:
            return read_structural_tag(json.loads(source), param)
    return _tool_calls(json.loads(source))


def _tool_calls(source: Mapping[str, object]) -> tuple[Node, dict[str, Node]]:
    answer: Node | None = None
    rules: dict[str, Node] = {}
    if source["answer"]:
        packed = cast(str, source["answer"]).encode()
        answer, rules = _read(Constraint.unpack(packed), "answer.")
    whole, more = read_tool_calls(source, answer)
    return whole, rules | more


def _layout(constraint: Constraint) -> Layout:
    if constraint.whitespace is None:
        return layout(FLEXIBLE)
    if constraint.whitespace == "":
        return PYTHON
    param = constraint.param.rpartition(".")[0] + ".whitespace_pattern"
    node = _clamped(read_regex(constraint.whitespace, param, whole=True))
    if node == EMPTY:
        return layout(EMPTY)
    if not only_characters(node, WHITESPACE.ranges):
        raise invalid("it may match JSON white space only", param)
    least, most = length_bounds(node)
    if most is None or most > MAX_WHITESPACE:
        raise invalid(f"it may match at most {MAX_WHITESPACE} characters", param)
    return layout(lexeme(node) if least else optional(lexeme(node)))


def _clamped(node: Node) -> Node:
    """Repetitions without end end at the limit for white space."""
    match node:
        case Repeat(Chars() | Text() as item, least, None):
            return repeat(item, least, max(least, MAX_WHITESPACE))
        case Seq(parts):
            return seq(*map(_clamped, parts))
        case Alt(options):
            return alt(*map(_clamped, options))
    return node
