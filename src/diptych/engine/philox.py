"""Philox4x32-10: random bits as a function of (key, counter), for many tokens at once.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). No state: a draw depends on
the request's seed and on what it is for, not on batch, step or machine.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych.core.sampling import Purpose

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # golden ratio, sqrt(3) - 1: added to the key every round
MASK = 0xFFFFFFFF
TOGETHER = 8192  # tokens whose words stay in the cache of the processor

Words = NDArray[Any]  # of uint64: 32-bit words, so that products are whole
Word = int | Words  # an int is the same word in every counter


def philox(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, ...]:
    """The four output words for counters of four words (ints, and arrays that broadcast)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = (second >> 32) ^ (c1 ^ k0), second & MASK
        c2, c3 = (first >> 32) ^ (c3 ^ k1), first & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def uniforms(
    seed: int, position: int, tokens: NDArray[np.int64], purpose: Purpose
) -> NDArray[np.float64]:
    """A number in (0, 1) for each token: (h + 0.5) / 2^32, h the first word."""
    words, key = tokens.astype(np.uint64), (seed & MASK, seed >> 32)
    numbers = np.empty(len(words))
    for start in range(0, len(words), TOGETHER):
        some = slice(start, start + TOGETHER)
        numbers[some] = philox((position, words[some], int(purpose), 0), key)[0]
    return (numbers + 0.5) * 2.0**-32
