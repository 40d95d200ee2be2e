"""Matchers of both backends: what they allow, and that they agree with each other and the truth."""

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer

from diptych.engine.grammar.backends import Backend, BackendName, Compiled, make_backend
from diptych.engine.grammar.matcher import (
    DeferredMatcher,
    Matcher,
    fill_ahead,
    replay,
    row_of,
    tokens_of,
)
from diptych.text.constraints import (
    Constraint,
    Tool,
    build,
    from_response_format,
    from_structured_outputs,
    from_tools,
)
from diptych.text.constraints.vocabulary import NOT_TEXT, read_vocabulary

TOKENIZER = Path("tests/golden/tiny-text/tokenizer.json")
VOCABULARY = read_vocabulary(TOKENIZER.read_bytes(), 960, [1])
STOP = 1
BACKENDS: tuple[BackendName, ...] = ("xgrammar", "llguidance")


@cache
def backend_of(name: BackendName) -> Backend:
    return make_backend(name, VOCABULARY)


@cache
def compiled(name: BackendName, constraint: Constraint) -> Compiled:
    return backend_of(name).compile(build(constraint), constraint.param)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(VOCABULARY.tokens[t] for t in tokens).decode(errors="replace")


def allowed(matcher: Matcher) -> list[int]:
    masks = np.zeros((1, VOCABULARY.num_words), dtype=np.int32)
    matcher.fill(masks, 0)
    return tokens_of(masks[0])


def walk(
    matcher: Matcher, chance: random.Random, most: int, sees: Callable[[list[int]], None]
) -> list[int]:
    """Random tokens of the mask, stopping about as soon as the grammar lets us."""
    tokens: list[int] = []
    while len(tokens) < most:
        mask = allowed(matcher)
        sees(mask)
        assert mask, text_of(tokens)
        assert (STOP in mask) == matcher.is_complete
        texts = [t for t in mask if t != STOP]
        if matcher.is_complete and (not texts or chance.random() < 0.4):
            assert matcher.accept(STOP)
            return tokens
        tokens.append(chance.choice(texts))
        assert matcher.accept(tokens[-1])
    return tokens


def of(**kind: object) -> Constraint:
    found = from_structured_outputs(kind)
    assert found is not None
    return found


SCHEMAS: dict[str, Any] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["a", "é/", 'q"']}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "optional, closed": {
        "type": "object",
        "properties": {f"p{i}": {"type": "boolean"} for i in range(5)},
        "additionalProperties": False,
    },
    "open": {
        "type": "object",
        "properties": {"aa": {"type": "null"}, "ab": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    },
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "c": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                },
                "required": ["v"],
                "additionalProperties": False,
            }
        },
    },
    "2,000 values": {"enum": [f"item-{i}-{'abc' * (i % 3)}" for i in range(2_000)]},
    "40 branches": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": f"k{i}"}, f"v{i}": {"type": ["number", "null"]}},
                "required": ["kind"],
                "additionalProperties": False,
            }
            for i in range(40)
        ]
    },
    "one of, by kind": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"k": {"const": k}, "x": {"type": t}},
                "required": ["k", "x"],
                "additionalProperties": False,
            }
            for k, t in (("a", "boolean"), ("b", "null"))
        ]
    },
    "Unicode": {"type": "string", "pattern": "^[é-ü]{2}[一-龥]?x$"},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5},
    "at least": {"type": "string", "minLength": 3},
    "date-time": {"type": "string", "format": "date-time"},
    "decimals": {"type": "number", "exclusiveMinimum": -1.25, "maximum": 3.5},
    "positions": {
        "type": "array",
        "prefixItems": [{"type": "integer", "maximum": 9}, {"type": "null"}],
        "items": {"type": "boolean"},
        "minItems": 2,
        "maxItems": 4,
    },
    "keys by pattern": {
        "type": "object",
        "patternProperties": {"^[ab]{1,3}$": {"type": "null"}},
        "additionalProperties": False,
    },
    "anything": {},
}
PATTERNS = [
    r"[a-z]*b",
    r"(foo|foobar)(bar)?",
    r"\d{3}-\d{4}",
    r"[^a]{0,30}x",
    r"(ab|c){2,70}d?",
    r"(a?){9}a{9}",
    r"\W{2}\w+",
]
GRAMMARS = [
    'root ::= term ("+" term)*\nterm ::= [0-9]{1,3} | "(" root ")"',
    'root ::= "a" root "b" | ""',
    'root ::= ("x" | "xy") ("yz" | "z") root?',
]


def is_valid(schema: Any, text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("case", SCHEMAS)
def test_whatever_a_mask_leads_to_is_valid(case: str, name: BackendName) -> None:
    chance = random.Random(f"valid {case}")
    schema = SCHEMAS[case]
    held = compiled(name, of(json=schema))
    finished = 0
    for _ in range(40):
        matcher = held.matcher()
        tokens = walk(matcher, chance, 60, lambda _: None)
        if matcher.is_done:
            finished += 1
            assert is_valid(schema, text_of(tokens)), text_of(tokens)
    assert finished


@pytest.mark.parametrize("case", [*SCHEMAS, *PATTERNS, *GRAMMARS])
def test_the_backends_accept_the_same_outputs(case: str) -> None:
    constraint = (
        of(json=SCHEMAS[case])
        if case in SCHEMAS
        else of(regex=case)
        if case in PATTERNS
        else of(grammar=case)
    )
    chance = random.Random(f"same {case}")
    for name, other in (BACKENDS, BACKENDS[::-1]):
        for _ in range(20):
            matcher, judge = (compiled(n, constraint).matcher() for n in (name, other))
            tokens = walk(matcher, chance, 40, lambda _: None)
            if "\ufffd" in text_of(tokens):
                continue  # xgrammar lets single bytes spell half a surrogate pair
            assert replay(judge, tokens), text_of(tokens)
            assert judge.is_complete == matcher.is_complete


@pytest.mark.parametrize("case", [*SCHEMAS, *PATTERNS, *GRAMMARS])
def test_a_mask_is_exactly_what_would_be_accepted(case: str) -> None:
    constraint = (
        of(json=SCHEMAS[case])
        if case in SCHEMAS
        else of(regex=case)
        if case in PATTERNS
        else of(grammar=case)
    )
    chance = random.Random(f"exact {case}")
    matcher = compiled("xgrammar", constraint).matcher()

    def sees(mask: list[int]) -> None:
        texts = [t for t in range(960) if not VOCABULARY.tokens[t].startswith(NOT_TEXT)]
        accepted = []
        for token in texts:
            if matcher.accept(token):
                accepted.append(token)
                matcher.rollback(1)
        assert accepted == [t for t in mask if t != STOP]

    walk(matcher, chance, 25, sees)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_matched_in_full(pattern: str, name: BackendName) -> None:
    chance = random.Random(f"full {pattern}")
    for _ in range(8):
        matcher = compiled(name, of(regex=pattern)).matcher()
        text = text_of(walk(matcher, chance, 60, lambda _: None))
        assert not matcher.is_done or re.fullmatch(pattern, text), text


@pytest.mark.parametrize("name", BACKENDS)
def test_a_spoilt_document_is_refused_unless_it_is_still_valid(name: BackendName) -> None:
    chance = random.Random("spoilt")
    for case in ("object", "open", "positions", "decimals", "keys by pattern"):
        schema = SCHEMAS[case]
        held = compiled(name, of(json=schema))
        for _ in range(30):
            whole = held.matcher()
            tokens = walk(whole, chance, 60, lambda _: None)
            if not whole.is_done:
                continue
            text = text_of(tokens)
            for _ in range(12):
                at = chance.randrange(len(text) + 1)
                edit = chance.choice(["", '"', ",", ":", "1", "a", "b", "{", "}", "null", "\\"])
                spoilt = text[:at] + edit + text[at + chance.randrange(2) :]
                matcher = held.matcher()
                if replay(matcher, encode(spoilt)) and matcher.is_complete:
                    assert is_valid(schema, spoilt), spoilt


@pytest.mark.parametrize("name", BACKENDS)
def test_choices_are_exactly_the_choices(name: BackendName) -> None:
    held = compiled(name, of(choice=["yes", "yes sir", 'no "x"', "é"]))
    for text, is_choice in {
        "yes": True,
        "yes sir": True,
        'no "x"': True,
        "é": True,
        "yes ": False,
        "": False,
    }.items():
        matcher = held.matcher()
        assert (replay(matcher, encode(text)) and matcher.is_complete) == is_choice, text


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("case", ["object", "recursive", "anything", "lengths"])
def test_rolled_back_is_never_accepted(case: str, name: BackendName) -> None:
    chance = random.Random(f"rollback {case}")
    matcher, twin = (compiled(name, of(json=SCHEMAS[case])).matcher() for _ in range(2))
    for _ in range(12):
        before = allowed(matcher)
        assert before == allowed(twin)
        detour = 0
        for _ in range(chance.randint(1, 6)):
            mask = allowed(matcher)
            if matcher.is_done or not matcher.accept(chance.choice(mask)):
                break
            detour += 1
        matcher.rollback(detour)
        assert allowed(matcher) == before
        texts = [t for t in before if t != STOP]
        if not texts:
            break
        token = chance.choice(texts)
        assert matcher.accept(token)
        assert twin.accept(token)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_refused_token_changes_nothing(name: BackendName) -> None:
    matcher = compiled(name, of(json={"type": "boolean"})).matcher()
    before = allowed(matcher)
    for text in ("x", "[", "1"):
        assert not matcher.accept(encode(text)[0])
    assert not matcher.accept(STOP)
    assert not matcher.accept(VOCABULARY.token_id("</think>"))
    assert allowed(matcher) == before


@pytest.mark.parametrize("name", BACKENDS)
def test_a_finished_output_allows_only_to_stop(name: BackendName) -> None:
    matcher = compiled(name, of(json={"const": 7})).matcher()
    assert replay(matcher, encode("7"))
    assert allowed(matcher) == [STOP]
    assert replay(matcher, [STOP, STOP])
    assert matcher.is_done
    assert allowed(matcher) == [STOP]
    assert not matcher.accept(encode("7")[0])
    matcher.rollback(3)
    assert not matcher.is_done
    assert not matcher.is_complete


@pytest.mark.parametrize("name", BACKENDS)
def test_drafts_are_masked_up_to_the_first_that_is_not_allowed(name: BackendName) -> None:
    matcher = compiled(name, of(regex="[0-9]{2}x")).matcher()
    one, letter = encode("1")[0], encode("x")[0]
    masks = np.full((5, VOCABULARY.num_words), -1, dtype=np.int32)
    assert fill_ahead(matcher, [one, letter, one], masks, 1) == 1
    assert one in tokens_of(masks[1])
    assert letter not in tokens_of(masks[1])
    assert one in tokens_of(masks[2])
    assert (masks[0] == -1).all()
    assert (masks[3] == -1).all()
    assert replay(matcher, [one, one, letter])


@pytest.mark.parametrize("name", BACKENDS)
def test_t60_the_grammar_starts_after_the_reasoning(name: BackendName) -> None:
    think, dsml = VOCABULARY.token_id("</think>"), VOCABULARY.token_id("｜DSML｜")
    inner = compiled(name, of(json={"type": "null"})).matcher()
    matcher = DeferredMatcher(inner, think, VOCABULARY)
    free = allowed(matcher)
    assert think in free
    assert encode("x")[0] in free
    assert STOP not in free
    assert dsml not in free
    assert not matcher.accept(dsml)
    tokens = [*encode("null? {"), think, *encode("null")]
    assert replay(matcher, tokens)
    assert matcher.is_complete
    assert matcher.accept(STOP)
    assert matcher.is_done
    matcher.rollback(1 + len(encode("null")) + 1)
    assert not matcher.is_complete
    assert allowed(matcher) == free
    assert replay(matcher, [think, *encode("null")])
    assert allowed(matcher) == [STOP]


D = "｜DSML｜"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "maximum": 14},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    },
}
TOOLS = [Tool("get_weather", WEATHER, is_strict=True), Tool("ping", {"type": "object"})]


def parameter(name: str, value: str, is_string: bool) -> str:
    kind = "true" if is_string else "false"
    return f'<{D} parameter name="{name}" string="{kind}">{value}</{D} parameter>'


def invoke(name: str, *parameters: str) -> str:
    return f'<{D} invoke name="{name}">\n' + "\n".join(parameters) + f"\n</{D} invoke>\n"


def calls(*invocations: str) -> str:
    return f"<{D} calls>\n" + "".join(invocations) + f"</{D} calls>"


WEATHER_CALL = invoke(
    "get_weather",
    parameter("city", "Paris </b> é", True),
    parameter("days", "3", False),
    parameter("unit", "c", True),
    parameter("note", "null", False),
)
PING = invoke("ping")
PING_ANY = invoke("ping", parameter("a", "x\n", True), parameter("b", '{"c": [1, null]}', False))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            {},
            ["hello", "", f"a < b\n\n{calls(WEATHER_CALL)}", calls(PING, WEATHER_CALL, PING_ANY)],
            [
                calls(WEATHER_CALL.replace(">3<", ">15<")),
                calls(WEATHER_CALL.replace(">c<", ">k<")),
                calls(WEATHER_CALL.replace("null", "12345")),
                calls(),
                calls(invoke("other")),
                calls(PING) + "x",
                f"a {D}",
            ],
        ),
        (
            {"forced": True},
            [f"\n\n{calls(PING)}", f"\n\n{calls(PING, PING_ANY)}"],
            ["hello", calls(PING), ""],
        ),
        (
            {"only": "ping", "opened": True},
            [calls(PING).removeprefix(f"<{D} calls>\n")],
            [
                calls(PING, PING).removeprefix(f"<{D} calls>\n"),
                calls(WEATHER_CALL).removeprefix(f"<{D} calls>\n"),
            ],
        ),
        (
            {"parallel": False, "answer": from_response_format({"type": "json_object"})},
            ['{"a":1}', f"\n\n{calls(PING)}", calls(WEATHER_CALL)],
            ["hello", calls(PING, PING), '{"a":1}' + calls(PING)],
        ),
    ],
    ids=["auto", "required", "named", "answer or call"],
)
def test_tool_calls_follow_the_block_grammar(
    options: dict[str, Any], good: list[str], bad: list[str], name: BackendName
) -> None:
    constraint = from_tools(TOOLS, **options)
    assert constraint is not None
    held = compiled(name, constraint)
    for texts, is_good in ((good, True), (bad, False)):
        for text in texts:
            matcher = held.matcher()
            assert (replay(matcher, encode(text)) and matcher.is_complete) == is_good, text


LOOSE = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 1, "maximum": 9},
        "b": {"type": "string", "maxLength": 3},
        "c": {"type": "boolean"},
    },
    "required": ["b"],
}
A, B = parameter("a", "3", False), parameter("b", "xyz", True)
C, WRONG = parameter("c", "true", False), parameter("a", "30", False)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_forced_call_keeps_to_a_schema_that_is_not_strict(name: BackendName) -> None:
    constraint = from_tools([Tool("f", LOOSE)], forced=True)
    assert constraint is not None
    held = compiled(name, constraint)
    good = [(B,), (A, B), (B, C), (A, B, C)]
    bad = [(), (A,), (A, C), (C, B), (WRONG, B), (B, B), (B, parameter("d", "1", False))]
    for parameters in (*good, *bad):
        matcher = held.matcher()
        text = f"\n\n{calls(invoke('f', *parameters))}"
        is_taken = replay(matcher, encode(text)) and matcher.is_complete
        assert is_taken == (parameters in good), parameters


@pytest.mark.parametrize("name", BACKENDS)
def test_all_parameters_may_be_missing_where_none_is_required(name: BackendName) -> None:
    free = {key: value for key, value in LOOSE.items() if key != "required"}
    constraint = from_tools([Tool("f", free)], only="f")
    assert constraint is not None
    held = compiled(name, constraint)
    for parameters in ((), (A,), (B,), (C,), (A, C), (A, B, C)):
        matcher = held.matcher()
        text = f"\n\n{calls(invoke('f', *parameters))}"
        assert replay(matcher, encode(text)) and matcher.is_complete, parameters


@pytest.mark.parametrize("name", BACKENDS)
def test_a_forced_call_is_free_where_its_schema_cannot_be_kept_to(name: BackendName) -> None:
    odd = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    constraint = from_tools([Tool("f", odd)], forced=True)
    assert constraint is not None
    matcher = compiled(name, constraint).matcher()
    text = f"\n\n{calls(invoke('f', parameter('z', 'anything', True)))}"
    assert replay(matcher, encode(text)) and matcher.is_complete


@pytest.mark.parametrize("name", BACKENDS)
def test_a_marker_typed_as_text_is_no_marker(name: BackendName) -> None:
    constraint = from_tools(TOOLS, forced=True)
    assert constraint is not None
    typed = [VOCABULARY.tokens.index(bytes([b])) for b in D.encode()]
    for marker, is_good in (([VOCABULARY.token_id(D)], True), (typed, False)):
        tokens = [*encode("\n\n<"), *marker, *encode(" calls>\n")]
        assert replay(compiled(name, constraint).matcher(), tokens) == is_good


def test_a_row_is_the_tokens_that_it_allows() -> None:
    for tokens in ([], [0], [31, 32, 959], list(range(960))):
        assert tokens_of(row_of(tokens, VOCABULARY)) == tokens
