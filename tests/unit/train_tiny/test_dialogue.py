"""What the model learns from is what the gateway sends, and only the answers count in full."""

import random

import pytest
from train_tiny.dialogue import answer_of, document, prompt_of
from train_tiny.sources import calls, objects, recall, sums, talk

from diptych.text.markers import Marker
from diptych.text.opening import opening_of
from diptych.text.parser import Parser
from diptych.text.pieces import CallArguments, CallStart
from diptych.text.tokenizer import Tokenizer

FILLER = ["The sea is wide.", "Nobody counted the stones.", "It rained all day."]
SOURCES = {
    "talk": talk.draw,
    "story": talk.story,
    "sums": sums.draw,
    "recall": lambda rng: recall.draw(rng, FILLER),
    "echo": lambda rng: recall.echo(rng, FILLER),
    "objects": objects.draw,
    "calls": calls.draw,
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_last_answer_is_learnt_to_its_end_and_no_prompt_is(
    source: str, tokenizer: Tokenizer, rng: random.Random
) -> None:
    for _ in range(20):
        dialogue = SOURCES[source](rng)
        made = document(dialogue, tokenizer)
        prompt = tokenizer.encode(prompt_of(dialogue))
        answer = tokenizer.encode(answer_of(dialogue))
        assert tuple(made.ids) == prompt + answer
        assert made.learn[len(prompt) :].all()
        assert answer[-1] == tokenizer.find(Marker.EOS)
        ends = (made.ids == tokenizer.find(Marker.EOS)).sum()
        assert made.learn[made.ids == tokenizer.find(Marker.USER)].sum() == 0
        assert ends == (made.ids == tokenizer.find(Marker.ASSISTANT)).sum()


def test_calls_to_learn_from_are_read_back_by_the_parser(
    tokenizer: Tokenizer, rng: random.Random
) -> None:
    found = 0
    for _ in range(60):
        dialogue = calls.draw(rng)
        wanted = dialogue.messages[-1].calls
        parser = Parser(tokenizer, opening_of(prompt_of(dialogue)), tools=dialogue.tools)
        ids = tokenizer.encode(answer_of(dialogue))
        pieces = [p for token in ids for p in parser.push(token)] + parser.finish(cut=False)
        assert [p.name for p in pieces if isinstance(p, CallStart)] == [c.name for c in wanted]
        said = "".join(p.text for p in pieces if isinstance(p, CallArguments))
        assert said == "".join(c.arguments for c in wanted)
        found += len(wanted)
    assert found > 5


def test_sums_of_the_examination_are_never_trained_on(rng: random.Random) -> None:
    held_out = sum(sums.is_held_out(a, b) for a in range(100) for b in range(100))
    assert 400 < held_out < 600
    for _ in range(300):
        for turn in sums.draw(rng).messages:
            assert isinstance(turn.content, str)
            if turn.content.count("+") == 1 and "=" in turn.content and "?" not in turn.content:
                left, right = turn.content.split("=")[0].split("+")
                assert not sums.is_held_out(int(left.split()[-1]), int(right))
