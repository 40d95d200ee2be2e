"""A language as plain data: the one form that every kind of constraint is read into.

Readers (`regex`, `schema`, `gbnf`, `tags`, `tools`) produce it, `soundness` judges it, and the
`ebnf` and `lark` writers spell it for the two backends. Knows no backend and no tokenizer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diptych.core.errors import BadRequest

UNICODE_END = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Text:
    """Exactly these characters."""

    value: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of the sorted, disjoint ranges (inclusive, without surrogates)."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    """All parts, one after the other; no parts is the empty text."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the options; no options is a language without any text."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The item between `least` and `most` times; `most` None is without end."""

    item: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """Whatever the rule of this name says."""

    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """The one added token of this spelling; the same characters typed as text do not match."""

    spelling: str


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A regular piece that nothing which may follow can prolong, so a lexer may take it whole."""

    item: "Node"


@dataclass(frozen=True, slots=True)
class OtherKey:
    """A JSON string in its canonical spelling, quotes included, that is none of these words and
    starts with none of the stems."""

    words: tuple[str, ...]
    stems: tuple[str, ...] = ()


Node = Text | Chars | Seq | Alt | Repeat | Rule | Special | Lexeme | OtherKey

EMPTY = Seq(())
NOTHING = Alt(())


@dataclass(frozen=True, slots=True)
class Grammar:
    """Rules by name; a text belongs to the language if `root` matches all of it."""

    rules: Mapping[str, Node]
    root: str = "root"


def invalid(message: str, param: str) -> BadRequest:
    """The one refusal of this package: the constraint is wrong or not enforceable."""
    return BadRequest(message, code="invalid_schema", param=param)


def chars(*ranges: tuple[int, int] | str) -> Chars:
    """Ranges and single characters in any order, merged."""
    pairs: list[tuple[int, int]] = []
    for item in ranges:
        pairs += [(ord(c), ord(c)) for c in item] if isinstance(item, str) else [item]
    return Chars(merged(pairs))


def merged(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted and disjoint, neighbours joined, surrogates cut out."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(p for pair in pairs for p in _without_surrogates(pair)):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def _without_surrogates(pair: tuple[int, int]) -> list[tuple[int, int]]:
    low, high = pair
    below, above = (low, min(high, SURROGATES[0] - 1)), (max(low, SURROGATES[1] + 1), high)
    return [p for p in (below, above) if p[0] <= p[1]]


def complement(ranges: Ranges) -> Ranges:
    """Every other character."""
    out, start = [], 0
    for low, high in ranges:
        if start < low:
            out.append((start, low - 1))
        start = high + 1
    if start <= UNICODE_END:
        out.append((start, UNICODE_END))
    return merged(out)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    """Characters of both."""
    out, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            out.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def seq(*parts: Node) -> Node:
    """A sequence, flattened, neighbouring texts joined."""
    flat: list[Node] = []
    for part in parts:
        for piece in part.parts if isinstance(part, Seq) else (part,):
            last = flat[-1] if flat else None
            if isinstance(piece, Text) and isinstance(last, Text):
                flat[-1] = Text(last.value + piece.value)
            elif piece != Text(""):
                flat.append(piece)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*options: Node) -> Node:
    """A choice, flattened, single characters joined into one class, repeats dropped."""
    single: list[tuple[int, int]] = []
    flat: dict[Node, None] = {}
    for option in options:
        for piece in option.options if isinstance(option, Alt) else (option,):
            if isinstance(piece, Chars):
                single += piece.ranges
            elif isinstance(piece, Text) and len(piece.value) == 1:
                single.append((ord(piece.value), ord(piece.value)))
            else:
                flat[piece] = None
    kept: list[Node] = [Chars(merged(single))] if single else []
    kept += flat
    return kept[0] if len(kept) == 1 else Alt(tuple(kept))


def repeat(item: Node, least: int, most: int | None) -> Node:
    """A repetition; once is the item itself."""
    if (least, most) == (1, 1):
        return item
    if isinstance(item, Repeat) and item.least <= 1:  # (x{0,a}){b,c} = x{0,ac}: one counter
        both = None if most is None or item.most is None else item.most * most
        return repeat(item.item, least * item.least, both)
    return EMPTY if most == 0 else Repeat(item, least, most)


def optional(item: Node) -> Node:
    """The item or nothing."""
    return repeat(item, 0, 1)


def lexeme(item: Node) -> Node:
    """A regular piece, if it can match anything."""
    return item if item == NOTHING else Lexeme(item)


ANY_CHAR = Chars(complement(()))
ANY_TEXT = Repeat(ANY_CHAR, 0, None)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside."""
    match node:
        case Seq(parts):
            return parts
        case Alt(options):
            return options
        case Repeat(item) | Lexeme(item):
            return (item,)
    return ()


def length_bounds(node: Node) -> tuple[int, int | None]:
    """Fewest and most characters of a node without rules; None is without end."""
    match node:
        case Text(value):
            return len(value), len(value)
        case Chars():
            return 1, 1
        case Seq(parts):
            bounds = [length_bounds(p) for p in parts]
            most = [b for _, b in bounds]
            return sum(a for a, _ in bounds), None if None in most else sum(b or 0 for b in most)
        case Alt(options):
            bounds = [length_bounds(o) for o in options]
            most = [b for _, b in bounds]
            least = min((a for a, _ in bounds), default=0)
            return least, None if None in most else max((b or 0 for b in most), default=0)
        case Repeat(item, least, limit):
            low, high = length_bounds(item)
            return low * least, 0 if high == 0 else (
                None if high is None or limit is None else high * limit
            )
        case Lexeme(item):
            return length_bounds(item)
    return 0, None
