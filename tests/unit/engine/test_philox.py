import numpy as np
import pytest

from diptych.core.sampling import Purpose
from diptych.engine.philox import philox, uniforms

# Counter, key, output: the known answers published with Random123 for philox4x32 with 10 rounds.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip

# (seed, position, token, purpose) -> the 32 random bits of a draw: our own published vectors.
DRAWS = [
    ((0, 0, 0, Purpose.SAMPLE), 0x6627E8D5),
    ((1, 5, 7, Purpose.SAMPLE), 0xFE1F9BE0),
    ((2**64 - 1, 100_000, 129_279, Purpose.SAMPLE), 0x44B08C01),
    ((0x0123456789ABCDEF, 42, 3, Purpose.DRAFT), 0x386A7D53),
    ((0x0123456789ABCDEF, 42, 3, Purpose.ACCEPT), 0xE49A90B4),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def philox_by_hand(counter: list[int], key: list[int]) -> list[int]:
    """The generator as its paper draws it, one round after the other, in plain integers."""
    left, right = counter[:2], counter[2:]
    for _ in range(10):
        a, b = left[0] * 0xD2511F53, right[0] * 0xCD9E8D57
        left, right = (
            [b // 2**32 ^ left[1] ^ key[0], b % 2**32],
            [a // 2**32 ^ right[1] ^ key[1], a % 2**32],
        )
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return left + right


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_known_answers(counter: str, key: str, expected: str) -> None:
    arrays = tuple(np.array([word], np.uint64) for word in words(counter))
    low, high = words(key)
    assert [int(word[0]) for word in philox(arrays, (low, high))] == words(expected)
    assert philox_by_hand(words(counter), words(key)) == words(expected)


@pytest.mark.parametrize(("draw", "bits"), DRAWS)
def test_a_draw_is_keyed_by_seed_position_token_and_purpose(
    draw: tuple[int, int, int, Purpose], bits: int
) -> None:
    seed, position, token, purpose = draw
    assert philox_by_hand([position, token, purpose, 0], [seed % 2**32, seed >> 32])[0] == bits
    (u,) = uniforms(seed, position, np.array([token]), purpose)
    assert u == (bits + 0.5) / 2**32


def test_many_tokens_at_once_are_many_single_draws() -> None:
    tokens = np.array([3, 0, 77, 500])
    together = uniforms(11, 9, tokens, Purpose.SAMPLE)
    alone = [uniforms(11, 9, tokens[i : i + 1], Purpose.SAMPLE)[0] for i in range(4)]
    assert together.tolist() == alone


def test_uniforms_stay_inside_the_open_interval_and_fill_it_evenly() -> None:
    u = uniforms(5, 0, np.arange(100_000), Purpose.SAMPLE)
    assert u.min() > 0 and u.max() < 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    chi_square = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_square < 43.8  # 19 degrees of freedom, one in a thousand
