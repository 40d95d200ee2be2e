"""Log-probabilities of logits as they came."""

import math
import random

import numpy as np
import pytest

from diptych.engine.logprobs import best_of, logprob

NOBODY = np.empty(0, np.int64)


def test_values_ranks_and_the_best_equal_a_scalar_reference(rng: random.Random) -> None:
    for _ in range(300):
        size = rng.choice([1, 2, 9, 60])
        logits = [rng.gauss(0, 4) for _ in range(size)]
        if rng.random() < 0.4:
            logits = [float(rng.randrange(3)) for _ in range(size)]
        token, num_top = rng.randrange(size), rng.choice([0, 1, 5, 20])
        found = logprob(np.array(logits, np.float32), token, num_top, NOBODY)
        z = [float(np.float32(value)) for value in logits]
        total = math.log(math.fsum(math.exp(value) for value in z))
        order = sorted(range(size), key=lambda t: (-z[t], t))
        assert found.value == pytest.approx(z[token] - total, abs=1e-9)
        assert found.rank == 1 + order.index(token)
        assert [best for best, _ in found.top] == order[:num_top]
        for best, value in found.top:
            assert value == pytest.approx(z[best] - total, abs=1e-9)


def test_hidden_ids_weigh_in_and_are_not_named() -> None:
    found = logprob(np.array([1.0, 9.0, 2.0]), 2, 3, np.array([1]))
    assert (found.rank, [token for token, _ in found.top]) == (1, [2, 0])
    assert found.value == pytest.approx(2 - math.log(math.exp(1) + math.exp(9) + math.exp(2)))


def test_the_largest_logits_do_not_overflow() -> None:
    found = logprob(np.array([1e30, -1e30], np.float32), 1, 2, NOBODY)
    assert found.value == pytest.approx(-2e30, rel=1e-6)
    assert found.top[0] == (0, 0.0)


def test_the_best_are_ordered_and_ties_go_to_the_lowest_id() -> None:
    z = np.array([2.0, 5.0, 2.0, 7.0, 2.0, 5.0])
    assert [best_of(z, count).tolist() for count in (0, 1, 3, 4, 9)] == [
        [],
        [3],
        [3, 1, 5],
        [3, 1, 5, 0],
        [3, 1, 5, 0, 2, 4],
    ]


def test_a_hidden_token_of_a_prompt_has_a_value_and_a_rank_among_the_others() -> None:
    found = logprob(np.array([1.0, 2.0, 3.0, 4.0]), 1, 2, np.array([1, 3]))
    total = math.log(sum(math.exp(z) for z in (1, 2, 3, 4)))
    assert found.value == pytest.approx(2 - total)
    assert (found.rank, [token for token, _ in found.top]) == (2, [2, 0])
