"""Sampling parameters of one request: fields, limits, and the counter-based random streams.

Random numbers are philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011) keyed by the request's seed and counted by (position, token, purpose, 0), so that a draw
depends on nothing but the request: no batch, no step, no machine.
"""

import hashlib
import math
from dataclasses import dataclass
from enum import IntEnum

from diptych.core.errors import BadRequest

GREEDY_BELOW = 1e-5
MAX_STOP_TOKENS = 128


class Purpose(IntEnum):
    """What a random number is for: separate streams under one seed."""

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `seed` is unsigned 64 bit; `top_k` 0 = off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def check(self) -> None:
        """Raise BadRequest naming the first field outside its limits."""
        _expect("temperature", self.temperature, 0 <= self.temperature <= 2, "a number from 0 to 2")
        _expect("top_p", self.top_p, 0 < self.top_p <= 1, "a number above 0 and up to 1")
        _expect("top_k", self.top_k, self.top_k >= 0, "0 (off) or a positive integer")
        _expect("min_p", self.min_p, 0 <= self.min_p <= 1, "a number from 0 to 1")
        _expect("seed", self.seed, 0 <= self.seed < 2**64, "an unsigned 64-bit integer")
        count = len(self.stop_token_ids)
        _expect("stop_token_ids", count, count <= MAX_STOP_TOKENS, f"at most {MAX_STOP_TOKENS} ids")


def _expect(field: str, value: float, holds: bool, expected: str) -> None:
    if not holds or not math.isfinite(value):
        raise BadRequest(f"{field} is {value}; expected {expected}", param=field)


def choice_seed(seed: int, choice: int) -> int:
    """Seed of choice i of a request: the seed mod 2^64 for 0, else derived from (seed, i)."""
    seed %= 2**64
    if choice == 0:
        return seed
    material = seed.to_bytes(8, "little") + choice.to_bytes(4, "little")
    return int.from_bytes(hashlib.blake2b(material).digest()[:8], "little")
