"""Mistakes that others made in public, by the number they have in our list.

Those about encoding and parsing. What a trap asks of HTTP shapes is tested at the gateway.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from diptych.text.chat import Chat, Message, Role, render
from diptych.text.completion import raw
from diptych.text.image import Image
from diptych.text.markers import ROLES, Marker, Segment, spell, split
from diptych.text.opening import Opening, opening_of
from diptych.text.parser import Parser
from diptych.text.pieces import CallArguments, CallEnd, CallStart, Piece, Section, Text
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool, ToolCall, invocations

MARKERS = {*ROLES, Marker.EOS, Marker.PAD, Marker.THINK, Marker.END_THINK, Marker.DSML}
TOOLS = (Tool("f", "", {"type": "object", "properties": {"a": {"type": "string"}}}),)
USER = Message(Role.USER, "u")


@dataclass
class Answer:
    """All that came of one output."""

    parser: Parser
    steps: list[list[Piece]] = field(default_factory=list)

    @property
    def pieces(self) -> list[Piece]:
        return [piece for step in self.steps for piece in step]

    def text(self, section: Section) -> str:
        return "".join(p.text for p in self.pieces if isinstance(p, Text) and p.section is section)

    @property
    def content(self) -> str:
        return self.text(Section.CONTENT)

    @property
    def reasoning(self) -> str:
        return self.text(Section.REASONING)

    @property
    def calls(self) -> list[tuple[str, str]]:
        starts = [p for p in self.pieces if isinstance(p, CallStart)]
        parts = [p for p in self.pieces if isinstance(p, CallArguments)]
        assert [start.index for start in starts] == list(range(len(starts)))
        return [(s.name, "".join(p.text for p in parts if p.index == s.index)) for s in starts]

    @property
    def num_complete(self) -> int:
        return sum(isinstance(p, CallEnd) for p in self.pieces)


def run(
    real: Tokenizer,
    ids: Iterable[int],
    opening: Opening = Opening.ANSWER,
    *,
    cut: bool = False,
    **how: object,
) -> Answer:
    parser = Parser(real, opening, **({"tools": TOOLS} | how))  # type: ignore[arg-type]
    answer = Answer(parser)
    for token_id in ids:
        answer.steps.append(parser.push(token_id))
    answer.steps.append(parser.finish(cut=cut))
    return answer


def encode(real: Tokenizer, text: str) -> tuple[int, ...]:
    return real.encode(split(text, MARKERS))


def read(real: Tokenizer, text: str, opening: Opening = Opening.ANSWER, **how: object) -> Answer:
    return run(real, encode(real, text), opening, **how)  # type: ignore[arg-type]


def single_bytes(real: Tokenizer, text: str) -> list[int]:
    """Each byte a token of its own."""
    ids = {real.token_bytes(i): i for i in range(300)}
    return [ids[bytes([byte])] for byte in text.encode()]


def block(body: str, name: str = "f") -> str:
    return (
        f'\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="{name}">\n{body}\n</｜DSML｜ invoke>\n'
        "</｜DSML｜ calls>"
    )


def string(value: str, name: str = "a") -> str:
    return f'<｜DSML｜ parameter name="{name}" string="true">{value}</｜DSML｜ parameter>'


def value(value: str, name: str = "n") -> str:
    return f'<｜DSML｜ parameter name="{name}" string="false">{value}</｜DSML｜ parameter>'


CALL = block(string("x"))
DONE = ("f", '{"a": "x"}')


# Text, UTF-8, stops


def test_t1_g6_a_character_over_several_tokens_is_never_broken(real: Tokenizer) -> None:
    text = "한국어 漢字 😀 👩‍👩‍👧 é"
    answer = run(real, single_bytes(real, text))
    assert answer.content == text
    half = single_bytes(real, "a😀")[:-1]
    assert run(real, half).content == "a\ufffd"
    assert run(real, half, cut=True).content == "a"


def test_t2_the_prompts_last_bytes_are_no_part_of_the_output(real: Tokenizer) -> None:
    assert (
        run(real, single_bytes(real, "😀")[2:] + single_bytes(real, "b")).content == "\ufffd\ufffdb"
    )


def test_t3_g10_a_stop_string_over_several_tokens_shows_no_half(real: Tokenizer) -> None:
    for text, content in (
        ("a\nUser: b", "a"),
        ("a\nUsage", "a\nUsage"),
        ("a\nUs", "a\nUs"),
    ):
        for ids in (encode(real, text), single_bytes(real, text)):
            answer = run(real, ids, stops=["\nUser:"])
            assert answer.content == content


def test_t4_of_two_stop_strings_the_first_to_end_wins(real: Tokenizer) -> None:
    for stops, content, found in (
        (["ab", "abc"], "x", "ab"),
        (["bc", "abc"], "x", "abc"),
        (["cd", "b"], "xa", "b"),
    ):
        for ids in (encode(real, "xabcd"), single_bytes(real, "xabcd")):
            answer = run(real, ids, stops=stops)
            assert (answer.content, answer.parser.stop) == (content, found)


def test_t5_a_stop_string_in_the_reasoning_is_ignored(real: Tokenizer) -> None:
    answer = read(real, "Question: x</think>y", Opening.REASONING, stops=["Question:"])
    assert (answer.reasoning, answer.content) == ("Question: x", "y")


def test_t6_a_stop_string_in_arguments_or_markup_cuts_no_call(real: Tokenizer) -> None:
    for stop in ("x", "calls", "\n\n", "invoke", "f"):
        answer = read(real, "y" + CALL, stops=[stop])
        assert (answer.content, answer.calls) == ("y", [DONE])
        assert answer.parser.stop is None


def test_t7_what_follows_the_stop_string_is_neither_shown_nor_counted(real: Tokenizer) -> None:
    ids = encode(real, "one STOP two three")
    answer = run(real, ids, stops=["STOP"])
    assert answer.content == "one "
    assert len(answer.parser.sections) - answer.parser.surplus_tokens < len(ids)


def test_t8_only_code_points_are_atomic(real: Tokenizer) -> None:
    text = "e\u0301 \u202eabc 👨‍👩 ﬁ \u212b"
    assert run(real, single_bytes(real, text)).content == text
    assert b"".join(map(real.token_bytes, real.encode([text]))) == text.encode()


def test_t10_control_characters_are_text_and_escaped_in_arguments(real: Tokenizer) -> None:
    odd = "\x00\x1f\r\u2028"
    assert read(real, odd).content == odd
    (call,) = read(real, block(string(odd))).calls
    assert call[1] == '{"a": "\\u0000\\u001f\\r\u2028"}'


def test_t11_no_leading_space_is_lost(real: Tokenizer) -> None:
    ids = real.encode([" a  b"])
    assert run(real, ids).content == " a  b"


def test_t12_the_stop_string_is_kept_on_demand_only(real: Tokenizer) -> None:
    assert read(real, "a STOP b", stops=["STOP"]).content == "a "
    assert read(real, "a STOP b", stops=["STOP"], keep_stop=True).content == "a STOP"


# Reasoning


def test_t28_t29_the_first_section_comes_from_the_prompt(real: Tokenizer) -> None:
    for effort, reasoning, content in ((None, "", "text"), (75, "text", "")):
        opening = opening_of(render(Chat((USER,), effort)))
        answer = read(real, "text", opening)
        assert (answer.reasoning, answer.content) == (reasoning, content)


def test_t31_reasoning_cut_by_length_has_an_empty_answer(real: Tokenizer) -> None:
    answer = read(real, "still thinking", Opening.REASONING, cut=True)
    assert (answer.reasoning, answer.content) == ("still thinking", "")


def test_t32_t33_reasoning_that_is_missing_or_empty_renders_as_none(real: Tokenizer) -> None:
    history = (USER, Message(Role.ASSISTANT, "a", ""), USER)
    assert "<｜Assistant｜><think></think>a" in spell(render(Chat(history, 75, TOOLS)))


def test_t34_old_reasoning_is_kept_with_tools_alone() -> None:
    history = (USER, Message(Role.ASSISTANT, "a", "old"), USER)
    assert "<think>old</think>a" in spell(render(Chat(history, 75, TOOLS)))
    assert "<｜Assistant｜></think>a" in spell(render(Chat(history, 75)))
    assert "old" not in spell(render(Chat(history, None, TOOLS)))


def test_t36_reasoning_tokens_are_those_of_the_reasoning(real: Tokenizer) -> None:
    answer = read(real, "one two three</think>four five", Opening.REASONING)
    assert answer.parser.reasoning_tokens == len(real.encode(["one two three"]))
    assert read(real, "one two").parser.reasoning_tokens == 0


def test_t37_a_forced_call_may_follow_reasoning(real: Tokenizer) -> None:
    prompt = render(Chat((USER,), 75, TOOLS, opens_calls=True))
    answer = read(real, "r</think>" + CALL, opening_of(prompt))
    assert (answer.reasoning, answer.content, answer.calls) == ("r", "", [DONE])


# Tools


def test_t38_string_arguments_are_streamed(real: Tokenizer) -> None:
    answer = read(real, block(string("one two three four")))
    parts = [p.text for p in answer.pieces if isinstance(p, CallArguments)]
    assert len(parts) > 4


def test_t39_g9_no_split_shows_markup(real: Tokenizer) -> None:
    text = "Run <it>:\n\n<" + CALL.lstrip("\n<") + CALL.replace(">x<", ">make 2>&1<")
    segments = split(text, MARKERS)

    def ids(parts: Iterable[Segment]) -> list[int]:
        return [
            i
            for part in parts
            for i in (
                real.encode([part]) if isinstance(part, Marker) else single_bytes(real, str(part))
            )
        ]

    for tokens in (encode(real, text), ids(segments)):
        answer = run(real, tokens)
        assert answer.content == "Run <it>:"
        assert answer.calls == [DONE, ("f", '{"a": "make 2>&1"}')]


def test_t40_calls_that_must_not_be_are_dropped(real: Tokenizer) -> None:
    answer = read(real, "a" + CALL, tools=())
    assert answer.content.rstrip("\n") == "a"
    assert answer.calls == []


def test_t41_an_empty_block_is_no_call(real: Tokenizer) -> None:
    answer = read(real, "a\n\n<｜DSML｜ calls>\n</｜DSML｜ calls>")
    assert (answer.content, answer.calls, answer.parser.num_calls) == ("a", [], 0)


def test_t42_both_spellings_are_read_and_ours_is_written(real: Tokenizer) -> None:
    old = CALL.replace("｜ calls", "｜tool_calls").replace("｜ ", "｜")
    assert "<｜DSML｜tool_calls>" in old
    assert read(real, old).calls == read(real, CALL).calls == [DONE]
    assert spell(invocations([ToolCall("", "f", DONE[1])])) == CALL


def test_t43_a_value_without_its_type_is_told_by_its_form(real: Tokenizer) -> None:
    body = value("3", "i") + value("x y", "s")
    body = body.replace(' string="false"', "")
    assert read(real, block(body)).calls == [("f", '{"i": 3, "s": "x y"}')]


@pytest.mark.parametrize(
    ("body", "arguments"), [('{"a": 1}', '{"a": 1}'), ("3", "{}"), ("x", "{}"), ("", "{}")]
)
def test_t44_t50_a_body_of_another_kind(real: Tokenizer, body: str, arguments: str) -> None:
    assert read(real, block(body)).calls == [("f", arguments)]


def test_t45_calls_inside_the_reasoning_are_calls(real: Tokenizer) -> None:
    answer = read(real, "hm" + CALL, Opening.REASONING)
    assert (answer.reasoning, answer.calls) == ("hm", [DONE])


def test_t46_t47_a_cut_call_is_not_complete(real: Tokenizer) -> None:
    ids = encode(real, CALL + block(string("long " * 5) + "\n" + value("[1, 2]")))
    whole = run(real, ids)
    assert (whole.num_complete, whole.parser.num_calls) == (2, 2)
    for place in range(len(ids)):
        answer = run(real, ids[:place], cut=True)
        assert answer.num_complete == answer.parser.num_calls <= len(answer.calls)
        assert answer.content == "" or not answer.content.strip("\n<")
        if answer.num_complete < len(answer.calls):
            with pytest.raises(ValueError, match=r"."):
                json.loads(answer.calls[-1][1])


def test_t48_t49_indexes_count_up_and_names_come_whole(real: Tokenizer) -> None:
    answer = read(real, CALL + block("", "g") + CALL)
    starts = [p for p in answer.pieces if isinstance(p, CallStart)]
    assert starts == [CallStart(0, "f"), CallStart(1, "g"), CallStart(2, "f")]


def test_t51_a_second_call_is_not_begun(real: Tokenizer) -> None:
    answer = read(real, CALL + CALL, parallel=False)
    assert answer.calls == [DONE]
    assert answer.parser.is_over


def test_t52_calls_without_text(real: Tokenizer) -> None:
    call = ToolCall("c", "f", "{}")
    said = Message(Role.ASSISTANT, "", "", (call,))
    text = spell(render(Chat((USER, said, Message(Role.TOOL, "r", call_id="c")), None)))
    assert "</think>\n\n<｜DSML｜ calls>" in text


def test_t53_results_stand_in_the_order_of_their_calls() -> None:
    calls = (ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}"))
    results = [Message(Role.TOOL, f"r{name}", call_id=name) for name in "21"]
    chat = Chat((USER, Message(Role.ASSISTANT, "", "", calls), *results, USER), None)
    expected = "<tool_result>r1</tool_result>\n\n<tool_result>r2</tool_result>\n\nu<｜Assistant｜>"
    assert expected in spell(render(chat))


@pytest.mark.parametrize("number", ["9007199254740993", "1" * 30, "1.0", "0.10", "-0", "1E5"])
def test_t54_numbers_keep_their_digits(real: Tokenizer, number: str) -> None:
    assert read(real, block(value(number))).calls == [("f", f'{{"n": {number}}}')]


def test_t55_any_text_in_an_argument_comes_back(real: Tokenizer) -> None:
    text = 'a "b"\n\\n </tag> <'
    assert json.loads(read(real, block(string(text))).calls[0][1]) == {"a": text}
    typed = "</｜DSML｜ parameter>"  # with ordinary tokens, as a user's text is encoded
    head, tail = CALL.split(">x<")
    ids = encode(real, head + ">") + real.encode([typed]) + encode(real, "<" + tail)
    assert json.loads(run(real, ids).calls[0][1]) == {"a": typed}


@pytest.mark.parametrize("arguments", ["", "[1]", "nonsense", '{"a":'])
def test_t56_arguments_that_are_no_object_are_kept_as_text(arguments: str) -> None:
    text = spell(invocations([ToolCall("", "f", arguments)]))
    assert f'name="arguments" string="true">{arguments}</' in text


def test_t57_history_renders_to_the_ids_that_were_generated(real: Tokenizer) -> None:
    body = "\n".join((string('x <\n"é'), value('[1, 2.5, {"k": null}]', "n"), value("-3", "m")))
    ids = encode(real, "Let me." + block(body, "g"))
    answer = run(real, ids)
    calls = [ToolCall("", name, arguments) for name, arguments in answer.calls]
    assert real.encode([answer.content, *invocations(calls)]) == ids


def test_t59_missing_parameters_are_an_empty_schema() -> None:
    for tool in (Tool("f"), Tool("f", parameters=None)):
        text = spell(render(Chat((USER,), None, (tool,))))
        assert '{"name": "f", "description": "", "parameters": {}}' in text


# Limits and images


def test_t81_a_prompt_has_one_bos(real: Tokenizer) -> None:
    text = f"{Marker.BOS.value}hello"
    assert real.encode(render(Chat((Message(Role.USER, text),), 75))).count(0) == 1
    assert real.encode(raw(text, real)).count(0) == 1


def test_t99_a_typed_placeholder_is_no_image(real: Tokenizer) -> None:
    message = Message(Role.USER, (Marker.IMAGE.value, Image(1, 1), "<｜image｜>"))
    ids = real.encode(render(Chat((message,), None)))
    assert sum(i >= real.vocab_size for i in ids) == Image(1, 1).num_tokens
    assert real.find(Marker.IMAGE) not in ids


def test_g5_a_beginning_of_a_closing_tag_is_text(real: Tokenizer) -> None:
    assert read(real, "a</thi", Opening.REASONING).reasoning == "a</thi"
    assert read(real, "a</thi").content == "a</thi"
