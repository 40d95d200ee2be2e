"""Structural tags that clients send: free text in which certain openings start a constraint.

Both public shapes: `{"structures": [{begin, schema, end}], "triggers": [...]}` and a tree of
formats under `format`. Text is searched for the triggers and ends exactly as it is generated:
the free parts are automata over the words to look out for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from diptych.text.constraints.gbnf import read_gbnf
from diptych.text.constraints.grammar import (
    ANY_TEXT,
    EMPTY,
    Chars,
    Node,
    Rule,
    Text,
    alt,
    chars,
    complement,
    invalid,
    optional,
    repeat,
    seq,
)
from diptych.text.constraints.json_text import FLEXIBLE, layout
from diptych.text.constraints.regex import read_regex
from diptych.text.constraints.schema import SchemaReader

MAX_DEPTH = 32
MAX_WORDS = 256
MAX_WORD_CHARS = 4_096

Format = Mapping[str, object]


def read_structural_tag(source: object, param: str) -> tuple[Node, dict[str, Node]]:
    """All texts with the structure, and the rules that this takes."""
    held = source if isinstance(source, dict) else {}
    reader = _Reader()
    if "structures" in held:
        return reader.triggered(_legacy(held, param), param, 0), reader.rules
    if "format" not in held:
        raise invalid("a structural tag has a format, or structures and triggers", param)
    return reader.format(held["format"], f"{param}.format", 0), reader.rules


def _legacy(held: Format, param: str) -> Format:
    structures = held["structures"]
    if not isinstance(structures, list) or not all(isinstance(s, dict) for s in structures):
        raise invalid("structures is a list of objects", f"{param}.structures")
    tags = [
        {
            "begin": s.get("begin"),
            "content": {"type": "json_schema", "json_schema": s.get("schema")},
            "end": s.get("end"),
        }
        for s in structures
    ]
    return {"triggers": held.get("triggers"), "tags": tags}


class _Reader:
    """Reads formats; each may need rules."""

    def __init__(self) -> None:
        self.rules: dict[str, Node] = {}
        self._count = 0

    def format(self, value: object, param: str, depth: int) -> Node:
        if not isinstance(value, dict):
            raise invalid("a format is an object", param)
        if depth > MAX_DEPTH:
            raise invalid(f"formats nest at most {MAX_DEPTH} deep", param)
        readers: dict[object, Callable[[Format, str, int], Node]] = {
            "const_string": lambda f, p, _: Text(_text(f, "value", p)),
            "json_schema": self.json_schema,
            "regex": lambda f, p, _: read_regex(_text(f, "pattern", p), f"{p}.pattern", whole=True),
            "grammar": self.grammar,
            "any_text": lambda f, p, _: self.any_text(f, p),
            "sequence": lambda f, p, d: seq(*self.each(f, "elements", p, d)),
            "or": lambda f, p, d: alt(*self.each(f, "elements", p, d)),
            "optional": lambda f, p, d: optional(self.inner(f, p, d)),
            "plus": lambda f, p, d: repeat(self.inner(f, p, d), 1, None),
            "star": lambda f, p, d: repeat(self.inner(f, p, d), 0, None),
            "tag": self.tag,
            "triggered_tags": self.triggered,
            "tags_with_separator": self.separated,
        }
        kind = value.get("type")
        if not isinstance(kind, str) or kind not in readers:
            raise invalid(f"type is one of {', '.join(map(str, readers))}", f"{param}.type")
        return readers[kind](value, param, depth)

    def each(self, held: Format, name: str, param: str, depth: int) -> list[Node]:
        items = held.get(name)
        if not isinstance(items, list) or not items:
            raise invalid(f"{name} is a list of formats", f"{param}.{name}")
        return [self.format(f, f"{param}.{name}[{i}]", depth + 1) for i, f in enumerate(items)]

    def inner(self, held: Format, param: str, depth: int) -> Node:
        return self.format(held.get("content"), f"{param}.content", depth + 1)

    def json_schema(self, held: Format, param: str, depth: int) -> Node:
        if held.get("style", "json") != "json":
            raise invalid("style is json", f"{param}.style")
        spacing, here = layout(FLEXIBLE), f"{param}.json_schema"
        reader = SchemaReader(held.get("json_schema"), spacing, here, self.prefix())
        node, rules = reader.read()
        self.rules |= rules
        return node

    def grammar(self, held: Format, param: str, depth: int) -> Node:
        if held.get("syntax", "ebnf") != "ebnf":
            raise invalid("syntax is ebnf", f"{param}.syntax")
        source = _text(held, "grammar", param)
        node, rules = read_gbnf(source, f"{param}.grammar", self.prefix())
        self.rules |= rules
        return node

    def any_text(self, held: Format, param: str) -> Node:
        excluded = held.get("excludes", [])
        if not excluded:
            return ANY_TEXT
        return self.text({}, _words(excluded, f"{param}.excludes"), may_end=True)

    def tag(self, held: Format, param: str, depth: int) -> Node:
        return seq(Text(_text(held, "begin", param)), self.tag_rest(held, param, depth))

    def tag_rest(self, held: Format, param: str, depth: int) -> Node:
        """A tag after its begin: the content and one of the ends."""
        ends = held.get("end")
        ends = _words(ends if isinstance(ends, list) else [ends], f"{param}.end", may_be_empty=True)
        content = held.get("content")
        is_free = isinstance(content, dict) and content.get("type") == "any_text"
        if is_free and "" not in ends:
            excluded = cast(Format, content).get("excludes", [])
            banned = _words(excluded, f"{param}.content.excludes", may_be_none=True)
            return self.text(dict.fromkeys(ends, EMPTY), banned, may_end=False)
        return seq(self.inner(held, param, depth), alt(*(Text(e) for e in ends)))

    def triggered(self, held: Format, param: str, depth: int) -> Node:
        """Free text; where a trigger appears, one of its tags goes on."""
        triggers = _words(held.get("triggers"), f"{param}.triggers")
        excluded = _words(held.get("excludes", []), f"{param}.excludes", may_be_none=True)
        found: dict[str, list[Node]] = {t: [] for t in triggers}
        for begin, rest, here in self.tags(held, param, depth):
            owner = [t for t in triggers if begin.startswith(t)]
            if len(owner) != 1:
                raise invalid("exactly one trigger starts the begin of a tag", f"{here}.begin")
            found[owner[0]].append(seq(Text(begin.removeprefix(owner[0])), rest))
        stops = held.get("stop_after_first", False) is True
        again = Rule(f"{self.prefix()}again")
        after = EMPTY if stops else again
        bodies = {t: seq(alt(*tags), after) for t, tags in found.items()}
        if not stops:
            self.rules[again.name] = self.text(bodies, excluded, may_end=True)
        if held.get("at_least_one", False) is True:
            return self.text(bodies, excluded, may_end=False)
        return self.text(bodies, excluded, may_end=True) if stops else again

    def separated(self, held: Format, param: str, depth: int) -> Node:
        tags = alt(*(seq(Text(b), rest) for b, rest, _ in self.tags(held, param, depth)))
        separator = held.get("separator", "")
        if not isinstance(separator, str):
            raise invalid("separator is a string", f"{param}.separator")
        more = repeat(seq(Text(separator), tags), 0, None)
        some = tags if held.get("stop_after_first", False) is True else seq(tags, more)
        return some if held.get("at_least_one", False) is True else optional(some)

    def tags(self, held: Format, param: str, depth: int) -> list[tuple[str, Node, str]]:
        """Begin, rest and place of each tag."""
        tags = held.get("tags")
        if not isinstance(tags, list) or not tags or not all(isinstance(t, dict) for t in tags):
            raise invalid("tags is a list of tags", f"{param}.tags")
        places = [f"{param}.tags[{i}]" for i in range(len(tags))]
        return [
            (_text(t, "begin", p), self.tag_rest(t, p, depth + 1), p)
            for t, p in zip(tags, places, strict=True)
        ]

    def prefix(self) -> str:
        self._count += 1
        return f"f{self._count}."

    def text(self, after: Mapping[str, Node], excluded: Sequence[str], *, may_end: bool) -> Node:
        """Free text up to the first of the words; then what follows that word.

        Excluded words never appear. One rule a state: the longest beginning of a word that the
        text ends in.
        """
        words = (*after, *excluded)
        states = {word[:i] for word in words for i in range(len(word))}
        prefix = self.prefix()
        alphabet = sorted({c for word in words for c in word})
        for state in states:
            targets: dict[str, list[str]] = {}
            options: list[Node] = [EMPTY] if may_end else []
            for char in alphabet:
                seen = state + char
                ending = next((w for w in words if seen.endswith(w)), None)
                if ending is None:
                    longest = next(seen[i:] for i in range(len(seen) + 1) if seen[i:] in states)
                    targets.setdefault(longest, []).append(char)
                elif ending in after:
                    options.append(seq(Text(char), after[ending]))
            others = complement(chars("".join(alphabet)).ranges)
            home = Chars(others) if others else None
            back = targets.pop("", [])
            if state == "":
                loop = alt(*([home] if home else []), *(Text(c) for c in back))
                options += [seq(chars("".join(cs)), Rule(prefix + t)) for t, cs in targets.items()]
                self.rules[prefix] = seq(repeat(loop, 0, None), alt(*options))
                continue
            stray = alt(*([home] if home else []), *(Text(c) for c in back))
            options.append(seq(stray, Rule(prefix)))
            options += [seq(chars("".join(cs)), Rule(prefix + t)) for t, cs in targets.items()]
            self.rules[prefix + state] = alt(*options)
        return Rule(prefix)


def _text(held: Format, name: str, param: str) -> str:
    value = held.get(name)
    if not isinstance(value, str):
        raise invalid(f"{name} is a string", f"{param}.{name}")
    return value


def _words(
    value: object, param: str, *, may_be_empty: bool = False, may_be_none: bool = False
) -> list[str]:
    is_list = isinstance(value, list) and all(isinstance(w, str) for w in value)
    if (
        not is_list
        or not (value or may_be_none)
        or (not may_be_empty and "" in cast(list[str], value))
    ):
        raise invalid("expected a list of texts", param)
    words = list(dict.fromkeys(cast(list[str], value)))
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_WORD_CHARS:
        raise invalid(f"at most {MAX_WORDS} texts and {MAX_WORD_CHARS} characters", param)
    return words
