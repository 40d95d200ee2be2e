"""Philox4x32-10: random bits as a function of (key, counter), for many tokens at once.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). No state: a draw depends on
the request's seed and on what it is for, not on batch, step or machine.
"""

import numpy as np
from numpy.typing import NDArray

from diptych.core.sampling import Purpose

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio, sqrt(3) - 1: added to the key every round
MASK = 0xFFFFFFFF

Words = NDArray[np.uint64]  # 32-bit words, kept in 64 bits so that products are whole


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """The four output words for counters of four words (arrays that broadcast)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    mask, half = np.uint64(MASK), np.uint64(32)
    for _ in range(ROUNDS):
        first = c0 * np.uint64(MULTIPLIERS[0])
        second = c2 * np.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (second >> half) ^ c1 ^ np.uint64(k0),
            second & mask,
            (first >> half) ^ c3 ^ np.uint64(k1),
            first & mask,
        )
        k0 = (k0 + KEY_STEPS[0]) & MASK
        k1 = (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def uniforms(
    seed: int, position: int, tokens: NDArray[np.int64], purpose: Purpose
) -> NDArray[np.float64]:
    """A number in (0, 1) for each token: (h + 0.5) / 2^32, h the first word."""

    def word(value: int) -> Words:
        return np.array(value, dtype=np.uint64)

    counter = (word(position), tokens.astype(np.uint64), word(purpose), word(0))
    h = philox(counter, (seed & MASK, seed >> 32))[0]
    return (h.astype(np.float64) + 0.5) * 2.0**-32
