"""Which tokens may be drawn, against the definition on the full softmax."""

import math
import random

import numpy as np
import pytest

from diptych.core.sampling import Sampling
from diptych.engine import support as module
from diptych.engine.support import support


def support_by_hand(z: list[float], how: Sampling) -> list[int]:
    """Each filter by its definition on the full softmax, token by token, in float64."""
    z = [value / (how.temperature or 1.0) for value in z]
    top = max(z)
    weights = [math.exp(v - top) for v in z]
    total = math.fsum(weights)
    order = sorted((t for t in range(len(z)) if z[t] > -math.inf), key=lambda t: (-z[t], t))
    kept, mass = [], 0.0
    for rank, token in enumerate(order):
        in_top_k = how.top_k == 0 or rank < how.top_k
        in_top_p = how.top_p == 1 or mass < how.top_p * total
        in_min_p = weights[token] >= how.min_p
        if rank == 0 or (in_top_k and in_top_p and in_min_p):
            kept.append(token)
        mass += weights[token]
    return sorted(kept)


def random_filters(rng: random.Random, size: int) -> Sampling:
    return Sampling(
        top_p=rng.choice([1.0, 0.999, 0.9, 0.5, 0.01]),
        top_k=rng.choice([0, 1, 3, 30, size // 2, size, size + 9]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.4, 1.0]),
    )


def random_row(rng: random.Random, size: int) -> np.ndarray:
    row = np.random.default_rng(rng.getrandbits(64)).normal(
        scale=rng.choice([1e-3, 1, 4, 60]), size=size
    )
    if rng.random() < 0.3:
        row = np.round(row)  # many ties
    if rng.random() < 0.3:
        row[np.array([rng.random() < 0.5 for _ in range(size)])] = -np.inf
        row[rng.randrange(size)] = 0.0
    return row


def test_the_support_equals_that_of_a_scalar_reference(rng: random.Random) -> None:
    for _ in range(1500):
        size = rng.choice([1, 2, 7, 40])
        z, how = random_row(rng, size), random_filters(rng, size)
        assert support(z, how).tolist() == support_by_hand(z.tolist(), how)


def test_counting_finds_the_same_end_as_sorting(rng: random.Random) -> None:
    """Rows that are too long to be sorted, against the same rows sorted."""
    for _ in range(120):
        size = rng.choice([module.SORT_UP_TO + 1, 9_000, 20_000])
        z, how = random_row(rng, size), random_filters(rng, size)
        assert support(z, how).tolist() == sorted_support(z, how)


def sorted_support(z: np.ndarray, how: Sampling) -> list[int]:
    order = np.argsort(-z, kind="stable")
    order = order[z[order] > -np.inf]
    weights = np.exp(z[order] - z[order[0]])
    keep = min(how.top_k or len(order), len(order))
    if how.top_p < 1:
        mass = np.cumsum(weights)
        keep = min(keep, 1 + int(np.searchsorted(mass, how.top_p * mass[-1])))
    keep = min(keep, int(np.count_nonzero(weights >= how.min_p)))
    return sorted(order[:keep].tolist())


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
@pytest.mark.parametrize("padding", [0, module.SORT_UP_TO])
def test_ties_at_a_threshold_are_kept_by_lowest_id(
    how: Sampling, expected: list[int], padding: int
) -> None:
    z = np.array([0.0, 1.0, 1.0, 0.0, 1.0])  # the three best have 0.2675 each, then 0.0987
    padded = np.concatenate([z, np.full(padding, -1e9)])
    assert [token for token in support(padded, how).tolist() if token < 5] == expected


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e34])
def test_buckets_keep_the_order_of_values(scale: float) -> None:
    values = np.random.default_rng(2).normal(size=1000) * scale
    values = np.sort(np.concatenate([values, [0.0, -0.0, scale, -scale]]))
    assert (np.diff(module._buckets(values)) <= 0).all()
