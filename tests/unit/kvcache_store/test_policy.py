"""What goes first."""

import random
from collections.abc import Sequence

from diptych.core.ids import BlockHash
from diptych.kvcache_store.policy import Candidate, Rank, eviction_order, value, with_its_segment


def candidate(
    key: int, rank: Rank = Rank.PROMISED, worth: float = 1.0, parents: Sequence[int] = ()
) -> Candidate:
    return Candidate(
        key=key,
        rank=rank,
        value=worth,
        size_bytes=1,
        parents=frozenset(_name(p) for p in parents),
        names=frozenset({_name(key)}),
    )


def _name(key: int) -> BlockHash:
    return BlockHash(key.to_bytes(16))


def order(*candidates: Candidate) -> list[int]:
    return [c.key for c in eviction_order(candidates)]


def test_unused_namespaces_go_before_quotas_before_promises() -> None:
    assert order(
        candidate(1), candidate(2, Rank.OVER_QUOTA, 9.0), candidate(3, Rank.FOREIGN, 99.0)
    ) == [3, 2, 1]


def test_the_least_worth_goes_first() -> None:
    assert order(candidate(1, worth=3.0), candidate(2, worth=1.0), candidate(3, worth=2.0)) == [
        2,
        3,
        1,
    ]


def test_a_parent_waits_for_its_last_child_however_little_it_is_worth() -> None:
    family = [
        candidate(1, Rank.FOREIGN, 0.0),
        candidate(2, worth=5.0, parents=[1]),
        candidate(3, worth=6.0, parents=[1]),
    ]
    assert order(*family) == [2, 3, 1]


def test_in_random_forests_everybody_goes_once_and_no_parent_before_its_child(
    rng: random.Random,
) -> None:
    for _ in range(200):
        parents = {
            key: rng.randrange(key) if key and rng.random() < 0.8 else None
            for key in range(rng.randint(1, 40))
        }
        forest = [
            candidate(key, rng.choice(list(Rank)), rng.random(), [] if parent is None else [parent])
            for key, parent in parents.items()
        ]
        rng.shuffle(forest)
        gone = order(*forest)
        assert sorted(gone) == sorted(parents)
        for key, parent in parents.items():
            if parent is not None:
                assert gone.index(key) < gone.index(parent)


def test_what_is_deep_read_often_and_lately_is_worth_more_a_byte() -> None:
    def of(**changes: float) -> float:
        usual = {"tokens": 128, "index_tokens": 0, "size_bytes": 1000, "reads": 0, "idle_s": 60.0}
        return value(**(usual | changes))  # type: ignore[arg-type]

    assert of(index_tokens=100_000) > of()
    assert of(reads=3) > of()
    assert of(idle_s=0.0) > of() > of(idle_s=500.0)
    assert of(size_bytes=500) > of()
    assert of(idle_s=-3.0) == of(idle_s=0.0)  # a clock that went back makes nobody precious


def test_what_is_not_much_better_than_its_segment_goes_with_it() -> None:
    assert with_its_segment(0.5, 1.0) == with_its_segment(1.0, 1.0) == with_its_segment(2.0, 1.0)
    assert with_its_segment(6.0, 1.0) > with_its_segment(2.0, 1.0)
    assert with_its_segment(6.0, 1.0) < 6.0
