"""Which node keeps what."""

import random
from collections import Counter

import pytest

from diptych.kvcache_store.placement import (
    RAMP_S,
    SEGMENT_BLOCKS,
    SMALLEST_WEIGHT,
    ranked,
    segment_key,
    weight,
)
from diptych.testing.chains import names_of, origin_of

NODES = {f"node-{i}:7100": 1.0 for i in range(8)}


def keys(rng: random.Random, count: int = 4000) -> list[bytes]:
    return [rng.randbytes(16) for _ in range(count)]


def test_equal_nodes_get_equal_shares(rng: random.Random) -> None:
    shares = Counter(ranked(NODES, key)[0] for key in keys(rng, 8000))
    assert set(shares) == set(NODES)
    assert max(shares.values()) < 1.25 * min(shares.values())


def test_a_node_that_goes_moves_only_its_own_share(rng: random.Random) -> None:
    fewer = dict(list(NODES.items())[1:])
    gone = next(iter(NODES))
    for key in keys(rng, 500):
        before = ranked(NODES, key)
        assert ranked(fewer, key) == [node for node in before if node != gone]


def test_a_light_node_gets_its_weight(rng: random.Random) -> None:
    weights = NODES | {"node-0:7100": 0.25}
    shares = Counter(ranked(weights, key)[0] for key in keys(rng, 8000))
    others = [shares[node] for node in NODES if node != "node-0:7100"]
    assert shares["node-0:7100"] == pytest.approx(0.25 * sum(others) / len(others), rel=0.2)


def test_a_heavier_node_only_gains(rng: random.Random) -> None:
    light = NODES | {"node-0:7100": 0.3}
    for key in keys(rng, 500):
        before, after = ranked(light, key)[0], ranked(NODES, key)[0]
        assert after in (before, "node-0:7100")


def test_k12_only_a_node_that_began_empty_ramps() -> None:
    assert weight(0, was_empty=False) == 1.0
    assert weight(0, was_empty=True) == SMALLEST_WEIGHT
    assert weight(RAMP_S / 2, was_empty=True) == 0.5
    assert weight(RAMP_S * 9, was_empty=True) == 1.0


def test_chains_with_a_common_beginning_agree_on_its_segments() -> None:
    origin = origin_of("alice")
    one = names_of(origin, range(100))
    other = names_of(origin, [*range(40), *range(500, 560)])
    for index in range(2 * SEGMENT_BLOCKS, 3 * SEGMENT_BLOCKS):
        assert segment_key(one, index) == one[2 * SEGMENT_BLOCKS]
        assert segment_key(one, index) == segment_key(other, index)
    assert segment_key(one, 50) != segment_key(other, 50)
