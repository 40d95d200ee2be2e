"""Spells a grammar in Lark for llguidance.

Its lexer takes the longest lexeme, so only a `Lexeme` becomes one terminal; elsewhere each
character is a terminal of its own, which is exact and slow.
"""

from collections.abc import Callable

from diptych.text.constraints.grammar import (
    Alt,
    Chars,
    Grammar,
    Lexeme,
    Node,
    OtherKey,
    Ranges,
    Repeat,
    Rule,
    Seq,
    Special,
    Text,
    alt,
    children,
    length_bounds,
)
from diptych.text.constraints.json_text import STRING, constant, string_from

TokenIds = Callable[[str], int]


def to_lark(grammar: Grammar, token_id: TokenIds) -> str:
    """The rules, `start` first."""
    writer = _Writer(token_id)
    for name in grammar.rules:
        writer.names[name] = "start" if name == grammar.root else f"r{len(writer.names)}"
    lines = []
    for name, node in grammar.rules.items():
        if name == grammar.root and _is_regular(node):
            node = Lexeme(node)  # nothing follows: all of it is one lexeme
        lines.append(f"{writer.names[name]}: {writer.spell(node)}")
    return "\n".join(lines + writer.terminals) + "\n"


def _is_regular(node: Node) -> bool:
    stack = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, Rule | Special | OtherKey):
            return False
        stack += children(top)
    return True


class _Writer:
    """Remembers rule names and terminals."""

    def __init__(self, token_id: TokenIds) -> None:
        self.token_id = token_id
        self.names: dict[str, str] = {}
        self.terminals: list[str] = []
        self._known: dict[str, str] = {}
        self._lexemes: dict[int, str] = {}  # by identity: to hash a node is to walk it

    def spell(self, node: Node) -> str:
        match node:
            case Text(value):
                return " ".join(self.terminal(_char(c)) for c in value) if value else '""'
            case Chars(ranges):
                return self.terminal(_class(ranges))
            case Seq(parts):
                return " ".join(self.inner(p) for p in parts) if parts else '""'
            case Alt(options):
                return " | ".join(self.spell(o) for o in options)
            case Repeat(item, least, most):
                return self.inner(item) + _quantifier(least, most)
            case Rule(name):
                return self.names[name]
            case Special(spelling):
                return f"<[{self.token_id(spelling)}]>"
            case Lexeme(OtherKey(words, stems)) | OtherKey(words, stems):
                return self.other_key(words, stems)
            case Lexeme(item):
                return self.lexeme(item)

    def lexeme(self, item: Node) -> str:
        """A terminal; the same few pieces come again and again."""
        found = self._lexemes.get(id(item))
        if found is None:
            name = self.terminal(_regex(item))
            found = f'({name} | "")' if length_bounds(item)[0] == 0 else name
            self._lexemes[id(item)] = found
        return found

    def inner(self, node: Node) -> str:
        bare = isinstance(node, Chars | Rule | Special | Lexeme | OtherKey)
        return self.spell(node) if bare else f"({self.spell(node)})"

    def terminal(self, regex: str) -> str:
        return self.define(f"/{regex}/")

    def other_key(self, words: tuple[str, ...], stems: tuple[str, ...]) -> str:
        any_key = self.terminal(_regex(STRING.item))
        taken = self.terminal(_regex(alt(*map(constant, words), *map(string_from, stems))))
        return self.define(f"{any_key} & ~{taken}")

    def define(self, body: str) -> str:
        name = self._known.get(body)
        if name is None:
            name = self._known[body] = f"T{len(self._known)}"
            self.terminals.append(f"{name}: {body}")
        return name


def _regex(node: Node) -> str:
    match node:
        case Text(value):
            return "".join(_char(c) for c in value)
        case Chars(ranges):
            return _class(ranges)
        case Seq(parts):
            return "".join(_regex(p) for p in parts)
        case Alt(options):
            return "(?:" + "|".join(_regex(o) for o in options) + ")"
        case Repeat(item, least, most):
            return f"(?:{_regex(item)}){_quantifier(least, most)}"
        case Lexeme(item):
            return _regex(item)
    raise AssertionError(f"{type(node).__name__} is not regular")


def _quantifier(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _char(c: str) -> str:
    return c if c.isascii() and c.isalnum() else f"\\u{{{ord(c):X}}}"


def _class(ranges: Ranges) -> str:
    return "[" + "".join(f"\\u{{{low:X}}}-\\u{{{high:X}}}" for low, high in ranges) + "]"
