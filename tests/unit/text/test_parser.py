"""Reasoning, answer and calls, by ids: the rules of the output's grammar."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.text import tokenizer
from diptych.text.markers import ROLES, Marker, split
from diptych.text.opening import Opening
from diptych.text.parser import Parser
from diptych.text.pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Oddity,
    Piece,
    Section,
    Text,
    joined,
)
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool, ToolCall, invocations

TOKENIZER = tokenizer.load(Path(__file__).parents[2] / "golden" / "tiny-text")
MARKERS = {*ROLES, Marker.EOS, Marker.PAD, Marker.THINK, Marker.END_THINK, Marker.DSML}
TOOLS = (
    Tool("f", "", {"type": "object", "properties": {"a": {"type": "string"}}}),
    Tool("wrap", "", {"type": "object", "properties": {"input": {"type": "string"}}}),
)


@dataclass
class Call:
    name: str
    arguments: str = ""
    is_complete: bool = False


@dataclass
class Seen:
    """Everything that a client got of one output, and how it ended."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def take(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            match piece:
                case Text(section, text):
                    assert text
                    assert not self.calls or self.calls[-1].is_complete
                    if section is Section.REASONING:
                        assert not self.content and not self.calls
                        self.reasoning += text
                    else:
                        self.content += text
                case CallStart(index, name):
                    assert index == len(self.calls)
                    assert all(call.is_complete for call in self.calls)
                    self.calls.append(Call(name))
                case CallArguments(index, text):
                    assert text
                    assert index == len(self.calls) - 1
                    assert not self.calls[-1].is_complete
                    self.calls[-1].arguments += text
                case CallEnd(index):
                    assert index == len(self.calls) - 1
                    json.loads(self.calls[-1].arguments)
                    self.calls[-1].is_complete = True

    @property
    def told(self) -> tuple[object, ...]:
        return self.reasoning, self.content, [(c.name, c.arguments) for c in self.calls]


def make(opening: Opening = Opening.ANSWER, **how: object) -> Parser:
    return Parser(TOKENIZER, opening, **({"tools": TOOLS} | how))  # type: ignore[arg-type]


def encode(text: str) -> tuple[int, ...]:
    """As a model writes it: what looks like a marker is one."""
    return TOKENIZER.encode(split(text, MARKERS))


def feed(parser: Parser, ids: Iterable[int], *, cut: bool = False) -> Seen:
    seen = Seen()
    for token_id in ids:
        seen.take(parser.push(token_id))
    seen.take(parser.finish(cut=cut))
    assert parser.num_settled == len(parser.sections)
    return seen


def read(text: str, opening: Opening = Opening.ANSWER, *, cut: bool = False, **how: object) -> Seen:
    return feed(make(opening, **how), encode(text), cut=cut)


def odd(text: str, **how: object) -> dict[Oddity, int]:
    parser = make(**how)  # type: ignore[arg-type]
    feed(parser, encode(text))
    return {oddity: count for oddity, count in parser.oddities.items() if count}


def parameter(name: str, value: str, string: str | None = "true") -> str:
    said = f' string="{string}"' if string else ""
    return f'<｜DSML｜ parameter name="{name}"{said}>{value}</｜DSML｜ parameter>\n'


def invoke(name: str, *parameters: str) -> str:
    return f'<｜DSML｜ invoke name="{name}">\n{"".join(parameters)}</｜DSML｜ invoke>\n'


def block(*invokes: str) -> str:
    return f"\n\n<｜DSML｜ calls>\n{''.join(invokes)}</｜DSML｜ calls>"


CALL = block(invoke("f", parameter("a", "x")))
DONE = ("f", '{"a": "x"}')


# Reasoning and answer


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Need it.</think>Yes.", "Need it.", "Yes."),
        ("\n\nNeed\n it.\n\n</think>\n\nYes.\n", "Need\n it.", "Yes.\n"),
        ("</think>Yes.", "", "Yes."),
        ("<think>Hm</think>Yes.", "Hm", "Yes."),
        ("\n<think>\nHm</think>Yes.", "Hm", "Yes."),
        ("Hm<think>m</think>Yes.", "Hm<think>m", "Yes."),
        ("Hm</think>Y</think>es", "Hm", "Yes"),
        ("Hm</think>a<think>b", "Hm", "a<think>b"),
        ("cut while thinking\n", "cut while thinking\n", ""),
        ("a <\n</think>b <", "a <", "b <"),
        ("Hm</think>Yes.<｜end▁of▁sentence｜>", "Hm", "Yes."),
        ("Hm</think>a<｜▁pad▁｜>b｜DSML｜c", "Hm", "abc"),
        ("", "", ""),
    ],
)
def test_a_thinking_output(text: str, reasoning: str, content: str) -> None:
    for tools in (TOOLS, ()):
        seen = read(text, Opening.REASONING, tools=tools)
        assert seen.told == (reasoning, content, [])


def test_markers_spelled_with_ordinary_tokens_are_text() -> None:
    text = "spelled </think> out" + CALL
    seen = feed(make(Opening.REASONING), TOKENIZER.encode([text]))
    assert seen.told == (text, "", [])


@pytest.mark.parametrize("tail", ["</thi", "<", "</", "\n\n<", "\n"])
@pytest.mark.parametrize("cut", [True, False])
def test_what_looks_like_a_beginning_is_flushed_where_it_belongs(tail: str, cut: bool) -> None:
    assert read("x" + tail, Opening.REASONING, cut=cut).told == ("x" + tail, "", [])
    assert read("x" + tail, Opening.ANSWER, cut=cut).told == ("", "x" + tail, [])


def test_without_thinking_all_text_is_the_answer() -> None:
    assert read("\nYes</think>.").told == ("", "Yes.", [])


@pytest.mark.parametrize(
    ("opening", "reasoning", "content"),
    [
        (Opening.REASONING, "a", "b"),
        (Opening.MORE_REASONING, "\na", "b"),
        (Opening.ANSWER, "", "a\n\nb"),
        (Opening.MORE_ANSWER, "", "\na\n\nb"),
    ],
)
def test_leading_newlines_count_in_a_continued_text_only(
    opening: Opening, reasoning: str, content: str
) -> None:
    assert read("\na</think>\n\nb", opening).told == (reasoning, content, [])


def test_plain_text_has_no_sections_and_no_calls(real: Tokenizer) -> None:
    text = "\n<think>a</think>\n" + CALL
    ids = real.encode(split(text + "<｜end▁of▁sentence｜>", MARKERS))
    assert feed(Parser(real, Opening.PLAIN, tools=TOOLS), ids).told == ("", text, [])
    parser = Parser(real, Opening.PLAIN, stops=["a<"])
    assert feed(parser, ids).told == ("", "\n<think>", [])


@pytest.mark.parametrize("role", sorted(ROLES, key=str))
def test_a_role_id_ends_the_turn_and_is_not_shown(role: Marker) -> None:
    assert read(f"Yes.\n{role.value}forged").told == ("", "Yes.\n", [])
    assert odd(role.value) == {Oddity.ROLE: 1}


def test_a_role_id_does_not_end_a_run_to_length() -> None:
    ran = read("a<｜User｜>b<｜end▁of▁sentence｜>c", ignore_eos=True)
    assert ran.told == ("", "abc", [])


@pytest.mark.parametrize(("cut", "tail"), [(False, "\ufffd"), (True, "")])
def test_half_a_character_at_the_end(cut: bool, tail: str) -> None:
    half = next(i for i in range(TOKENIZER.vocab_size) if TOKENIZER.token_bytes(i) == b"\xf0")
    assert feed(make(), (half,), cut=cut).content == tail


# Stop strings


def test_a_stop_string_counts_in_the_answer_only() -> None:
    text = "STOP</think>A STOP" + CALL
    assert read(text, Opening.REASONING, stops=["STOP"]).told == ("STOP", "A ", [])
    inside = "STOP</think>A" + block(invoke("f", parameter("a", "STOP")))
    calls = [("f", '{"a": "STOP"}')]
    assert read(inside, Opening.REASONING, stops=["STOP"]).told == ("STOP", "A", calls)


def test_tokens_after_the_stop_string_are_not_used() -> None:
    parser = make(stops=["STOP"])
    ids = encode("two STOP three")
    for token_id in ids:
        parser.push(token_id)
    num_used = len(parser.sections)
    assert b"STOP" in b"".join(map(TOKENIZER.token_bytes, ids[:num_used]))
    assert b"STOP" not in b"".join(map(TOKENIZER.token_bytes, ids[: num_used - 1]))
    assert (parser.stop, parser.surplus_tokens) == ("STOP", 0)
    assert parser.push(ids[-1]) == []


def test_a_stop_string_may_be_kept() -> None:
    assert read("a STOP b", stops=["STOP"], keep_stop=True).content == "a STOP"


def test_a_stop_string_does_not_count_before_the_least_number_of_tokens() -> None:
    ids = encode("STOP STOP STOP")
    first = encode("STOP STOP")
    parser = make(stops=["STOP"], min_tokens=len(first))
    assert feed(parser, ids).content == "STOP STOP "


def test_newlines_of_the_first_tokens_that_were_held_stop_nothing() -> None:
    ids = ids_of("a", "\n", "\n", "b")
    parser = make(stops=["\n"], min_tokens=2)
    assert feed(parser, ids).content == "a\n"
    assert (parser.stop, parser.surplus_tokens) == ("\n", 1)
    assert feed(make(stops=["\n"], min_tokens=3), ids).content == "a\n\nb"


def test_newlines_that_may_open_a_call_stop_the_answer_once_they_did_not() -> None:
    assert read("a" + CALL, stops=["\n\n"]).told == ("", "a", [DONE])
    parser = make(stops=["\n"])
    assert feed(parser, encode("a\n\nb")).content == "a"
    used = len(parser.sections) - parser.surplus_tokens
    assert b"\n" in TOKENIZER.token_bytes(encode("a\n\nb")[used - 1])
    assert parser.surplus_tokens > 0
    eager = make(stops=["\n"], tools=())
    assert feed(eager, encode("a\n\nb")).content == "a"
    assert eager.surplus_tokens == 0


def test_a_held_beginning_of_a_stop_string_comes_before_the_call() -> None:
    assert read("a ST" + CALL, stops=["STOP"]).told == ("", "a ST", [DONE])
    assert read("a ST" + CALL[2:] + "x", stops=["STOP"], tools=()).told == ("", "a STx", [])


# Calls


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("Let me look." + CALL, "Let me look.", [DONE]),
        ("a\n\n\n" + CALL + "\ndropped", "a", [DONE]),
        (CALL, "", [DONE]),
        (CALL + CALL, "", [DONE, DONE]),
        (block(invoke("f"), invoke("g")), "", [("f", "{}"), ("g", "{}")]),
        (CALL.replace("｜ ", "｜"), "", [DONE]),
        (CALL.replace("｜ ", "｜").replace("calls>", "tool_calls>"), "", [DONE]),
        ("a " + invoke("f", parameter("a", "x")), "a ", [DONE]),
        ("a" + block(), "a", []),
        ("a" + block() + "b", "a", []),
        (block(invoke("ns::f")), "", [("ns::f", "{}")]),
        (block(invoke("f", parameter('k"x', "v"))), "", [("f", '{"k\\"x": "v"}')]),
        (block(invoke("f", parameter("a>b", "v"))), "", [("f", '{"a>b": "v"}')]),
        # damaged markup
        ("a <｜DSML｜ foo>b", "a b", []),
        ("a\n<｜DSML｜ foo>\nb", "a\n\nb", []),
        ("a <｜DSML｜ foo\nb > c", "a \nb > c", []),
        ("a </｜DSML｜ calls>b", "a b", []),
        ("a\n\n<｜DSML｜ cal", "a", []),
        ("a <｜DSML｜ <｜DSML｜ calls>", "a ", []),
        ("a" + block("text", invoke("f", parameter("a", "x")), "text"), "a", [DONE]),
        (block(invoke("f", parameter("a", "x<｜DSML｜ foo>y"))), "", [("f", '{"a": "xy"}')]),
        (block(invoke("f", parameter("a", "x</think>y"))), "", [("f", '{"a": "x</think>y"}')]),
    ],
)
def test_calls_in_an_answer(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for opening, before, reasoning in (
        (Opening.ANSWER, "", ""),
        (Opening.REASONING, "r\n</think>\n\n", "r"),
    ):
        seen = read(before + text, opening)
        assert seen.told == (reasoning, content, calls)
        assert all(call.is_complete for call in seen.calls)


def test_calls_in_the_reasoning_end_it() -> None:
    assert read("Hm." + CALL, Opening.REASONING).told == ("Hm.", "", [DONE])


def test_calls_that_the_prompt_opened() -> None:
    assert read(CALL.removeprefix("\n\n<｜DSML｜ calls>\n"), Opening.CALLS).told == ("", "", [DONE])


def test_calls_without_tools_are_not_shown_and_the_text_goes_on() -> None:
    assert read("a" + CALL + "b", tools=()).told == ("", "a\n\nb", [])
    reasoned = "r" + CALL + "s</think>a" + CALL
    assert read(reasoned, Opening.REASONING, tools=()).told == ("rs", "a\n\n", [])
    unclosed = 'r<｜DSML｜ invoke name="f">s</think>a'
    assert read(unclosed, Opening.REASONING, tools=()).told == ("r", "a", [])


def test_only_one_call_if_calls_must_not_be_parallel() -> None:
    for text in (block(invoke("f"), invoke("f")), '<｜DSML｜ invoke name="f">' * 2):
        parser = make(parallel=False)
        assert feed(parser, encode(text)).told == ("", "", [("f", "{}")])
        assert (parser.is_over, parser.num_calls) == (True, 1)


def test_the_name_comes_first_and_strings_come_as_they_are_written() -> None:
    parser = make()
    pieces: list[Piece] = []
    heads = [
        'Let me.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n',
        '<｜DSML｜ parameter name="a" string="true">Par',
        "is <",
        "b</｜DSML｜ parameter>\n",
        '<｜DSML｜ parameter name="n" string="false">[1,',
        "2]</｜DSML｜ parameter>",
        "\n</｜DSML｜ invoke>\n",
    ]
    steps = []
    for head in heads:
        pieces = [piece for token_id in encode(head) for piece in parser.push(token_id)]
        steps.append(joined(pieces))
    assert steps == [
        [Text(Section.CONTENT, "Let me."), CallStart(0, "f")],
        [CallArguments(0, '{"a": "Par')],
        [CallArguments(0, "is ")],
        [CallArguments(0, '<b"')],
        [CallArguments(0, ', "n": ')],
        [CallArguments(0, "[1, 2]")],
        [CallArguments(0, "}"), CallEnd(0)],
    ]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<｜DSML｜ invoke name="f">\n' + parameter("a", "x"), '{"a": "x"}'),
        ('<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">x', '{"a": "x"}'),
        (
            '<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="false">[1',
            '{"a": "[1"}',
        ),
        ('<｜DSML｜ invoke name="f">', "{}"),
        (
            '<｜DSML｜ invoke name="f"><｜DSML｜ parameter name="a" string="true">x'
            '<｜DSML｜ parameter name="b" string="true">y</｜DSML｜ invoke>',
            '{"a": "x", "b": "y"}',
        ),
        (
            '<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">x'
            "</｜DSML｜ calls>",
            '{"a": "x"}',
        ),
    ],
)
def test_missing_closers_are_implied_at_the_end_of_a_turn(text: str, arguments: str) -> None:
    assert read(text).told == ("", "", [("f", arguments)])


def test_a_call_cut_at_any_place_is_a_beginning_without_an_end() -> None:
    value = 'make 2>&1 "\n" <'
    text = block(invoke("f", parameter("a", value), parameter("n", "[1, 2]", "false")), invoke("f"))
    whole = read(text).calls[0].arguments
    ids = encode(text)
    for place in range(len(ids)):
        seen = feed(make(), ids[:place], cut=True)
        assert seen.content.strip() in ("", "<")
        assert "DSML" not in repr(seen)
        for call in seen.calls:
            given, full = call.arguments.rstrip("</"), "{}" if len(seen.calls) == 2 else whole
            assert full.startswith(given) or seen.calls[0].arguments == whole


def test_a_cut_flushes_what_waited() -> None:
    start = '<｜DSML｜ invoke name="f"><｜DSML｜ parameter name='
    assert read(start + '"a" string="false">[1, 2', cut=True).calls == [Call("f", '{"a": [1, 2')]
    assert read(start + '"a" string="true">x <', cut=True).calls == [Call("f", '{"a": "x <')]
    wrapped = Call("f", '{"arguments": "{\\"a\\"')
    assert read(start + '"arguments" string="true">{"a"', cut=True).calls == [wrapped]


def test_oddities_are_counted() -> None:
    assert odd(CALL) == {}
    assert odd(block(invoke("h"))) == {Oddity.UNKNOWN_TOOL: 1}
    assert odd("<｜DSML｜ foo>｜DSML｜") == {Oddity.STRAY_MARKUP: 2}
    assert odd(block(invoke("f", "text"))) == {Oddity.BAD_BODY: 1}
    assert odd(block(invoke("f", parameter("a", "x", "false")))) == {Oddity.BAD_VALUE: 1}
    twice = block(invoke("f", parameter("a", "x"), parameter("a", "y")))
    assert odd(twice) == {Oddity.REPEATED_PARAMETER: 1}
    assert odd('<｜DSML｜ invoke name="f">') == {Oddity.UNCLOSED: 1}


# Tokens


def test_reasoning_tokens_are_those_with_reasoning_text() -> None:
    parser = make(Opening.REASONING)
    ids = encode("\n\nNeed it.\n\n</think>\n\nYes." + CALL)
    feed(parser, ids)
    shown = {Section.REASONING: b"", Section.CONTENT: b""}
    for token_id, section in zip(ids, parser.sections, strict=True):
        if section is not None:
            shown[section] += TOKENIZER.token_bytes(token_id)
    shown = {section: text.rstrip(b"\n") for section, text in shown.items()}
    assert shown == {Section.REASONING: b"Need it.", Section.CONTENT: b"Yes."}
    assert parser.reasoning_tokens == parser.sections.count(Section.REASONING)


def test_a_token_is_settled_with_its_text() -> None:
    parser = make()
    settled = []
    for token_id in (*TOKENIZER.encode(["a"]), *TOKENIZER.encode(["\n"])):
        parser.push(token_id)
        settled.append((parser.num_settled, parser.sections[-1]))
    assert settled == [(1, Section.CONTENT), (1, Section.CONTENT)]
    for token_id in encode("<｜DSML｜ calls>"):
        parser.push(token_id)
    assert parser.num_settled == len(parser.sections)
    assert parser.sections == [Section.CONTENT, *[None] * (len(parser.sections) - 1)]


def test_merged_reasoning_is_told_as_it_was_written() -> None:
    text = "\n\nNeed\nit.\n</think>\n\nStop: it</think>\n"
    seen = read(text, Opening.REASONING, merged=True, stops=["Need", "it</"])
    assert seen == Seen(content="\n\nNeed\nit.\n</think>\n\nStop: it\n")
    assert read("\nx", Opening.ANSWER, merged=True) == Seen(content="x")
    parser = make(Opening.REASONING, merged=True, stops=["it"])
    assert feed(parser, encode("Need it</think>x it y")).content == "Need it</think>x "
    assert parser.stop == "it"
    assert parser.sections[:2] == [Section.REASONING] * 2
    assert parser.reasoning_tokens == len(encode("Need it"))


def test_merged_reasoning_that_was_cut_has_no_end_marker() -> None:
    assert feed(make(Opening.REASONING, merged=True), encode("Need"), cut=True).content == "Need"
    seen = read("Need it." + CALL, Opening.REASONING, merged=True)
    assert seen.content == "Need it." and len(seen.calls) == 1


def test_the_marker_of_merged_reasoning_tells_of_its_token() -> None:
    parser = make(Opening.REASONING, merged=True)
    ids = encode("ab</think>c")
    pieces = joined([piece for token_id in ids for piece in parser.push(token_id)])
    assert [p.tokens for p in pieces if isinstance(p, Text)] == [tuple(range(len(ids)))]


def test_special_tokens_without_a_meaning_are_shown_on_demand_only() -> None:
    text: list[str | Marker] = ["a", Marker.FIM_HOLE, "b", Marker.TITLE, Marker.EOS, "c"]
    ids = TOKENIZER.encode(text)
    assert feed(make(Opening.ANSWER), ids).content == "abc"
    shown = feed(make(Opening.ANSWER, special=True), ids).content
    assert shown == f"a{Marker.FIM_HOLE.value}b{Marker.TITLE.value}c"
    ended = TOKENIZER.encode(["a", Marker.USER, "b"])
    assert feed(make(Opening.ANSWER, special=True), ended).content == "a"


# Properties

CORPUS = [
    (Opening.REASONING, "\nNeed it.\n\n</think>\n\nLet me\n\nlook.\n" + CALL),
    (Opening.REASONING, "é😀漢<\n</</think>\n\na < b </ c\n"),
    (
        Opening.ANSWER,
        "a\n"
        + block(
            invoke(
                "f",
                parameter("a", 'make 2>&1 <b>"q"\n\t\\é😀'),
                parameter("b", "[1,2.50]", "false"),
            ),
            invoke("g", parameter("c", " 1 ", None), parameter("d", "x y", None)),
            invoke("f", parameter("arguments", '{"a": 1}')),
            invoke("f", '{"a": "b"}'),
        )
        + "tail",
    ),
    (Opening.CALLS, invoke("f", parameter("a", "<")) + "</｜DSML｜ calls>"),
    (Opening.REASONING, "Hm <｜DSML｜ foo> x\n" + CALL.replace("｜ ", "｜") + CALL),
    (Opening.ANSWER, "a <｜DSML｜ calls"),
    (Opening.ANSWER, "one\nUs" + "age\nUser: two"),
    (Opening.MORE_ANSWER, "\n\n<｜DSML｜ calls>\n" + '<｜DSML｜ invoke name="f'),
]


@pytest.mark.parametrize("merged", [False, True], ids=["", "merged"])
@pytest.mark.parametrize("tools", [TOOLS, ()], ids=["tools", "no tools"])
@pytest.mark.parametrize(("opening", "text"), CORPUS)
def test_every_split_gives_the_same(
    opening: Opening, text: str, tools: tuple[Tool, ...], merged: bool
) -> None:
    how = {"tools": tools, "stops": ["\nUser:", "never"], "merged": merged}
    expected = read(text, opening, **how)
    segments = split(text, MARKERS)

    def tokens(pieces: Iterable[str | Marker]) -> list[int]:
        return [i for piece in pieces for i in TOKENIZER.encode([piece])]

    def chars(parts: Iterable[object]) -> list[str | Marker]:
        out: list[str | Marker] = []
        for part in parts:
            out += [part] if isinstance(part, Marker) else list(str(part))
        return out

    assert feed(make(opening, **how), tokens(chars(segments))) == expected
    single = [s if isinstance(s, Marker) else str(s) for s in segments]
    for at, segment in enumerate(single):
        for place in range(1, len(segment) if isinstance(segment, str) else 0):
            assert isinstance(segment, str)
            halves = [*single[:at], segment[:place], segment[place:], *single[at + 1 :]]
            assert feed(make(opening, **how), tokens(halves)) == expected
    for place in range(len(text) + 1):
        parser, seen = make(opening, **how), Seen()
        for chunk in (text[:place], text[place:]):
            seen.take(parser.push_text(chunk))
        seen.take(parser.finish(cut=False))
        assert seen == expected


FRAGMENTS = [
    "<｜DSML｜", "</｜DSML｜", "｜DSML｜", " calls>", "tool_calls>\n",
    ' invoke name="f">\n', " invoke>",
    ' parameter name="a" string="true">', ' parameter name="b" string="false">',
    ' parameter name="input">', " parameter>", "<", "</", ">", '"', "\n", "\n\n", "x", "é😀",
    "{", "}",
    '{"a": 1}', "[1, 2]", "</think>", "<think>", "th", " name=", "\\", "<｜User｜>",
]  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    st.sampled_from(sorted(set(Opening) - {Opening.PLAIN})),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(["x", "\n", "th", "<"]), max_size=2),
)
def test_no_damage_shows_markup_or_breaks_arguments(
    fragments: list[str], opening: Opening, cut: bool, has_tools: bool, parallel: bool,
    stops: list[str],
) -> None:  # fmt: skip
    how = {"tools": TOOLS if has_tools else (), "parallel": parallel, "stops": stops}
    text = "".join(fragments)
    parser = make(opening, **how)
    seen = feed(parser, encode(text), cut=cut)
    assert "DSML" not in repr(seen)
    assert not any(stop in seen.content for stop in stops)
    assert has_tools or not seen.calls
    assert parallel or len(seen.calls) <= 1
    assert parser.num_calls == sum(call.is_complete for call in seen.calls)
    assert cut or parser.num_calls == len(seen.calls)
    assert parser.reasoning_tokens == parser.sections.count(Section.REASONING)
    by_text, texts = make(opening, **how), Seen()
    for char in text:
        texts.take(by_text.push_text(char))
    texts.take(by_text.finish(cut=cut))
    assert texts == seen


IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30)


@settings(deadline=None)
@given(IDS, st.sampled_from(Opening))
def test_any_ids_give_text_without_markers(ids: list[int], opening: Opening) -> None:
    seen = feed(make(opening), ids)
    hidden = MARKERS - {Marker.THINK, Marker.END_THINK}
    assert not any(m.value in repr(seen) for m in hidden)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAMES = st.text(st.characters(exclude_characters='"', exclude_categories=("Cs",)), max_size=8)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=4), min_size=1, max_size=3))
def test_calls_render_to_what_was_parsed(arguments: list[dict[str, object]]) -> None:
    texts = [json.dumps(a, ensure_ascii=False) for a in arguments]
    ids = TOKENIZER.encode(invocations([ToolCall("", "f", text) for text in texts]))
    tool = Tool("f", "", {"properties": {"input": {}, "arguments": {}}})
    seen = feed(make(tools=(tool,)), ids)
    assert [call.arguments for call in seen.calls] == texts
    again = [ToolCall("", "f", call.arguments) for call in seen.calls]
    assert TOKENIZER.encode(invocations(again)) == ids


def tokens_of(parser: Parser, ids: tuple[int, ...]) -> list[tuple[Section, str, tuple[int, ...]]]:
    pieces = [piece for token in ids if not parser.is_over for piece in parser.push(token)]
    pieces += parser.finish(cut=False)
    return [(p.section, p.text, p.tokens) for p in pieces if isinstance(p, Text)]


def ids_of(*texts: str | Marker) -> tuple[int, ...]:
    """One token each."""
    found = [TOKENIZER.encode([text]) for text in texts]
    assert [len(ids) for ids in found] == [1] * len(texts), found
    return tuple(token for (token,) in found)


def test_a_piece_names_the_tokens_that_begin_in_it() -> None:
    ids = ids_of("\n", "a", "b", "\n", Marker.END_THINK, "\n", "c", Marker.DSML, "d", Marker.EOS)
    assert tokens_of(Parser(TOKENIZER, Opening.REASONING), ids) == [
        (Section.REASONING, "a", (1,)),
        (Section.REASONING, "b", (2,)),
        (Section.CONTENT, "c", (6,)),
        (Section.CONTENT, "d", (8,)),
    ]


def test_tokens_that_were_held_back_come_with_their_text() -> None:
    ids = ids_of("a", "\n", "\n", "b")
    assert tokens_of(Parser(TOKENIZER, Opening.REASONING), ids) == [
        (Section.REASONING, "a", (0,)),
        (Section.REASONING, "\n\nb", (1, 2, 3)),
    ]
    parser = Parser(TOKENIZER, Opening.ANSWER, stops=["\n\nX"])
    assert tokens_of(parser, ids_of("\n", "a", "\n", "\n", "\n", "b")) == [
        (Section.CONTENT, "a", (1,)),
        (Section.CONTENT, "\n", (2,)),
        (Section.CONTENT, "\n\nb", (3, 4, 5)),
    ]


def test_tokens_of_a_stop_string_are_not_told_of() -> None:
    parser = Parser(TOKENIZER, Opening.ANSWER, stops=["\nb"])
    assert tokens_of(parser, ids_of("a", "\n", "b", "c")) == [(Section.CONTENT, "a", (0,))]


def test_the_tokens_of_one_character_come_together() -> None:
    ids = TOKENIZER.encode(["🦄x"])
    assert len(ids) > 2
    pieces = tokens_of(Parser(TOKENIZER, Opening.ANSWER), ids)
    assert pieces[0] == (Section.CONTENT, "🦄", tuple(range(len(ids) - 1)))
    cut_off = (ids[0], *ids_of(Marker.THINK, "a"))
    assert tokens_of(Parser(TOKENIZER, Opening.ANSWER), cut_off) == [
        (Section.CONTENT, "\ufffd", (0,)),
        (Section.CONTENT, "<think>", (1,)),
        (Section.CONTENT, "a", (2,)),
    ]
