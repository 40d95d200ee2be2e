"""Regular expressions, read into a grammar node: the part of ECMA-262 and Python that is regular.

What a finite automaton cannot do, or what engines disagree about, is refused by name. `.`, `\\s`,
`\\S`, `\\W` and `\\D` are read so that every match also matches in ECMA-262 and in Python's `re`.
"""

import unicodedata
from functools import cache
from string import hexdigits

from diptych.text.constraints.grammar import (
    ANY_TEXT,
    EMPTY,
    SURROGATES,
    UNICODE_END,
    Chars,
    Node,
    Ranges,
    Text,
    alt,
    chars,
    children,
    complement,
    intersection,
    invalid,
    merged,
    repeat,
    seq,
)

MAX_BYTES = 8 * 1024
MAX_GROUP_DEPTH = 64
MAX_REPEAT = 10_000

_DIGIT: Ranges = chars((48, 57)).ranges
_WORD: Ranges = chars((48, 57), (65, 90), (97, 122), "_").ranges
_SPACE: Ranges = chars(" \t\n\r\f\v").ranges
_ALL_SPACE: Ranges = chars(
    " \t\n\r\f\v\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff",
    (0x2000, 0x200A),
).ranges
_NOT_NEWLINE: Ranges = complement(chars("\n\r\u2028\u2029").ranges)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}


def read_regex(pattern: str, param: str, *, whole: bool) -> Node:
    """The texts that match: all of the text if `whole`, else any text with a match inside."""
    if len(pattern.encode()) > MAX_BYTES:
        raise invalid(f"a regular expression has at most {MAX_BYTES} bytes", param)
    return _Reader(pattern, param, whole).read()


class _Reader:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str, param: str, whole: bool) -> None:
        self.pattern = pattern
        self.param = param
        self.whole = whole
        self.at = 0
        self.depth = 0

    def read(self) -> Node:
        branches = [self.branch()]
        while self.take("|"):
            branches.append(self.branch())
        if self.at < len(self.pattern):
            raise self.wrong("unbalanced )")
        return alt(*branches)

    def branch(self) -> Node:
        """One alternative of the outermost level: the only place for ^ and $."""
        start = EMPTY if self.take("^") or self.whole else ANY_TEXT
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")", "$"):
            parts.append(self.piece())
        end = EMPTY if self.take("$") or self.whole else ANY_TEXT
        if self.peek() not in ("", "|", ")"):
            raise self.wrong("$ is only supported at the end")
        return seq(start, *parts, end)

    def group(self) -> Node:
        self.depth += 1
        if self.depth > MAX_GROUP_DEPTH:
            raise self.wrong(f"groups nest at most {MAX_GROUP_DEPTH} deep")
        self.group_kind()
        branches: list[Node] = []
        while True:
            parts: list[Node] = []
            while self.peek() not in ("", "|", ")"):
                parts.append(self.piece())
            branches.append(seq(*parts))
            if not self.take("|"):
                break
        if not self.take(")"):
            raise self.wrong("a group is not closed")
        self.depth -= 1
        return alt(*branches)

    def group_kind(self) -> None:
        if not self.take("?"):
            return
        rest = self.pattern[self.at :]
        if rest.startswith(("=", "!", "<=", "<!")):
            raise self.wrong("look-around is not supported")
        if self.take(":"):
            return
        if rest.startswith(("<", "P<")):
            end = rest.find(">")
            if end < 0:
                raise self.wrong("a group's name is not closed")
            self.at += end + 1
            return
        raise self.wrong(f"(?{rest[:1]} is not supported")

    def piece(self) -> Node:
        atom = self.atom()
        count = self.quantifier()
        if count is None:
            return atom
        if self.peek() in ("*", "+", "{") and self.quantifier() is not None:
            raise self.wrong("two quantifiers in a row are not supported")
        return repeat(atom, *count)

    def atom(self) -> Node:
        c = self.pattern[self.at]
        self.at += 1
        match c:
            case "(":
                return self.group()
            case "[":
                return Chars(self.char_class())
            case ".":
                return Chars(_NOT_NEWLINE)
            case "\\":
                found = self.escape(in_class=False)
                return Text(found) if isinstance(found, str) else Chars(found)
            case "^" | "$":
                raise self.wrong(f"{c} is only supported at the ends of the pattern")
            case "*" | "+" | "?":
                raise self.wrong(f"{c} has nothing to repeat")
        return Text(c)

    def quantifier(self) -> tuple[int, int | None] | None:
        c = self.peek()
        count: tuple[int, int | None]
        if c and c in "*+?":
            self.at += 1
            count = {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
        elif c == "{":
            end = self.pattern.find("}", self.at)
            low, comma, high = self.pattern[self.at + 1 : end].partition(",")
            if end < 0 or not _is_number(low) or not (high == "" or _is_number(high)):
                raise self.wrong("write \\{ for a brace that is not a quantifier")
            self.at = end + 1
            count = int(low), (int(high) if high else None) if comma else int(low)
            if max(count[0], count[1] or 0) > MAX_REPEAT:
                raise self.wrong(f"a quantifier counts to at most {MAX_REPEAT}")
            if count[1] is not None and count[1] < count[0]:
                raise self.wrong("a quantifier's bounds are in the wrong order")
        else:
            return None
        self.take("?")  # lazy or greedy: the same language
        if self.peek() == "+":
            raise self.wrong("possessive quantifiers are not supported")
        return count

    def escape(self, *, in_class: bool) -> str | Ranges:
        c = self.peek()
        self.at += 1
        match c:
            case "":
                raise self.wrong("it ends in a backslash")
            case "d":
                return _DIGIT
            case "w":
                return _WORD
            case "s":
                return _SPACE
            case "D":
                return complement(_category("Nd"))
            case "W":
                return complement(merged((*_WORD, *_category("L"), *_category("N"))))
            case "S":
                return complement(_ALL_SPACE)
            case "p" | "P":
                return self.category(negated=c == "P")
            case "x":
                return self.character(self.hexadecimal(2))
            case "u":
                return self.unicode_escape()
            case "b" if in_class:
                return "\b"
            case "b" | "B" | "A" | "Z" | "z" | "G":
                raise self.wrong(f"\\{c} is not supported")
            case "k" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
                raise self.wrong("back-references are not supported")
        if c in _CONTROLS:
            if c == "0" and self.peek().isdigit():
                raise self.wrong("octal escapes are not supported")
            return _CONTROLS[c]
        if c.isalnum() and c.isascii():
            raise self.wrong(f"\\{c} is not supported")
        return c

    def unicode_escape(self) -> str:
        if not self.take("{"):
            high = self.hexadecimal(4)
            if 0xD800 <= high <= 0xDBFF and self.take("\\u"):
                high = 0x10000 + ((high - 0xD800) << 10) + self.hexadecimal(4) - 0xDC00
            return self.character(high)
        end = self.pattern.find("}", self.at)
        size = end - self.at
        if not 1 <= size <= 6:
            raise self.wrong("\\u{…} takes one to six hexadecimal digits")
        found = self.character(self.hexadecimal(size))
        self.at += 1
        return found

    def hexadecimal(self, size: int) -> int:
        digits = self.pattern[self.at : self.at + size]
        if len(digits) != size or not set(digits) <= set(hexdigits):
            raise self.wrong(f"expected {size} hexadecimal digits")
        self.at += size
        return int(digits, 16)

    def character(self, code: int) -> str:
        if not 0 <= code <= UNICODE_END or SURROGATES[0] <= code <= SURROGATES[1]:
            raise self.wrong("an escape names no character")
        return chr(code)

    def category(self, *, negated: bool) -> Ranges:
        name = self.peek()
        self.at += 1
        if name == "{":
            end = self.pattern.find("}", self.at)
            name = self.pattern[self.at : end] if end >= 0 else "?"
            self.at = end + 1
        found = _category(name.removeprefix("General_Category=").removeprefix("gc="))
        if not found:
            raise self.wrong("\\p takes a general category such as L, Lu or Nd")
        return complement(found) if negated else found

    def char_class(self) -> Ranges:
        negated = self.take("^")
        found: list[tuple[int, int]] = []
        if self.peek() == "]":
            raise self.wrong("escape a ] that starts a class")
        while self.peek() != "]":
            if not self.peek():
                raise self.wrong("a class is not closed")
            if self.pattern.startswith(("[:", "&&", "--"), self.at):
                raise self.wrong("class set operations are not supported; escape the character")
            low = self.class_item()
            if self.peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.class_item()
                if not (isinstance(low, str) and isinstance(high, str)) or low > high:
                    raise self.wrong("a class has a range without order")
                found.append((ord(low), ord(high)))
            else:
                found += [(ord(low), ord(low))] if isinstance(low, str) else low
        self.at += 1
        ranges = complement(merged(found)) if negated else merged(found)
        if not ranges:
            raise self.wrong("a class matches nothing")
        return ranges

    def class_item(self) -> str | Ranges:
        c = self.peek()
        self.at += 1
        return self.escape(in_class=True) if c == "\\" else c

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def wrong(self, why: str) -> Exception:
        return invalid(f"regular expression, character {self.at}: {why}", self.param)


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdigit() and len(digits) < 10


@cache
def _category(name: str) -> Ranges:
    """All characters of a general category, or of all that start with its one letter; none if
    there is no such category."""
    if not 1 <= len(name) <= 2:
        return ()
    found = (c for c in range(0x110000) if unicodedata.category(chr(c)).startswith(name))
    return merged((c, c) for c in found)


def only_characters(node: Node, allowed: Ranges) -> bool:
    """Whether every character that the node may match is one of these."""
    stack = [node]
    while stack:
        match stack.pop():
            case Text(value) if any(not _has(allowed, ord(c)) for c in value):
                return False
            case Chars(ranges) if intersection(ranges, allowed) != ranges:
                return False
            case other:
                stack += children(other)
    return True


def _has(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)
