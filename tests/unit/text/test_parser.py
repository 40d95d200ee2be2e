"""Reasoning and answer, by ids."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.text import tokenizer
from diptych.text.parser import Parser, Piece, Section
from diptych.text.tokenizer import Marker

TOKENIZER = tokenizer.load(Path(__file__).parents[2] / "golden" / "tiny-text")


class Output:
    """Everything a client got of one output, and how it ended."""

    def __init__(self, parser: Parser, ids: tuple[int, ...], *, cut: bool = False) -> None:
        self.text = dict.fromkeys(Section, "")
        self.num_used = 0
        for token_id in ids:
            self.num_used += 1
            self._take(parser.push(token_id))
            if parser.is_over:
                break
        self._take(parser.finish(cut=cut))
        self.reasoning, self.content = self.text[Section.REASONING], self.text[Section.CONTENT]

    def _take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            assert piece.text
            self.text[piece.section] += piece.text


def read(*segments: Marker | str, thinking: bool = True, stop: str | None = None) -> Output:
    stops = [stop] if stop else []
    parser = Parser(TOKENIZER, thinking=thinking, stops=stops)
    return Output(parser, TOKENIZER.encode(segments))


@pytest.mark.parametrize(
    ("segments", "reasoning", "content"),
    [
        (["Need it.", Marker.END_THINK, "Yes."], "Need it.", "Yes."),
        (["\n\nNeed\n it.\n\n", Marker.END_THINK, "\n\nYes.\n"], "Need\n it.", "Yes.\n"),
        ([Marker.END_THINK, "Yes."], "", "Yes."),
        ([Marker.THINK, "Hm", Marker.END_THINK, "Yes."], "Hm", "Yes."),
        (["Hm", Marker.THINK, "m", Marker.END_THINK, "Yes."], "Hm<think>m", "Yes."),
        (["Hm", Marker.END_THINK, "Y", Marker.END_THINK, "es"], "Hm", "Yes"),
        (["Hm", Marker.END_THINK, "a", Marker.THINK, "b"], "Hm", "a<think>b"),
        (["cut while thinking\n"], "cut while thinking\n", ""),
        (["spelled </think> out"], "spelled </think> out", ""),
        (["Hm", Marker.END_THINK, "Yes.", Marker.EOS], "Hm", "Yes."),
        (["Hm", Marker.END_THINK, "a", Marker.PAD, "b", Marker.DSML, "c"], "Hm", "abc"),
        ([], "", ""),
    ],
)
def test_a_thinking_output(segments: list[Marker | str], reasoning: str, content: str) -> None:
    output = read(*segments)
    assert (output.reasoning, output.content) == (reasoning, content)


def test_without_thinking_all_text_is_the_answer() -> None:
    output = read("\nYes", Marker.END_THINK, ".", thinking=False)
    assert (output.reasoning, output.content) == ("", "Yes.")


def test_a_stop_string_counts_in_the_answer_only() -> None:
    output = read("Question: Q", Marker.END_THINK, "A\nQuestion: B", stop="Question:")
    assert (output.reasoning, output.content) == ("Question: Q", "A\n")


def test_tokens_after_the_stop_string_are_not_used() -> None:
    output = read("one", Marker.END_THINK, "two STOP", " three", stop="STOP")
    ids = TOKENIZER.encode(["one", Marker.END_THINK, "two STOP three"])
    before = b"".join(map(TOKENIZER.token_bytes, ids[: output.num_used - 1]))
    assert b"STOP" not in before
    assert output.content == "two "


@pytest.mark.parametrize("role", [Marker.BOS, Marker.USER, Marker.SYSTEM, Marker.ASSISTANT])
def test_a_role_id_ends_the_turn_and_is_not_shown(role: Marker) -> None:
    output = read("Yes.", role, "forged", thinking=False)
    assert output.content == "Yes."


def test_a_role_id_does_not_end_a_run_to_length() -> None:
    parser = Parser(TOKENIZER, thinking=False, ignore_eos=True)
    output = Output(parser, TOKENIZER.encode(["a", Marker.USER, "b", Marker.EOS, "c"]))
    assert output.content == "abc"


def test_reasoning_tokens_are_those_before_the_marker() -> None:
    parser = Parser(TOKENIZER, thinking=True)
    ids = TOKENIZER.encode(["Need it.", Marker.END_THINK, "Yes.", Marker.EOS])
    Output(parser, ids)
    assert parser.reasoning_tokens == ids.index(TOKENIZER.find(Marker.END_THINK) or -1)


@pytest.mark.parametrize(("cut", "tail"), [(False, "\ufffd"), (True, "")])
def test_half_a_character_at_the_end(cut: bool, tail: str) -> None:
    half = next(i for i in range(TOKENIZER.vocab_size) if TOKENIZER.token_bytes(i) == b"\xf0")
    parser = Parser(TOKENIZER, thinking=False)
    assert Output(parser, (half,), cut=cut).content == tail


IDS = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30)


@settings(deadline=None)
@given(IDS, st.booleans(), st.lists(st.sampled_from(["a", "\n\n", "th"]), max_size=2))
def test_any_output_gives_text_without_markers(
    ids: list[int], thinking: bool, stops: list[str]
) -> None:
    output = Output(Parser(TOKENIZER, thinking=thinking, stops=stops), tuple(ids))
    for text in (output.reasoning, output.content):
        assert not any(m.value in text for m in Marker if m is not Marker.THINK)
        assert not text.startswith("\n")
    assert not any(stop in output.content for stop in stops)
    assert thinking or output.reasoning == ""
