import math
import random

import numpy as np
import pytest

from diptych.core.errors import Broken
from diptych.core.sampling import Sampling
from diptych.engine.sampler import sample, support

from .test_philox import philox_by_hand


def support_by_hand(logits: list[float], how: Sampling) -> list[int]:
    """Each filter by its definition on the full softmax, token by token, in float64."""
    z = [value / how.temperature for value in logits]
    top = max(z)
    total = math.fsum(math.exp(v - top) for v in z)
    p = [math.exp(v - top) / total for v in z]
    order = sorted(range(len(z)), key=lambda token: (-z[token], token))
    kept, mass = [], 0.0
    for rank, token in enumerate(order):
        in_top_k = how.top_k == 0 or rank < how.top_k
        in_top_p = how.top_p == 1 or mass < how.top_p
        in_min_p = p[token] >= how.min_p * p[order[0]] - 1e-15
        if rank == 0 or (in_top_k and in_top_p and in_min_p):
            kept.append(token)
        mass += p[token]
    return sorted(kept)


def sample_by_hand(logits: list[float], how: Sampling, position: int) -> int:
    if how.is_greedy:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    key = [how.seed % 2**32, how.seed >> 32]

    def score(token: int) -> float:
        h = philox_by_hand([position, token, 0, 0], key)[0]
        return logits[token] / how.temperature - math.log(-math.log((h + 0.5) / 2**32))

    return max(support_by_hand(logits, how), key=lambda token: (score(token), -token))


def random_case(rng: random.Random) -> tuple[list[float], Sampling]:
    size = rng.choice([1, 2, 7, 40])
    logits = [rng.gauss(0, 3) for _ in range(size)]
    if rng.random() < 0.3:  # many ties
        logits = [float(rng.randrange(3)) for _ in range(size)]
    return logits, Sampling(
        temperature=rng.choice([0.0, 0.3, 1.0, 2.0]),
        top_p=rng.choice([1.0, 0.999, 0.9, 0.5, 0.01]),
        top_k=rng.choice([0, 0, 1, 3, 30, 100]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.4, 1.0]),
        seed=rng.getrandbits(64),
    )


def test_tokens_equal_those_of_a_scalar_reference(rng: random.Random) -> None:
    for _ in range(1500):
        logits, how = random_case(rng)
        position = rng.randrange(5000)
        assert sample(np.array(logits), how, position) == sample_by_hand(logits, how, position)


def test_the_support_equals_that_of_a_scalar_reference(rng: random.Random) -> None:
    for _ in range(1500):
        logits, how = random_case(rng)
        if not how.is_greedy:
            z = np.array(logits) / how.temperature
            assert support(z, how).tolist() == support_by_hand(logits, how)


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    assert sample(np.array([1.0, 5.0, 5.0]), Sampling(temperature=0), 0) == 1


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Sampling(top_k=2), [1, 2]),
        (Sampling(top_p=0.3), [1, 2]),
        (Sampling(top_p=1e-9), [1]),
        (Sampling(min_p=1.0), [1, 2, 4]),
        (Sampling(), [0, 1, 2, 3, 4]),
        (Sampling(top_k=5, top_p=0.5, min_p=0.5), [1, 2]),
    ],
)
def test_ties_at_a_threshold_are_kept_by_lowest_id(how: Sampling, expected: list[int]) -> None:
    z = np.array([0.0, 1.0, 1.0, 0.0, 1.0])  # the three best have 0.2675 each, then 0.0987
    assert support(z, how).tolist() == expected


def test_draws_follow_the_softmax() -> None:
    z = np.array([0.0, 1.0, 2.0, -1.0])
    draws = [sample(z, Sampling(seed=3), position) for position in range(6_000)]
    counts = np.bincount(draws, minlength=4)
    expected = np.exp(z) / np.exp(z).sum() * len(draws)
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees, one in a thousand


def test_the_same_seed_and_position_repeat_and_others_differ() -> None:
    z = np.zeros(500)
    assert sample(z, Sampling(seed=1), 4) == sample(z, Sampling(seed=1), 4)
    assert len({sample(z, Sampling(seed=1), position) for position in range(20)}) > 15
    assert len({sample(z, Sampling(seed=seed), 4) for seed in range(20)}) > 15


def test_a_draw_does_not_depend_on_the_precision_that_carries_the_logits() -> None:
    z = np.random.default_rng(0).normal(size=300).astype(np.float32)
    for position in range(50):
        how = Sampling(top_p=0.9, seed=position)
        assert sample(z, how, position) == sample(z.astype(np.float64), how, position)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_fail_the_row(bad: float) -> None:
    with pytest.raises(Broken, match="position 12 are not finite"):
        sample(np.array([0.0, bad]), Sampling(), 12)
