"""Spells a grammar as EBNF for xgrammar."""

from collections.abc import Callable

from diptych.text.constraints.grammar import (
    ANY_CHAR,
    SURROGATES,
    UNICODE_END,
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
    chars,
    complement,
    intersection,
    merged,
    seq,
)
from diptych.text.constraints.json_text import PLAIN, SHORT_ESCAPES, STRING, escaped

TokenIds = Callable[[str], int]


def to_ebnf(grammar: Grammar, token_id: TokenIds) -> str:
    """The rules, `root` first."""
    writer = _Writer(token_id)
    for name in grammar.rules:
        writer.names[name] = "root" if name == grammar.root else f"r{len(writer.names)}"
    lines = [f"{writer.names[n]} ::= {writer.spell(node)}" for n, node in grammar.rules.items()]
    return "\n".join(lines + writer.extra) + "\n"


Trie = dict[str, "Trie"]
_ENDS, _BANNED = "end", "ban"  # no unit of a JSON string has three letters


class _Writer:
    """Remembers rule names, and rules that one node needs for itself."""

    def __init__(self, token_id: TokenIds) -> None:
        self.token_id = token_id
        self.names: dict[str, str] = {}
        self.extra: list[str] = []
        self._pieces: dict[Node, str] = {}
        self._keys = 0

    def spell(self, node: Node) -> str:
        match node:
            case Text(value):
                return '"' + "".join(_text_char(c) for c in value) + '"'
            case Chars(ranges):
                return f"[{_class(ranges)}]"
            case Seq(parts):
                return " ".join(self.inner(p) for p in parts) if parts else '""'
            case Alt(options):
                return " | ".join(self.spell(o) for o in options)
            case Repeat(item, least, most):
                return self.inner(item) + _quantifier(least, most)
            case Rule(name):
                return self.names[name]
            case Special(spelling):
                return f"Token({self.token_id(spelling)})"
            case Lexeme(item):
                return self.piece(item)
            case OtherKey(words, stems):
                return self.other_key(words, stems)

    def inner(self, node: Node) -> str:
        bare = isinstance(node, Text | Chars | Rule | Special | OtherKey)
        if isinstance(node, Lexeme):
            return self.spell(node) if _is_big(node.item) else self.inner(node.item)
        return self.spell(node) if bare else f"({self.spell(node)})"

    def piece(self, node: Node) -> str:
        """A lexeme; one that is used again and again becomes a rule, compiled once."""
        if not _is_big(node):
            return self.spell(node)
        name = self._pieces.get(node)
        if name is None:
            name = self._pieces[node] = f"p{len(self._pieces)}"
            self.extra.append(f"{name} ::= {self.spell(node)}")
        return name

    def other_key(self, words: tuple[str, ...], stems: tuple[str, ...]) -> str:
        """A key apart from these: one rule for each beginning that some of them share."""
        trie: Trie = {}
        for word in (*words, *stems):
            at = trie
            units = [_unit(c) for c in word]
            for unit in units[:-1]:
                at = at.setdefault(unit, {})
            last = at.setdefault(units[-1], {}) if units else at
            last[_ENDS if word in words else _BANNED] = {}
        rest = self.piece(_AFTER_KEY_START)
        first = self._key_rule()
        waiting = [(first, trie)]
        while waiting:
            name, at = waiting.pop()
            found = [] if _ENDS in at else ['"\\""']
            found += self._strays(at, rest)
            for unit, below in at.items():
                if unit != _ENDS and _BANNED not in below:
                    waiting.append((self._key_rule(), below))
                    found.append(f"{self.spell(Text(unit))} {waiting[-1][0]}")
            self.extra.append(f"{name} ::= {' | '.join(found)}")
        return f'("\\"" {first})'

    def _key_rule(self) -> str:
        self._keys += 1
        return f"k{self._keys}"

    def _strays(self, at: Trie, rest: str) -> list[str]:
        """Characters that no word goes on with: after them, anything."""
        plain = intersection(PLAIN.ranges, complement(merged(_codes(at))))
        escapes = [e for c, e in SHORT_ESCAPES.items() if _unit(c) not in at]
        found = [f"[{_class(plain)}] {rest}"]
        if escapes:
            found.append(f'"\\\\" {self.spell(chars("".join(escapes)))} {rest}')
        return found


_AFTER_KEY_START = seq(*STRING.item.parts[1:]) if isinstance(STRING.item, Seq) else STRING.item


def _codes(at: Trie) -> list[tuple[int, int]]:
    return [(ord(u), ord(u)) for u in at if len(u) == 1]


def _unit(char: str) -> str:
    """One character as a JSON string spells it."""
    spelled = escaped(Text(char))
    assert isinstance(spelled, Text)
    return spelled.value


def _is_big(node: Node) -> bool:
    return not isinstance(node, Text | Chars)


def _quantifier(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def _text_char(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    return c if " " <= c <= "~" else _code(ord(c))


def _class(ranges: Ranges) -> str:
    """A class. One with an open end is spelled by what it lacks: xgrammar counts repetitions of
    such a class, and copies those of others. A gap at the surrogates is closed: its masks are
    wrong if there is one, and no UTF-8 text has surrogates anyway."""
    if ranges[-1][1] == UNICODE_END:
        return "^" + _ranges(complement(ranges)) if ranges != ANY_CHAR.ranges else "\\0-\\U0010ffff"
    return _ranges(ranges)


def _ranges(ranges: Ranges) -> str:
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and (joined[-1][1] + 1, low - 1) == SURROGATES:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in joined)


def _code(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
