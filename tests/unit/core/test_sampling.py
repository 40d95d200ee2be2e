"""Sampling parameters: their limits, and the seeds of further choices."""

import hashlib
from dataclasses import replace

import pytest

from diptych.core.errors import BadRequest
from diptych.core.sampling import Budget, Sampling, choice_seed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("min_p", -0.5),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**64),
        ("stop_token_ids", tuple(range(129))),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("presence_penalty", float("inf")),
        ("min_tokens", -1),
        ("logit_bias", ((1, 100.5),)),
        ("logit_bias", ((1, float("nan")),)),
        ("logit_bias", ((1, 0.0),) * 1025),
        ("bad_words", ((1,), ())),
        ("bad_words", ((1,),) * 2001),
        ("allowed_token_ids", tuple(range(1025))),
    ],
)
def test_a_value_outside_its_limits_is_refused_by_name(field: str, value: object) -> None:
    sampling = replace(Sampling(), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="expected") as caught:
        sampling.check()
    assert caught.value.param == field


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0),
        Sampling(temperature=2, top_p=1e-9, top_k=1, min_p=1, seed=2**64 - 1),
        Sampling(
            logit_bias=((0, -100.0), (1, 100.0)),
            repetition_penalty=2,
            frequency_penalty=-2,
            presence_penalty=2,
            logprobs=20,
        ),
    ],
)
def test_limits_themselves_are_allowed(sampling: Sampling) -> None:
    sampling.check()


def test_more_alternatives_than_are_reported_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        Sampling(logprobs=21).check()
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", ((3, 1.0), (50, 1.0))),
        ("bad_words", ((3,), (4, 50))),
        ("allowed_token_ids", (3, 50)),
    ],
)
def test_a_token_outside_the_vocabulary_is_refused_by_name(field: str, value: object) -> None:
    sampling = replace(Sampling(), **{field: value})  # type: ignore[arg-type]
    sampling.check_ids(51)
    with pytest.raises(BadRequest, match="token 50; expected 0 to 49") as caught:
        sampling.check_ids(50)
    assert caught.value.param == field


def test_temperature_near_zero_is_greedy() -> None:
    assert Sampling(temperature=0.9e-5).is_greedy
    assert not Sampling(temperature=1.1e-5).is_greedy


def test_choice_zero_uses_the_seed_itself() -> None:
    assert choice_seed(7, 0) == 7
    assert choice_seed(-1, 0) == 2**64 - 1


def test_further_choices_hash_seed_and_index() -> None:
    material = (7).to_bytes(8, "little") + (3).to_bytes(4, "little")
    expected = int.from_bytes(hashlib.blake2b(material, digest_size=64).digest()[:8], "little")
    assert choice_seed(7, 3) == expected
    assert len({choice_seed(7, i) for i in range(16)}) == 16


@pytest.mark.parametrize("budget", [Budget(-1, (3,)), Budget(5, ())])
def test_a_budget_that_cannot_end_is_refused(budget: Budget) -> None:
    with pytest.raises(BadRequest, match="expected") as caught:
        Sampling(thinking=budget).check()
    assert caught.value.param == "thinking_token_budget"


def test_a_budget_ends_with_tokens_that_exist() -> None:
    Sampling(thinking=Budget(5, (3, 9))).check_ids(10)
    with pytest.raises(BadRequest) as caught:
        Sampling(thinking=Budget(5, (3, 10))).check_ids(10)
    assert caught.value.param == "thinking_token_budget"


def test_a_budget_is_used_up_once_and_by_the_output_alone() -> None:
    budget = Budget(2, (7, 8))
    prompt = [7, 8, 1]
    outputs: list[list[int]] = [[], [1], [1, 1], [1, 1, 7], [7, 1], [1, 8], [1, 1, 1]]
    found = [budget.forced([*prompt, *output], len(prompt)) for output in outputs]
    assert found == [None, None, 7, None, None, None, None]
