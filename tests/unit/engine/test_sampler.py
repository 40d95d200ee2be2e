"""The sampler against its definition: scalar, in float64, one token after the other."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diptych.core.errors import BadRequest, Broken
from diptych.core.sampling import Budget, Sampling
from diptych.engine import sampler as sampling_module
from diptych.engine.outcome import Scored
from diptych.engine.requests import Request
from diptych.engine.sampler import Sampler, draw

from .conftest import make_generation
from .test_philox import philox_by_hand
from .test_support import support_by_hand

EOS = 1
GREEDY = Sampling(temperature=0)


def make_request(
    how: Sampling, prompt: Sequence[int] = (2,), output: Sequence[int] = ()
) -> Request:
    generation = make_generation(prompt=tuple(prompt), sampling=how, max_new=1000)
    return Request(generation, False, False, 1000, [*prompt, *output])


def sample(logits: Sequence[float], how: Sampling, *, output: Sequence[int] = ()) -> int:
    return Sampler(EOS).sample(np.array(logits, float), make_request(how, output=output))


def adjusted_by_hand(
    logits: list[float], how: Sampling, prompt: list[int], output: list[int], never: set[int]
) -> list[float]:
    """Steps 1 and 2 of the pipeline, by its definition."""
    result = []
    bias = dict(how.logit_bias)
    for token, logit in enumerate(logits):
        z = logit + bias.get(token, 0.0)
        if token in prompt or token in output:
            z = z / how.repetition_penalty if z > 0 else z * how.repetition_penalty
            z = min(max(z, -1e30), 1e30)
        count = output.count(token)
        z -= how.frequency_penalty * count + how.presence_penalty * (count > 0)
        is_end = token == EOS or token in how.stop_token_ids
        is_banned = (
            token in never
            or (how.allowed_token_ids and token not in how.allowed_token_ids)
            or (is_end and len(output) < how.min_tokens)
            or any(
                word[-1] == token and [*word[:-1]] == output[len(output) - len(word) + 1 :]
                for word in how.bad_words
                if len(word) <= len(output) + 1
            )
        )
        result.append(-math.inf if is_banned else z)
    return result


def draw_by_hand(z: list[float], how: Sampling, position: int) -> int:
    if how.is_greedy:
        return max(range(len(z)), key=lambda token: (z[token], -token))
    key = [how.seed % 2**32, how.seed >> 32]

    def score(token: int) -> float:
        h = philox_by_hand([position, token, 0, 0], key)[0]
        return z[token] / how.temperature - math.log(-math.log((h + 0.5) / 2**32))

    return max(support_by_hand(z, how), key=lambda token: (score(token), -token))


def random_logits(rng: random.Random) -> list[float]:
    size = rng.choice([1, 2, 7, 40])
    if rng.random() < 0.3:  # many ties
        return [float(rng.randrange(3)) for _ in range(size)]
    return [rng.gauss(0, rng.choice([0.1, 3, 30])) for _ in range(size)]


def random_draw(rng: random.Random) -> Sampling:
    return Sampling(
        temperature=rng.choice([0.0, 0.3, 1.0, 2.0]),
        top_p=rng.choice([1.0, 0.999, 0.9, 0.5, 0.01]),
        top_k=rng.choice([0, 0, 1, 3, 30, 100]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.4, 1.0]),
        seed=rng.getrandbits(64),
    )


def random_wishes(rng: random.Random, size: int) -> Sampling:
    """Everything, each with even odds."""

    def tokens(most: int) -> tuple[int, ...]:
        chosen = rng.sample(range(size), rng.randrange(min(size, most) + 1))
        return tuple(chosen) if rng.random() < 0.5 else ()

    words = [tuple(rng.randrange(size) for _ in range(rng.randint(1, 3))) for _ in range(8)]
    return replace(
        random_draw(rng),
        logit_bias=tuple((token, rng.uniform(-5, 5)) for token in tokens(4)),
        repetition_penalty=rng.choice([1.0, 1.0, 0.5, 1.3, 2.0]),
        frequency_penalty=rng.choice([0.0, 0.0, -2.0, 0.7]),
        presence_penalty=rng.choice([0.0, 0.0, 2.0, -0.3]),
        min_tokens=rng.choice([0, 3]),
        stop_token_ids=tokens(2),
        bad_words=tuple(words[: rng.choice([0, 0, 8])]),
        allowed_token_ids=tokens(20),
    )


def test_a_draw_equals_that_of_a_scalar_reference(rng: random.Random) -> None:
    for _ in range(1500):
        logits, how, position = random_logits(rng), random_draw(rng), rng.randrange(5000)
        assert draw(np.array(logits), how, position) == draw_by_hand(logits, how, position)


def test_all_parameters_together_equal_a_scalar_reference(rng: random.Random) -> None:
    failed = 0
    for _ in range(1500):
        logits = random_logits(rng)
        size = len(logits)
        how = random_wishes(rng, size)
        prompt = [rng.randrange(size) for _ in range(rng.randint(1, 5))]
        output = [rng.randrange(size) for _ in range(rng.randrange(6))]
        never = {token for token in range(size) if rng.random() < 0.1}
        sampler = Sampler(min(EOS, size - 1), never)
        z = adjusted_by_hand(logits, how, prompt, output, never)
        found = sampler.outcome(np.array(logits), make_request(how, prompt, output))
        if size < 2:  # has no end-of-sequence token of its own
            continue
        if max(z) == -math.inf:
            failed += 1
            assert isinstance(found, BadRequest), (how, z)
        else:
            assert found == draw_by_hand(z, how, len(prompt) + len(output))
    assert failed > 10


def test_a_token_does_not_depend_on_what_the_request_was_asked_before(rng: random.Random) -> None:
    """History is kept between tokens; a request that starts with all of them gets the same."""
    how = Sampling(seed=4, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2)
    sampler, size = Sampler(EOS), 30
    grown = make_request(how, [3, 3, 4])
    for _ in range(60):
        logits = np.array([rng.gauss(0, 1) for _ in range(size)])
        fresh = make_request(how, [3, 3, 4], grown.tokens[3:])
        token = sampler.sample(logits, grown)
        assert token == sampler.sample(logits, fresh)
        grown.tokens.append(token)


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert sample([1.0, 5.0, 5.0], GREEDY) == 1


def test_bias_comes_before_penalties() -> None:
    how = replace(GREEDY, logit_bias=((3, 2.0),), repetition_penalty=2.0)
    assert sample([0, 0, 0, 1.0, 1.4], how, output=[3]) == 3  # (1 + 2) / 2 = 1.5
    assert sample([0, 0, 0, 1.0, 1.6], how, output=[3]) == 4


def test_penalties_count_the_output_and_repetition_the_prompt_as_well() -> None:
    logits = [0, 0, 1.0, 0.9, 0]
    assert sample(logits, replace(GREEDY, frequency_penalty=2)) == 2  # 2 is the prompt
    assert sample(logits, replace(GREEDY, repetition_penalty=2)) == 3
    often = [0, 0, 0, 3.0, 1.5]
    assert sample(often, replace(GREEDY, frequency_penalty=1), output=[3]) == 3
    assert sample(often, replace(GREEDY, frequency_penalty=1), output=[3, 3]) == 4
    assert sample(often, replace(GREEDY, presence_penalty=1), output=[3, 3, 3]) == 3


@pytest.mark.parametrize("repetition", [5e-324, 1e-300, 1e-9, 2.0])
@pytest.mark.parametrize("temperature", [0.0, 2e-5, 2.0])
def test_the_most_extreme_penalties_still_give_a_token(
    repetition: float, temperature: float
) -> None:
    how = Sampling(
        temperature,
        0.9,
        seed=1,
        repetition_penalty=repetition,
        frequency_penalty=-2.0,
        presence_penalty=-2.0,
        logit_bias=((2, 100.0), (3, -100.0)),
    )
    how.check()
    for output in ([], [2], [2] * 5000, [2, 3]):
        token = sample([0.5, -3e4, 30.0, -30.0, 1e-9], how, output=output)
        assert token == 2


def test_ids_that_are_never_said_are_not_sampled_whatever_a_request_wants() -> None:
    request = make_request(replace(GREEDY, logit_bias=((4, 100.0),), allowed_token_ids=(3, 4)))
    assert Sampler(EOS, {4, 5}).sample(np.array([0, 0, 0, 1.0, 2.0, 9.0]), request) == 3


def test_the_end_is_out_of_reach_before_min_tokens() -> None:
    how = replace(GREEDY, min_tokens=2, stop_token_ids=(3,))
    logits = [0, 9.0, 1.0, 8.0]
    assert [sample(logits, how, output=[0] * n) for n in range(4)] == [2, 2, 1, 1]


def test_a_bad_word_is_cut_before_its_last_token() -> None:
    how = replace(GREEDY, bad_words=((3, 4), (5,)))
    logits = [0, 0, 0, 1.0, 2.0, 3.0]
    assert sample(logits, how) == 4
    assert sample(logits, how, output=[3]) == 3
    assert sample(logits, how, output=[3, 0]) == 4
    assert Sampler(EOS).sample(np.array(logits), make_request(how, prompt=[3])) == 4


def test_reasoning_ends_when_its_budget_is_used_up_whatever_else_is_asked() -> None:
    how = replace(
        GREEDY,
        thinking=Budget(2, (4, 5)),
        logit_bias=((4, -100.0),),
        bad_words=((4,),),
        allowed_token_ids=(3,),
    )
    logits = [0, 0, 0, 1.0, 0, 0]
    outputs = [[], [3], [3, 3], [3, 3, 4], [3, 4], [5, 3], [3, 3, 3]]
    found = [sample(logits, how, output=output) for output in outputs]
    assert found == [3, 3, 4, 3, 3, 3, 3]


def test_no_budget_is_no_reasoning_and_what_the_prompt_holds_does_not_end_it() -> None:
    how = replace(GREEDY, thinking=Budget(0, (4,)))
    request = make_request(how, prompt=[4, 2])
    assert Sampler(EOS).sample(np.array([0, 0, 9.0, 0, 0]), request) == 4


def test_a_row_without_any_token_left_fails_alone() -> None:
    request = make_request(replace(GREEDY, allowed_token_ids=(1,), min_tokens=5))
    found = Sampler(EOS).outcome(np.zeros(5), request)
    assert isinstance(found, BadRequest)
    assert found.code == "conflicting_parameters"
    assert found.message.startswith("no token is allowed at position 1: ")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_end_their_row_with_a_message(bad: float) -> None:
    found = Sampler(EOS).outcome(np.array([0.0, bad]), make_request(Sampling(), prompt=[0] * 12))
    assert isinstance(found, Broken)
    assert found.message == "the logits at position 12 are not finite"


def test_log_probabilities_come_with_the_token_and_before_all_wishes() -> None:
    logits = [1.0, 3.0, 2.0, 2.0, 5.0]
    how = replace(GREEDY, logprobs=3, logit_bias=((2, 100.0),))
    found = Sampler(EOS, {4}).outcome(np.array(logits), make_request(how))
    total = math.log(sum(math.exp(logit) for logit in logits))
    assert isinstance(found, Scored)
    assert (found.token, found.logprob.rank) == (2, 2)
    assert found.logprob.value == pytest.approx(2 - total, abs=1e-12)
    assert [token for token, _ in found.logprob.top] == [1, 2, 3]
    assert found.logprob.top[0][1] == pytest.approx(3 - total, abs=1e-12)


def test_draws_follow_the_softmax() -> None:
    z = np.array([0.0, 1.0, 2.0, -1.0])
    draws = [draw(z, Sampling(seed=3), position) for position in range(6_000)]
    counts = np.bincount(draws, minlength=4)
    expected = np.exp(z) / np.exp(z).sum() * len(draws)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees, one in a thousand


def test_tokens_that_cannot_win_are_left_out_without_changing_the_winner() -> None:
    spread = np.random.default_rng(1).normal(scale=12, size=3000)
    for position in range(40):
        how = Sampling(seed=position)
        assert draw(spread, how, position) == draw_by_hand(spread.tolist(), how, position)


def test_the_largest_noise_is_the_bound_by_which_tokens_are_left_out() -> None:
    u = (2**32 - 1 + 0.5) / 2**32
    assert -math.log(-math.log(u)) <= sampling_module.MOST_NOISE < 22.874


def test_the_same_seed_and_position_repeat_and_others_differ() -> None:
    z = np.zeros(500)
    assert draw(z, Sampling(seed=1), 4) == draw(z, Sampling(seed=1), 4)
    assert len({draw(z, Sampling(seed=1), position) for position in range(20)}) > 15
    assert len({draw(z, Sampling(seed=seed), 4) for seed in range(20)}) > 15


def test_a_token_does_not_depend_on_the_precision_that_carries_the_logits() -> None:
    logits = np.random.default_rng(0).normal(size=300).astype(np.float32)
    for seed in range(50):
        request = make_request(Sampling(top_p=0.9, seed=seed))
        wide = Sampler(EOS).sample(logits.astype(np.float64), request)
        assert Sampler(EOS).sample(logits, request) == wide
