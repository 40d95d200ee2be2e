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


def tokens_of(parser: Parser, ids: tuple[int, ...]) -> list[tuple[Section, str, tuple[int, ...]]]:
    pieces = [piece for token in ids if not parser.is_over for piece in parser.push(token)]
    pieces += parser.finish(cut=False)
    return [(piece.section, piece.text, piece.tokens) for piece in pieces]


def ids_of(*texts: str | Marker) -> tuple[int, ...]:
    """One token each."""
    found = [TOKENIZER.encode([text]) for text in texts]
    assert [len(ids) for ids in found] == [1] * len(texts), found
    return tuple(token for (token,) in found)


def test_a_piece_names_the_tokens_that_begin_in_it() -> None:
    ids = ids_of("\n", "a", "b", "\n", Marker.END_THINK, "\n", "c", Marker.DSML, "d", Marker.EOS)
    assert tokens_of(Parser(TOKENIZER, thinking=True), ids) == [
        (Section.REASONING, "a", (1,)),
        (Section.REASONING, "b", (2,)),
        (Section.CONTENT, "c", (6,)),
        (Section.CONTENT, "d", (8,)),
    ]


def test_tokens_that_were_held_back_come_with_their_text() -> None:
    ids = ids_of("a", "\n", "\n", "b")
    assert tokens_of(Parser(TOKENIZER, thinking=True), ids) == [
        (Section.REASONING, "a", (0,)),
        (Section.REASONING, "\n\nb", (1, 2, 3)),
    ]
    parser = Parser(TOKENIZER, thinking=False, stops=["\n\nX"])
    assert tokens_of(parser, ids_of("\n", "a", "\n", "\n", "\n", "b")) == [
        (Section.CONTENT, "a", (1,)),
        (Section.CONTENT, "\n", (2,)),
        (Section.CONTENT, "\n\nb", (3, 4, 5)),
    ]


def test_tokens_of_a_stop_string_are_not_told_of() -> None:
    parser = Parser(TOKENIZER, thinking=False, stops=["\nb"])
    assert tokens_of(parser, ids_of("a", "\n", "b", "c")) == [(Section.CONTENT, "a", (0,))]


def test_the_tokens_of_one_character_come_together() -> None:
    ids = TOKENIZER.encode(["🦄x"])
    assert len(ids) > 2
    pieces = tokens_of(Parser(TOKENIZER, thinking=False), ids)
    assert pieces[0] == (Section.CONTENT, "🦄", tuple(range(len(ids) - 1)))


def test_no_stop_string_ends_within_min_tokens() -> None:
    ids = ids_of("a", "b", "a", "c")
    plain = Parser(TOKENIZER, thinking=False, stops=["a"])
    assert tokens_of(plain, ids) == []
    later = Parser(TOKENIZER, thinking=False, stops=["a"], min_tokens=2)
    assert "".join(text for _, text, _ in tokens_of(later, ids)) == "ab"
    assert later.stop == "a"
