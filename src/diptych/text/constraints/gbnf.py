"""Reads the grammars that clients write: EBNF in the dialect of llama.cpp (GBNF).

    root ::= item ("," item)* # a comment
    item ::= [a-z]+ | "quoted \\"text\\"" | item2{2,4}

No look-ahead and no other extension: what is not in this form is refused.
"""

import re

from diptych.text.constraints.grammar import (
    Chars,
    Node,
    Ranges,
    Rule,
    Text,
    alt,
    complement,
    invalid,
    merged,
    repeat,
    seq,
)

MAX_BYTES = 64 * 1024
MAX_GROUP_DEPTH = 64
MAX_REPEAT = 10_000

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-.]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_DEFINES = re.compile(r"[A-Za-z_][A-Za-z0-9_\-.]*[ \t]*::=")
_COUNT = re.compile(r"\{[ \t]*(\d{1,9})[ \t]*(?:(,)[ \t]*(\d{1,9})?[ \t]*)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}


def read_gbnf(source: str, param: str, prefix: str = "") -> tuple[Node, dict[str, Node]]:
    """All texts of the rule `root`, and the rules, their names after the prefix."""
    if len(source.encode()) > MAX_BYTES:
        raise invalid(f"a grammar has at most {MAX_BYTES} bytes", param)
    reader = _Reader(source, param, prefix)
    rules: dict[str, Node] = {}
    while not reader.at_end():
        name, node = reader.rule()
        if name in rules:
            raise reader.wrong("this rule is defined twice")
        rules[name] = node
    if reader.prefix + "root" not in rules:
        raise invalid("a grammar needs a rule named root", param)
    return Rule(reader.prefix + "root"), rules


class _Reader:
    """Recursive descent over the text."""

    def __init__(self, source: str, param: str, prefix: str) -> None:
        self.source = source
        self.param = param
        self.prefix = f"{prefix}user."  # apart from every rule of ours
        self.at = 0
        self.depth = 0

    def at_end(self) -> bool:
        self.skip()
        return self.at >= len(self.source)

    def rule(self) -> tuple[str, Node]:
        found = _NAME.match(self.source, self.at)
        if found is None:
            raise self.wrong("expected a rule: name ::= …")
        self.at = found.end()
        self.skip()
        if not self.take("::="):
            raise self.wrong("expected ::=")
        return self.prefix + found[0], self.choice()

    def choice(self) -> Node:
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            raise self.wrong(f"groups nest at most {MAX_GROUP_DEPTH} deep")
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        self.depth -= 1
        return alt(*options)

    def sequence(self) -> Node:
        parts: list[Node] = []
        while True:
            self.skip()
            rest = self.source[self.at : self.at + 1]
            if rest in ("", "|", ")") or _DEFINES.match(self.source, self.at):
                return seq(*parts)
            parts.append(self.counted(self.atom()))

    def atom(self) -> Node:
        if self.take('"'):
            return Text(self.until('"'))
        if self.take("["):
            return Chars(self.char_class())
        if self.take("("):
            inner = self.choice()
            if not self.take(")"):
                raise self.wrong("a group is not closed")
            return inner
        found = _NAME.match(self.source, self.at)
        if found is None:
            raise self.wrong("expected a text, a class, a group or a rule")
        self.at = found.end()
        if self.source.startswith("(", self.at):
            raise self.wrong(f"{found[0]}(…) is not supported")
        return Rule(self.prefix + found[0])

    def counted(self, item: Node) -> Node:
        mark = self.source[self.at : self.at + 1]
        if mark and mark in "*+?":
            self.at += 1
            item = repeat(item, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[mark])
        elif mark == "{":
            found = _COUNT.match(self.source, self.at)
            if found is None:
                raise self.wrong("write a repetition as {n}, {n,} or {n,m}")
            self.at = found.end()
            low = int(found[1])
            high = int(found[3]) if found[3] else (None if found[2] else low)
            if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
                raise self.wrong(f"a repetition counts upwards, to at most {MAX_REPEAT}")
            item = repeat(item, low, high)
        if self.source[self.at : self.at + 1] in ("*", "+", "?", "{"):
            raise self.wrong("put a repetition of a repetition into brackets")
        return item

    def until(self, end: str) -> str:
        found: list[str] = []
        while not self.take(end, blank=False):
            found.append(self.character())
        return "".join(found)

    def char_class(self) -> Ranges:
        negated = self.take("^", blank=False)
        found: list[tuple[int, int]] = []
        while not self.take("]", blank=False):
            low = high = self.character()
            if self.source.startswith("-", self.at) and not self.source.startswith("-]", self.at):
                self.at += 1
                high = self.character()
            if high < low:
                raise self.wrong("a class has a range without order")
            found.append((ord(low), ord(high)))
        ranges = complement(merged(found)) if negated else merged(found)
        if not ranges:
            raise self.wrong("a class matches nothing")
        return ranges

    def character(self) -> str:
        c = self.source[self.at : self.at + 1]
        self.at += 1
        if c in ("", "\n"):
            raise self.wrong("a text or class is not closed on its line")
        if c != "\\":
            return c
        c = self.source[self.at : self.at + 1]
        self.at += 1
        if c in _HEX:
            digits = self.source[self.at : self.at + _HEX[c]]
            if not re.fullmatch(f"[0-9A-Fa-f]{{{_HEX[c]}}}", digits):
                raise self.wrong(f"\\{c} takes {_HEX[c]} hexadecimal digits")
            self.at += _HEX[c]
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self.wrong("an escape names no character")
            return chr(code)
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c == "" or (c.isascii() and c.isalnum()):
            raise self.wrong(f"\\{c} is not an escape")
        return c

    def skip(self) -> None:
        found = _BLANK.match(self.source, self.at)
        self.at = found.end() if found else self.at

    def take(self, text: str, *, blank: bool = True) -> bool:
        if blank:
            self.skip()
        found = self.source.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def wrong(self, why: str) -> Exception:
        line = self.source.count("\n", 0, self.at) + 1
        return invalid(f"grammar, line {line}: {why}", self.param)
