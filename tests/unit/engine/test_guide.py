"""A guide follows its request's tokens, however they come."""

from collections.abc import Sequence

import numpy as np
import pytest

from diptych.core.errors import BadRequest, Broken
from diptych.core.sampling import Sampling
from diptych.engine.guide import Guide
from diptych.engine.outcome import Scored
from diptych.engine.requests import Request
from diptych.engine.sampler import Sampler

from .conftest import make_generation


class CountUp:
    """A grammar of 2, 3, 4, … up to 7, and then the end (1)."""

    def __init__(self) -> None:
        self.next = 2
        self.accepted: list[int] = []

    def accept(self, token: int) -> bool:
        if token != self.next:
            return False
        self.accepted.append(token)
        self.next = token + 1 if token < 7 else 1
        return True

    def fill(self, masks: np.ndarray, row: int) -> None:
        masks[row] = 0
        masks[row, 0] = 1 << self.next


def allowed(guide: Guide, tokens: Sequence[int]) -> list[int]:
    return np.flatnonzero(guide.allowed(tokens)).tolist()


def make_guide(prompt_len: int = 2) -> tuple[Guide, CountUp]:
    matcher = CountUp()
    return Guide(matcher, 2, prompt_len), matcher  # type: ignore[arg-type]


def test_it_takes_in_what_it_has_not_seen_and_nothing_twice() -> None:
    guide, matcher = make_guide()
    prompt = [50, 51]
    assert allowed(guide, prompt) == [2]
    assert allowed(guide, prompt) == [2]
    assert allowed(guide, [*prompt, 2, 3, 4]) == [5]
    assert allowed(guide, [*prompt, 2, 3, 4, 5]) == [6]
    assert matcher.accepted == [2, 3, 4, 5]


def test_a_token_that_the_grammar_does_not_allow_is_named_with_its_place() -> None:
    guide, _ = make_guide()
    with pytest.raises(Broken, match="does not allow token 9 at position 3"):
        guide.allowed([50, 51, 2, 9])


def guided(how: Sampling) -> Request:
    generation = make_generation(prompt=(50, 51), sampling=how)
    request = Request(generation, False, False, 64, list(generation.prompt))
    request.guide, _ = make_guide()
    return request


def test_only_what_the_grammar_allows_is_sampled_to_the_end() -> None:
    request, sampler = guided(Sampling(seed=3, logprobs=1)), Sampler(eos_token_id=1)
    logits = np.random.default_rng(0).normal(size=40)
    while request.tokens[-1] != 1:
        outcome = sampler.outcome(logits, request)
        assert isinstance(outcome, Scored)
        assert outcome.logprob.top[0][0] == int(np.argmax(logits))  # as if there were no grammar
        request.tokens.append(outcome.token)
    assert request.tokens[2:] == [2, 3, 4, 5, 6, 7, 1]


def test_a_grammar_that_leaves_nothing_fails_its_row_alone() -> None:
    request = guided(Sampling(bad_words=((2,),)))
    outcome = Sampler(eos_token_id=1).outcome(np.zeros(40), request)
    assert isinstance(outcome, BadRequest) and "no token is allowed" in outcome.message
