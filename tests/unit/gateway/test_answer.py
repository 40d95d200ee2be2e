"""One choice, whatever the steps."""

import itertools
from pathlib import Path

import pytest

from diptych.core.phases import Finish
from diptych.core.step import Logprob
from diptych.gateway.answer import Answer
from diptych.gateway.events import Emit, End
from diptych.text import tokenizer
from diptych.text.markers import Marker
from diptych.text.opening import Opening
from diptych.text.parser import Parser
from diptych.text.pieces import Section, Text
from diptych.text.tools import Tool

TOKENIZER = tokenizer.load(Path(__file__).parents[2] / "golden" / "tiny-text")
IDS = TOKENIZER.encode(["\nHm é.\n", Marker.END_THINK, "\n漢 one STOP two"])


def read(
    ids: tuple[int, ...], cuts: tuple[int, ...], stop: str, *, withholds: bool = False
) -> tuple[object, ...]:
    parser = Parser(TOKENIZER, Opening.REASONING, stops=[stop])
    answer = Answer(0, parser, withholds=withholds)
    text = dict.fromkeys(Section, "")
    for start, end in itertools.pairwise((0, *cuts, len(ids))):
        pieces = answer.push(Emit(ids[start:end]))
        assert len({piece.section for piece in pieces}) == len(pieces)
        for piece in pieces:
            text[piece.section] += piece.text
    ended = None if answer.is_over else End(Finish.LENGTH)
    for piece in answer.finish(ended, 0):
        text[piece.section] += piece.text
    counts = len(answer.token_ids), answer.reasoning_tokens
    return text, counts, answer.finish_reason, answer.stop_reason


@pytest.mark.parametrize("stop", ["STOP", "absent", "one ST"])
def test_any_grouping_into_steps_gives_the_same_answer(stop: str) -> None:
    whole = read(IDS, (), stop)
    places = range(1, len(IDS))
    for cuts in itertools.chain.from_iterable(itertools.combinations(places, n) for n in (1, 2)):
        assert read(IDS, cuts, stop) == read(IDS, cuts, stop, withholds=True) == whole
    assert read(IDS, tuple(places), stop) == whole


def test_withheld_reasoning_comes_at_once_with_its_end() -> None:
    answer = Answer(0, Parser(TOKENIZER, Opening.REASONING), withholds=True)
    steps = [answer.push(Emit((token_id,))) for token_id in IDS]
    end = IDS.index(TOKENIZER.find(Marker.END_THINK) or 0)
    assert not any(steps[:end])
    assert steps[end] == [Text(Section.REASONING, "Hm é.")]
    assert all(piece.section is Section.CONTENT for step in steps[end + 1 :] for piece in step)
    cut = Answer(0, Parser(TOKENIZER, Opening.REASONING), withholds=True)
    assert cut.push(Emit(IDS[:3])) == []
    assert [piece.section for piece in cut.finish(End(Finish.LENGTH), 0)] == [Section.REASONING]


def test_the_finish_tells_what_came_first() -> None:
    assert read(IDS, (), "STOP")[2:] == ("stop", "STOP")
    assert read(IDS, (), "absent")[2:] == ("length", None)
    over = (*IDS[:3], TOKENIZER.find(Marker.USER) or 0, *IDS[3:])
    assert read(over, (), "STOP")[1:] == ((4, 2), "stop", None)


@pytest.mark.parametrize("ends", [[], ["b"]])
def test_tokens_after_a_stop_string_that_was_held_are_not_counted(ends: list[str]) -> None:
    tools = (Tool("f", "", {}),)  # newlines wait: they may open a call
    answer = Answer(0, Parser(TOKENIZER, Opening.ANSWER, tools=tools, stops=["\n"]))
    ids = tuple(i for text in ["a", "\n", "\n", *ends] for i in TOKENIZER.encode([text]))
    pieces = answer.push(Emit(ids, logprobs=tuple(Logprob(0.0, 1) for _ in ids)))
    pieces += answer.finish(None if ends else End(Finish.LENGTH), 0)
    assert [piece.text for piece in pieces if isinstance(piece, Text)] == ["a"]
    assert (answer.token_ids, len(answer.logprobs)) == (list(ids[:2]), 2)
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "\n")


def test_an_answer_for_its_prompt_alone_shows_and_counts_nothing_sampled() -> None:
    answer = Answer(0, Parser(TOKENIZER, Opening.PLAIN), is_scored_only=True)
    scores = (Logprob(-1.0, 1),)
    assert answer.push(Emit(IDS[:1], logprobs=scores, prompt_logprobs=scores)) == []
    assert answer.finish(End(Finish.STOP), 3) == []
    assert (answer.token_ids, answer.logprobs, answer.prompt_logprobs) == ([], [], scores)
    assert (answer.finish_reason, answer.stop_reason, answer.cached_tokens) == ("length", None, 3)
