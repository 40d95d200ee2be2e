"""Which texts a constraint allows, judged by a small matcher that knows no backend."""

import functools
import itertools
import random
import re
from decimal import Decimal

import pytest

from diptych.core.errors import BadRequest
from diptych.text.constraints import Constraint, Kind, build, from_response_format
from diptych.text.constraints.constraint import canonical
from diptych.text.constraints.grammar import (
    Alt,
    Chars,
    Grammar,
    Lexeme,
    Node,
    OtherKey,
    Repeat,
    Rule,
    Seq,
    Text,
)
from diptych.text.constraints.vocabulary import NOT_TEXT, read_vocabulary


def matches(grammar: Grammar, text: str) -> bool:
    """Whether the text belongs to the language: sets of positions, nothing clever."""
    memo: dict[tuple[Node, int], frozenset[int]] = {}

    def ends(node: Node, at: int) -> frozenset[int]:
        found = memo.get((node, at))
        if found is None:
            found = memo[node, at] = frozenset(compute(node, at))
        return found

    def compute(node: Node, at: int) -> set[int]:
        match node:
            case Text(value):
                return {at + len(value)} if text.startswith(value, at) else set()
            case Chars(ranges):
                held = at < len(text) and any(a <= ord(text[at]) <= b for a, b in ranges)
                return {at + 1} if held else set()
            case Seq(parts):
                places = {at}
                for part in parts:
                    places = {e for p in places for e in ends(part, p)}
                return places
            case Alt(options):
                return {e for o in options for e in ends(o, at)}
            case Rule(name):
                return set(ends(grammar.rules[name], at))
            case Lexeme(item):
                return set(ends(item, at))
            case Repeat(item, least, most):
                places, all_places, times = {at}, {at} if least == 0 else set(), 0
                while places and (most is None or times < most):
                    times += 1
                    step = {e for p in places for e in ends(item, p)}
                    places = step - all_places if times > least else step
                    all_places |= step if times >= least else set()
                return all_places
            case OtherKey(words, stems):
                whole = re.compile(r'"((?:[^"\\\x00-\x1f]|\\["\\bfnrt])*)"').match(text, at)
                if whole is None or whole[1] in words or whole[1].startswith(tuple(stems)):
                    return set()
                return {whole.end()}
        raise AssertionError(node)

    return len(text) in ends(grammar.rules[grammar.root], 0)


def of_schema(schema: object) -> Grammar:
    return build(Constraint(Kind.JSON_SCHEMA, canonical(schema, "schema")))


def texts(alphabet: str, longest: int) -> list[str]:
    return ["".join(t) for n in range(longest + 1) for t in itertools.product(alphabet, repeat=n)]


PATTERNS = [
    ("a*b", "ab"),
    ("(a|b)*abb", "ab"),
    ("(?:ab|a)(c|bc)?", "abc"),
    ("a{2,3}b{0,1}", "ab"),
    ("(a{0,2}){2}b", "ab"),
    ("(ab?){2,}", "ab"),
    ("[^a]+", "ab\n"),
    ("a.b?", "ab\n"),
    (r"\w\W", "a_-é"),
    (r"\d\D?", "1a٣"),
    (r"\s\S", " a\u00a0\n"),
    (r"[\]\-^]+", "]-^"),
    (r"[+-]?a", "+-a"),
    (r"\x61\u0062\.", "ab."),
    (r"é|[à-ü]b", "éàb"),
    ("(?P<x>a)|(?<y>b)", "ab"),
    ("a??b+?", "ab"),
    ("|a", "ab"),
]


PYTHON_NEEDS = [  # where JavaScript is narrower, and so are we
    ("\\w", "[A-Za-z0-9_]"),
    ("\\d", "[0-9]"),
    ("\\s", "[ \\t\\n\\r\\f\\v]"),
    ("(?<y>", "(?P<y>"),
]


@pytest.mark.parametrize(("pattern", "alphabet"), PATTERNS)
def test_a_pattern_allows_what_python_matches(pattern: str, alphabet: str) -> None:
    ours = build(Constraint(Kind.REGEX, pattern))
    inside = of_schema({"type": "string", "pattern": pattern})
    theirs = re.compile(functools.reduce(lambda p, r: p.replace(*r), PYTHON_NEEDS, pattern))
    for text in texts(alphabet, 5):
        assert matches(ours, text) == (theirs.fullmatch(text) is not None), text
        if "\n" not in text and "\u00a0" not in text:
            assert matches(inside, f'"{text}"') == (theirs.search(text) is not None), text


def test_anchors_bind_each_alternative() -> None:
    inside = of_schema({"type": "string", "pattern": "^a|b$"})
    for text in texts("abc", 4):
        assert matches(inside, f'"{text}"') == (text[:1] == "a" or text[-1:] == "b")


def test_a_pattern_speaks_of_the_unescaped_string() -> None:
    inside = of_schema({"type": "string", "pattern": '^["\\\\\\n\\x01]+x$'})
    assert matches(inside, '"\\"\\\\\\n\\u0001x"')
    assert not matches(inside, '"\nx"')
    assert not matches(inside, '""x"')


def test_categories_cover_their_characters() -> None:
    ours = build(Constraint(Kind.REGEX, r"\p{Lu}\p{L}\P{L}"))
    assert matches(ours, "Éß1")
    assert not matches(ours, "éß1")
    assert not matches(ours, "Éßa")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-references"),
        (r"(?P<x>a)\k<x>", "back-references"),
        (r"\bword", "not supported"),
        ("a^b", "ends of the pattern"),
        ("(^a)", "ends of the pattern"),
        ("a$b", "at the end"),
        ("(?i)a", "not supported"),
        ("a++", "possessive"),
        ("a{2}{3}", "two quantifiers"),
        ("*a", "nothing to repeat"),
        ("(a", "not closed"),
        ("a)", "unbalanced"),
        ("[a", "not closed"),
        ("[b-a]", "without order"),
        ("[]", "starts a class"),
        ("a{3,2}", "wrong order"),
        ("a{x}", "not a quantifier"),
        ("a{10001}", "at most"),
        ("(ab){5000}{1}", "two quantifiers"),
        ("((ab){5000}x){5000}", "multiply"),
        (r"\p{Greek}", "general category"),
        (r"\ud800", "no character"),
        ("a\\", "backslash"),
        ("(" * 65 + ")" * 65, "nest"),
        ("a" * 8193, "at most 8192 bytes"),
    ],
)
def test_irregular_and_broken_patterns_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as caught:
        build(Constraint(Kind.REGEX, pattern, param="structured_outputs.regex"))
    assert (caught.value.code, caught.value.param) == ("invalid_schema", "structured_outputs.regex")


@pytest.mark.parametrize("seed", range(30))
def test_integers_keep_their_bounds(seed: int) -> None:
    chance = random.Random(f"integers {seed}")
    low, high = sorted(chance.choices(range(-130, 131), k=2))
    ours = of_schema({"type": "integer", "minimum": low, "exclusiveMaximum": high + 1})
    for value in range(-140, 141):
        assert matches(ours, str(value)) == (low <= value <= high), (value, low, high)


@pytest.mark.parametrize("seed", range(40))
def test_numbers_keep_their_bounds(seed: int) -> None:
    chance = random.Random(f"numbers {seed}")
    low, high = sorted(chance.choices(range(-250, 251), k=2))
    schema: dict[str, object] = {"type": "number"}
    is_open_low, is_open_high = chance.random() < 0.5, chance.random() < 0.5
    if seed % 5 != 1:
        schema["exclusiveMinimum" if is_open_low else "minimum"] = low / 100
    if seed % 5 != 2:
        schema["exclusiveMaximum" if is_open_high else "maximum"] = high / 100
    is_empty = low == high and (is_open_low or is_open_high)
    if len(schema) == 3 and is_empty:
        with pytest.raises(BadRequest):
            of_schema(schema)
        return
    ours = of_schema(schema)
    for hundredths in range(-260, 261):
        value = Decimal(hundredths) / 100
        above = "minimum" not in schema or value >= Decimal(low) / 100
        above &= "exclusiveMinimum" not in schema or value > Decimal(low) / 100
        below = "maximum" not in schema or value <= Decimal(high) / 100
        below &= "exclusiveMaximum" not in schema or value < Decimal(high) / 100
        for spelled in (str(value), f"{value}0" if "." in str(value) else f"{value}.0"):
            assert matches(ours, spelled) == (above and below), (spelled, schema)


def test_t69_g13_a_number_has_at_most_64_digits() -> None:
    ours = of_schema({"type": "number"})
    assert matches(ours, "9" * 64)
    assert not matches(ours, "9" * 65)
    assert matches(ours, "-0.5e-12")
    assert not matches(ours, "01")


def test_t69_g13_white_space_runs_are_bounded() -> None:
    ours = of_schema({"type": "object"})
    assert matches(ours, "{" + " " * 20 + "}")
    assert not matches(ours, "{" + " " * 41 + "}")
    assert not matches(ours, "\n{}")
    assert not matches(ours, "{}\n")


def test_t70_properties_come_in_order_and_further_ones_last() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": {"type": "boolean"},
    }
    ours = of_schema(schema)
    for text, is_valid in {
        '{"b":null}': True,
        '{"a":null,"b":null,"c":null,"d":true,"e":false}': True,
        '{"b":null,"d":true}': True,
        '{"b":null,"a":null}': False,
        '{"a":null}': False,
        '{"b":null,"c":true}': False,
        '{"b":null,"\\u0063":true}': False,
        '{"b":null,"d":1}': False,
        '{"b":null,}': False,
    }.items():
        assert matches(ours, text) == is_valid, text


def test_many_properties_are_told_from_further_ones_by_their_first_letters() -> None:
    few = of_schema({"type": "object", "properties": {"name": {}, "na": {}}})
    assert matches(few, '{"nam":1,"names":1,"n":1}')
    assert not matches(few, '{"x":1,"na":1}')
    many = of_schema({"type": "object", "properties": {f"property_{i}": {} for i in range(300)}})
    assert matches(many, '{"other":1,"prop":1}')
    assert not matches(many, '{"other":1,"property_7":1}')
    assert not matches(many, '{"other":1,"property_299":1}')


def test_t70_a_strict_schema_has_only_its_properties() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object"}}}
    for is_strict in (True, False):
        inner = {"name": "it", "schema": schema, "strict": is_strict}
        found = from_response_format({"type": "json_schema", "json_schema": inner})
        assert found is not None
        assert matches(build(found), '{"a":{"free":1}}')
        assert matches(build(found), '{"b":1}') != is_strict
        assert Constraint.unpack(found.pack()) == found


def test_a_property_that_only_required_names_is_demanded() -> None:
    ours = of_schema({"type": "object", "properties": {"a": {}}, "required": ["z"]})
    assert matches(ours, '{"z":1}')
    assert not matches(ours, '{"a":1}')


def test_t72_enums_keep_their_type_and_their_characters() -> None:
    ours = of_schema({"type": "string", "enum": ["é/", 1, 'a"\n']})
    assert matches(ours, '"é/"')
    assert matches(ours, '"a\\"\\n"')
    assert not matches(ours, "1")


def test_arrays_keep_positions_and_lengths() -> None:
    ours = of_schema(
        {
            "type": "array",
            "prefixItems": [{"const": 1}, {"const": 2}],
            "items": {"const": 3},
            "minItems": 1,
            "maxItems": 4,
        }
    )
    for text in ("[1]", "[1,2]", "[1,2,3]", "[1,2,3,3]"):
        assert matches(ours, text), text
    for text in ("[]", "[2]", "[1,3]", "[1,2,3,3,3]"):
        assert not matches(ours, text), text


GRAMMAR = """
# sums
root ::= term ("+" term)* | ""
term ::= [0-9]{1,2} | "(" root ")" # nested
"""


def test_an_ebnf_grammar_allows_its_texts() -> None:
    ours = build(Constraint(Kind.EBNF, GRAMMAR))
    for text in ("", "1", "12+3", "(1+(22))+3", "()"):
        assert matches(ours, text), text
    for text in ("+", "123", "(1", "1+"):
        assert not matches(ours, text), text


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('start ::= "a"', "needs a rule named root"),
        ("root ::= other", "rule other is not defined"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ('root ::= root "a" | "b"', "leads back to itself"),
        ('root ::= a\na ::= b? root | b\nb ::= "x"', "leads back to itself"),
        ('root ::= "a" root', "no text at all"),
        ('root ::= "a" (= "b")', "expected"),
        ("root ::= TagDispatch()", "not supported"),
        ('root ::= "a', "not closed"),
        ("root ::= (", "not closed"),
        ("root ::= [b-a]", "without order"),
        ('root ::= "a"{3,1}', "upwards"),
        ('root ::= "\\q"', "not an escape"),
        ("root ::= " + "(" * 70 + '"a"' + ")" * 70, "nest"),
        ('root ::= "' + "a" * 65_536 + '"', "at most 65536 bytes"),
    ],
)
def test_broken_and_left_recursive_grammars_are_refused(source: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        build(Constraint(Kind.EBNF, source))


def reference_tags(text: str) -> bool:
    """`<a>` starts a tag that holds xs and ends in `</`; `<!` is banned outside of tags."""
    while "<" in text:
        at = min((text.find(w) for w in ("<a", "<!") if w in text), default=-1)
        if at < 0:
            return True
        found = re.match(r"<a>x*</", text[at:])
        if found is None:
            return False
        text = text[at + found.end() :]
    return True


def test_free_text_ends_exactly_at_a_trigger() -> None:
    tag = {
        "type": "triggered_tags",
        "triggers": ["<a"],
        "excludes": ["<!"],
        "tags": [{"begin": "<a>", "content": {"type": "regex", "pattern": "x*"}, "end": "</"}],
    }
    body = {"type": "structural_tag", "format": tag}
    found = from_response_format(body)
    assert found is not None
    ours = build(found)
    chance = random.Random("free text")
    pieces = ["<", "a", ">", "x", "/", "!", "<a", "<a>", "</", "<a>x</"]
    for _ in range(3_000):
        text = "".join(chance.choices(pieces, k=chance.randint(0, 7)))
        assert matches(ours, text) == reference_tags(text), text


def test_text_in_a_tag_ends_at_the_first_end() -> None:
    tag = {"type": "tag", "begin": "(", "content": {"type": "any_text"}, "end": "aab"}
    found = from_response_format({"type": "structural_tag", "format": tag})
    assert found is not None
    ours = build(found)
    for text in texts("ab", 7):
        assert matches(ours, f"({text}") == (text.find("aab") == len(text) - 3 >= 0), text


def test_the_vocabulary_holds_bytes_and_keeps_special_tokens_apart() -> None:
    with open("tests/golden/tiny-text/tokenizer.json", "rb") as file:
        held = file.read()
    found = read_vocabulary(held, 960, [1])
    assert found.num_words == 30
    assert b"\n" in found.tokens
    assert "é".encode() in found.tokens or b"\xc3" in found.tokens
    assert found.tokens[found.token_id("</think>")].startswith(NOT_TEXT)
    assert found.digest != read_vocabulary(held, 960, [1, 2]).digest
    with pytest.raises(BadRequest):
        found.token_id("<｜absent｜>")
