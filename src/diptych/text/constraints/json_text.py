"""JSON as grammar nodes: white space, strings, keys, numbers and values of any type.

Strings have one spelling each: characters as they are, the short escape where JSON needs one, no
\\uXXXX and no \\/ in free text. So two spellings can never smuggle in one key twice, and a lone
surrogate cannot be written. White space runs, and digits of a number, are bounded.
"""

import json
from dataclasses import dataclass

from diptych.text.constraints.grammar import (
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Lexeme,
    Node,
    Repeat,
    Rule,
    Seq,
    Text,
    alt,
    chars,
    complement,
    intersection,
    optional,
    repeat,
    seq,
)

MAX_WHITESPACE = 20
MAX_DIGITS = 64

WHITESPACE = chars(" \n\r\t")
SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_MUST_ESCAPE = chars('"\\', (0, 0x1F)).ranges
PLAIN = Chars(complement(_MUST_ESCAPE))
DIGIT = chars((48, 57))
_ESCAPE = seq(Text("\\"), chars("".join(SHORT_ESCAPES.values())))
_REST = seq(repeat(PLAIN, 0, None), repeat(seq(_ESCAPE, repeat(PLAIN, 0, None)), 0, None))

STRING = Lexeme(seq(Text('"'), _REST, Text('"')))
_WHOLE = alt(Text("0"), seq(chars((49, 57)), repeat(DIGIT, 0, MAX_DIGITS - 1)))
INTEGER = Lexeme(seq(optional(Text("-")), _WHOLE))
NUMBER = Lexeme(
    seq(
        optional(Text("-")),
        _WHOLE,
        optional(seq(Text("."), repeat(DIGIT, 1, MAX_DIGITS))),
        optional(seq(chars("eE"), optional(chars("+-")), repeat(DIGIT, 1, 2))),
    )
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands between the tokens of a document."""

    space: Node
    comma: Node
    colon: Node


def layout(space: Node) -> Layout:
    """This white space wherever JSON allows some."""
    return Layout(space, _around(space, ","), _around(space, ":"))


def _around(space: Node, mark: str) -> Node:
    return seq(space, Lexeme(Text(mark)), space)


FLEXIBLE = optional(Lexeme(repeat(WHITESPACE, 1, MAX_WHITESPACE)))
PYTHON = Layout(EMPTY, Lexeme(Text(", ")), Lexeme(Text(": ")))


def string_of(least: int, most: int | None) -> Node:
    """A string of so many characters. Those that count are plain, without escapes: to count
    anything else, or up to what could be counted too, costs the backend seconds."""
    if most is not None and most < least:
        return NOTHING
    if most is not None:
        return Lexeme(seq(Text('"'), repeat(PLAIN, least, most), Text('"')))
    if least == 0:
        return STRING
    counted = repeat(PLAIN, least, None)
    return Lexeme(
        alt(
            seq(Text('"'), counted, Text('"')),
            seq(Text('"'), counted, _ESCAPE, _REST, Text('"')),
        )
    )


def string_from(start: str) -> Node:
    """Any string that starts so."""
    return seq(Text('"'), escaped(Text(start)), _REST, Text('"'))


def quoted(content: Node) -> Node:
    """The JSON string whose content, unescaped, matches the node."""
    return Lexeme(seq(Text('"'), escaped(content), Text('"')))


def escaped(node: Node) -> Node:
    """The node with every character spelled as it stands inside a JSON string."""
    match node:
        case Text(value):
            return Text(json.dumps(value, ensure_ascii=False)[1:-1])
        case Chars(ranges):
            special = intersection(ranges, _MUST_ESCAPE)
            spelled = [chr(c) for low, high in special for c in range(low, high + 1)]
            plain = intersection(ranges, PLAIN.ranges)
            return alt(*([Chars(plain)] if plain else []), *(escaped(Text(c)) for c in spelled))
        case Seq(parts):
            return seq(*(escaped(p) for p in parts))
        case Alt(options):
            return alt(*(escaped(o) for o in options))
        case Repeat(item, least, most):
            return repeat(escaped(item), least, most)
    raise AssertionError(f"{type(node).__name__} has no place in a string's content")


def constant(value: object) -> Node:
    """One value in its canonical spelling."""
    return Text(json.dumps(value, ensure_ascii=False))


def object_of(layout: Layout, inner: Node) -> Node:
    """Braces around members that are already joined."""
    return seq(Lexeme(Text("{")), layout.space, inner, layout.space, Lexeme(Text("}")))


def array_of(layout: Layout, inner: Node) -> Node:
    """Brackets around items that are already joined."""
    return seq(Lexeme(Text("[")), layout.space, inner, layout.space, Lexeme(Text("]")))


def joined(layout: Layout, item: Node, least: int, most: int | None) -> Node:
    """Between `least` and `most` items with commas between them."""
    if most == 0:
        return EMPTY
    rest = repeat(seq(layout.comma, item), max(least - 1, 0), None if most is None else most - 1)
    some = seq(item, rest)
    return some if least else optional(some)


def any_value_rules(layout: Layout, prefix: str) -> dict[str, Node]:
    """Rules for a value of any type: `any`, `any_object`, `any_array`, after the prefix."""
    value, an_object, an_array = (prefix + n for n in ("any", "any_object", "any_array"))
    member = seq(STRING, layout.colon, Rule(value))
    return {
        value: alt(STRING, NUMBER, LITERALS, Rule(an_object), Rule(an_array)),
        an_object: object_of(layout, joined(layout, member, 0, None)),
        an_array: array_of(layout, joined(layout, Rule(value), 0, None)),
    }


TRUE_FALSE = Lexeme(alt(Text("true"), Text("false")))
NULL = Lexeme(Text("null"))
LITERALS = Lexeme(alt(Text("true"), Text("false"), Text("null")))
