"""Outputs against the parser that DeepSeek published: the same on all that a model should write.

Where damaged or unusual output is concerned we differ on purpose; every such case is a test here,
with what either makes of it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from diptych.text.markers import ROLES, Marker, split
from diptych.text.opening import Opening
from diptych.text.parser import Parser
from diptych.text.pieces import CallArguments, CallStart, Section, Text
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool

MARKERS = {*ROLES, Marker.EOS, Marker.PAD, Marker.THINK, Marker.END_THINK, Marker.DSML}
TOOLS = (Tool("f", "", {"properties": {"input": {}, "arguments": {}}}), Tool("g"))
STAGES = {
    Opening.REASONING: recipe.ThinkingInitialStage.ReasoningStart,
    Opening.MORE_REASONING: recipe.ThinkingInitialStage.ReasoningContinuation,
    Opening.MORE_ANSWER: recipe.ThinkingInitialStage.ContentContinuation,
    Opening.ANSWER: None,
    Opening.CALLS: None,
}

Told = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, calls


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> recipe.Tokenizer:
    return recipe.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


class Theirs:
    """Their parser, and what it told."""

    def __init__(
        self, loaded: recipe.Tokenizer, opening: Opening, stops: Sequence[str], tools: bool
    ) -> None:
        user = recipe.UserMessage("q")
        chat = recipe.Conversation([user], thinking_mode=opening.is_reasoning)
        request = recipe.ConversationRequest(chat, recipe.ModelVersion.DeepseekV41Flash)
        options = recipe.ParsingOptions(
            parse_tool_calls=tools,
            starts_in_tool_calls=opening is Opening.CALLS,
            thinking_initial_stage=STAGES[opening],
            stop_sequences=list(stops),
        )
        chunks = recipe.ChatCompletionRequest.chunk_generator(request, "id", "model")
        self._processor = recipe.StreamProcessor(chunks, options, loaded)
        self.texts = {"reasoning_content": "", "content": ""}
        self.calls: list[list[str]] = []
        self.reasoning_tokens = 0

    def read(self, ids: Sequence[int], *, cut: bool = False) -> Told:
        reasons = recipe.InferenceFinishReason
        reason = reasons.Length if cut else reasons.Stop
        self._push(recipe.InferenceChunk.ready())
        for token_id in ids:
            self._push(recipe.InferenceChunk.tokens([token_id]))
        self._push(recipe.InferenceChunk.finish(reason))
        return self.texts["reasoning_content"], self.texts["content"], [
            (name, arguments) for name, arguments in self.calls
        ]  # fmt: skip

    def _push(self, chunk: recipe.InferenceChunk) -> None:
        if self._processor.finished:
            return
        for told in self._processor.push(chunk):
            body = json.loads(told.to_json())
            for choice in body["choices"]:
                self._take(choice["delta"])
            counts = (body.get("usage") or {}).get("completion_tokens_details") or {}
            self.reasoning_tokens = counts.get("reasoning_tokens", self.reasoning_tokens)

    def _take(self, delta: dict[str, Any]) -> None:
        for field in self.texts:
            self.texts[field] += delta.get(field) or ""
        for call in delta.get("tool_calls") or []:
            if call["index"] == len(self.calls):
                self.calls.append(["", ""])
            self.calls[call["index"]][0] += call["function"].get("name") or ""
            self.calls[call["index"]][1] += call["function"].get("arguments") or ""


def ours(parser: Parser, ids: Sequence[int], *, cut: bool = False) -> Told:
    texts, calls = dict.fromkeys(Section, ""), []
    pieces = [piece for token_id in ids for piece in parser.push(token_id)]
    for piece in pieces + parser.finish(cut=cut):
        match piece:
            case Text(section, text):
                texts[section] += text
            case CallStart(_, name):
                calls.append((name, ""))
            case CallArguments(_, text):
                calls[-1] = calls[-1][0], calls[-1][1] + text
    return texts[Section.REASONING], texts[Section.CONTENT], calls


def parameter(name: str, value: str, string: str | None = "true") -> str:
    said = f' string="{string}"' if string else ""
    return f'<｜DSML｜ parameter name="{name}"{said}>{value}</｜DSML｜ parameter>\n'


def invoke(name: str, *parameters: str) -> str:
    return f'<｜DSML｜ invoke name="{name}">\n{"".join(parameters)}</｜DSML｜ invoke>\n'


def block(*invokes: str) -> str:
    return f"\n\n<｜DSML｜ calls>\n{''.join(invokes)}</｜DSML｜ calls>"


WORDS = st.lists(
    st.sampled_from(["\n", "\n\n", " ", "a", "Wörter", "漢字", "😀", "<", "</", '"', "</thi", "\\"])
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=4),
    max_size=6,
).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
NAMES = st.text("abc_-é", min_size=1, max_size=6)


@st.composite
def calls(draw: st.DrawFn) -> str:
    invokes = []
    for _ in range(draw(st.integers(1, 3))):
        parameters = []
        for name in draw(st.lists(NAMES, max_size=3, unique=True)):
            if draw(st.booleans()):
                parameters.append(parameter(name, draw(WORDS)))
            else:
                value = json.dumps(draw(JSON), ensure_ascii=False)
                parameters.append(parameter(name, value, "false"))
        invokes.append(invoke(draw(st.sampled_from("fg")), *parameters))
    return block(*invokes)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Opening, str, list[str], bool]:
    """What a model should write, and how it is to be read."""
    opening = draw(st.sampled_from([Opening.REASONING, Opening.MORE_REASONING, Opening.ANSWER]))
    has_calls = draw(st.booleans())
    answer = draw(WORDS)
    text = (draw(WORDS) + "</think>" if opening.is_reasoning else "") + answer
    if answer.strip("\n"):
        text += draw(st.sampled_from(["</think>", "<think>", ""])) + draw(WORDS)
    stops = draw(st.lists(st.sampled_from(["a", "漢", "aW", "Wör", "😀"]), max_size=2))
    assume(not re.search("<\n+</think>", text))
    assume(not (has_calls and text.rstrip("\n").endswith("<")))
    return opening, text + (draw(calls()) if has_calls else ""), stops, has_calls


def encode(text: str, real: Tokenizer) -> tuple[int, ...]:
    return real.encode(split(text, MARKERS))


@settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
@given(outputs())
def test_good_outputs_are_read_as_they_read_them(
    theirs: recipe.Tokenizer, real: Tokenizer, output: tuple[Opening, str, list[str], bool]
) -> None:
    opening, text, stops, has_calls = output
    ids = encode(text, real)
    their = Theirs(theirs, opening, stops, has_calls)
    parser = Parser(real, opening, tools=TOOLS if has_calls else (), stops=stops)
    told = ours(parser, ids)
    assert told == their.read(ids)
    # They count a token with lines in it twice, and of blank reasoning not every token.
    counts_once = not any(re.search(b"\n[^\n]+\n", real.token_bytes(i)) for i in ids)
    if opening.is_reasoning and counts_once and told[0].strip():
        assert parser.reasoning_tokens == their.reasoning_tokens


CALL = invoke("f", parameter("a", "x"))
DONE = ("f", '{"a": "x"}')
START = '<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">x'

DEVIATIONS: dict[str, tuple[str, Told, Told]] = {
    "reasoning that opens itself": ("<think>r</think>a", ("r", "a", []), ("<think>r", "a", [])),
    "an answer that ends no reasoning": (
        "</think></think>\n\na",
        ("", "a", []),
        ("", "\n\na", []),
    ),
    "newlines after a bracket": (
        "</think>a<" + block(CALL),
        ("", "a<", [DONE]),
        ("", "a<\n", [DONE]),
    ),
    "a second block": (
        "</think>" + block(CALL) + block(CALL),
        ("", "", [DONE, DONE]),
        ("", "", [DONE]),
    ),
    "a value in another spelling": (
        "</think>" + block(invoke("f", parameter("n", ' {"a":1.0,"b":[]} ', "false"))),
        ("", "", [("f", '{"n": {"a": 1.0, "b": []}}')]),
        ("", "", [("f", '{"n":  {"a":1.0,"b":[]} }')]),
    ),
    "a value that is no JSON": (
        "</think>" + block(invoke("f", parameter("n", "x", "false"))),
        ("", "", [("f", '{"n": "x"}')]),
        ("", "", [("f", '{"n": x}')]),
    ),
    "a value of unsaid type": (
        "</think>" + block(invoke("f", parameter("n", "3", None), parameter("s", "x y", None))),
        ("", "", [("f", '{"n": 3, "s": "x y"}')]),
        ("", "", [("f", '{"n">3</｜DSML｜: ')]),
    ),
    "a repeated parameter": (
        "</think>" + block(invoke("f", parameter("a", "x"), parameter("a", "y"))),
        ("", "", [DONE]),
        ("", "", [("f", '{"a": "x", "a": "y"}')]),
    ),
    "a quote in a parameter's name": (
        "</think>" + block(invoke("f", parameter('a"b', "x"))),
        ("", "", [("f", '{"a\\"b": "x"}')]),
        ("", "", [("f", '{"a"b": "x"}')]),
    ),
    "a body of JSON": (
        "</think>" + block(invoke("f", '{"a":"x"}\n')),
        ("", "", [DONE]),
        ("", "", [("f", "{}")]),
    ),
    "arguments in one parameter": (
        "</think>" + block(invoke("g", parameter("arguments", '{"a":1}'))),
        ("", "", [("g", '{"a": 1}')]),
        ("", "", [("g", '{"arguments": "{\\"a\\":1}"}')]),
    ),
    "a parameter inside a parameter": (
        "</think>" + block(invoke("f", parameter("a", f"x{parameter('b', 'y')}"))),
        ("", "", [("f", '{"a": "x", "b": "y"}')]),
        ("", "", [("f", '{"a": "x<｜DSML｜ parameter name=\\"b\\" string=\\"true\\">y"}')]),
    ),
    "a call without its end": ("</think>" + START, ("", "", [DONE]), ("", "", [("f", '{"a": "x')])),
    "unknown markup": ("</think>a <｜DSML｜ b>c", ("", "a c", []), ("", "a ", [])),
    "markup that closes nothing": (
        "</think>a</｜DSML｜ calls>b",
        ("", "ab", []),
        ("", "a</｜DSML｜ calls>b", []),
    ),
    "a lone marker": ("</think>a｜DSML｜b", ("", "ab", []), ("", "a｜DSML｜b", [])),
    "the user's turn": ("</think>a<｜User｜>b", ("", "a", []), ("", "a<｜User｜>b", [])),
}  # fmt: skip


@pytest.mark.parametrize(("text", "we", "they"), DEVIATIONS.values(), ids=DEVIATIONS.keys())
def test_we_differ_on_purpose(
    theirs: recipe.Tokenizer, real: Tokenizer, text: str, we: Told, they: Told
) -> None:
    ids = encode(text, real)
    assert ours(Parser(real, Opening.REASONING, tools=TOOLS), ids) == we
    assert Theirs(theirs, Opening.REASONING, (), True).read(ids) == they


def test_we_drop_calls_that_nobody_asked_for(theirs: recipe.Tokenizer, real: Tokenizer) -> None:
    ids = encode("a" + block(CALL), real)
    assert ours(Parser(real, Opening.ANSWER), ids) == ("", "a\n\n", [])
    shown = ("", "a" + block(CALL), [])
    assert Theirs(theirs, Opening.ANSWER, (), False).read(ids) == shown


def test_newlines_of_markup_stop_no_answer_of_ours(
    theirs: recipe.Tokenizer, real: Tokenizer
) -> None:
    ids = encode("a" + block(CALL), real)
    parser = Parser(real, Opening.ANSWER, tools=TOOLS, stops=["\n\n"])
    assert ours(parser, ids) == ("", "a", [DONE])
    assert Theirs(theirs, Opening.ANSWER, ["\n\n"], True).read(ids) == ("", "a", [])


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(calls(), st.integers(0, 200))
def test_a_call_cut_by_length_is_cut_where_they_cut_it_but_for_the_last_tag(
    theirs: recipe.Tokenizer, real: Tokenizer, text: str, place: int
) -> None:
    ids = encode(text.removeprefix("\n\n<｜DSML｜ calls>\n"), real)[:place]
    parser = Parser(real, Opening.CALLS, tools=TOOLS)
    they = Theirs(theirs, Opening.CALLS, (), True)
    reasoning, content, told = ours(parser, ids, cut=True)
    assert (reasoning, content) == they.read(ids, cut=True)[:2]
    for (name, arguments), (their_name, their_arguments) in zip(told, they.calls, strict=True):
        assert name == their_name
        assert their_arguments.startswith(arguments)
        rest = their_arguments.removeprefix(arguments)
        assert re.fullmatch(r'"?(\{?\}|(\{|, )?("[^"]*"?(: "?)?)?)', rest)
