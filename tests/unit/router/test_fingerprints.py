"""The set of fixed memory against a plain one."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.router.fingerprints import BUCKET, Fingerprints

keys = st.integers(0, 2**64 - 1)


@settings(deadline=None)  # a busy machine is no error
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200))
def test_with_room_it_is_a_set_and_telling_twice_is_telling_once(
    steps: list[tuple[bool, int]],
) -> None:
    draw = random.Random("names")
    names = [draw.getrandbits(64) for _ in range(41)]
    found, truth = Fingerprints(1 << 12), set[int]()
    for came, number in steps:
        if came:
            assert not found.add(names[number])
            truth.add(names[number])
        else:
            found.discard(names[number])
            truth.discard(names[number])
    assert [name in found for name in names] == [name in truth for name in names]
    assert len(found) == len(truth)


def test_a_full_bucket_forgets_its_oldest() -> None:
    found = Fingerprints(BUCKET)
    names = [number << 32 for number in range(1, BUCKET + 4)]
    assert [found.add(name) for name in names] == [False] * BUCKET + [True] * 3
    assert [name in found for name in names] == [False] * 3 + [True] * BUCKET
    found.discard(names[5])
    assert not found.add(names[0])
    assert len(found) == BUCKET


def test_r8_ten_times_what_fits_takes_no_more_memory_and_invents_nothing() -> None:
    draw = random.Random("fingerprints")
    found = Fingerprints(1 << 10)
    names = [draw.getrandbits(64) for _ in range(10_000)]
    forgotten = sum(map(found.add, names))
    assert len(found) + forgotten == len(names)
    assert len(found) > 0.99 * (1 << 10)
    assert names[-1] in found
    assert not any(draw.getrandbits(64) in found for _ in range(10_000))


@given(keys)
def test_a_key_whose_mark_would_be_that_of_a_free_place_is_kept_too(key: int) -> None:
    found, low = Fingerprints(1 << 10), key & 0xFFFFFFFF
    assert low not in found
    found.add(low)
    assert low in found
    assert len(found) == 1
