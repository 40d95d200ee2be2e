"""Sampling parameters of one request: fields, limits, and the counter-based random streams.

Random numbers are philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011) keyed by the request's seed and counted by (position, token, purpose, 0), so that a draw
depends on nothing but the request: no batch, no step, no machine.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from diptych.core.errors import BadRequest

GREEDY_BELOW = 1e-5
MAX_STOP_TOKENS = 128
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_ALLOWED_TOKENS = 1024
MAX_BAD_WORDS = 2000  # 1,000 words of a request, each with and without a space before it
MAX_TOP_LOGPROBS = 20


class Purpose(IntEnum):
    """What a random number is for: separate streams under one seed."""

    SAMPLE = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """Of reasoning at the output's begin: once used up, the first of `ends` is the next token.

    Any of `ends` in the output ends the reasoning before. A function of the output alone, so it
    holds over hand-offs and retries.
    """

    num_tokens: int
    ends: tuple[int, ...]

    def forced(self, tokens: Sequence[int], prompt_len: int) -> int | None:
        """The token that must come behind prompt and output; None if any may."""
        if len(tokens) - prompt_len != self.num_tokens:
            return None
        return self.ends[0] if set(self.ends).isdisjoint(tokens[prompt_len:]) else None


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
    logit_bias: tuple[tuple[int, float], ...] = ()  # token, what its logit gains
    repetition_penalty: float = 1.0  # of tokens in prompt or output
    frequency_penalty: float = 0.0  # for each time in the output
    presence_penalty: float = 0.0  # of tokens in the output
    min_tokens: int = 0  # of output, before it may end by a token
    bad_words: tuple[tuple[int, ...], ...] = ()  # sequences that the output shall not contain
    allowed_token_ids: tuple[int, ...] = ()  # none: all
    logprobs: int | None = None  # how many alternatives to report with each token's own; None: off
    prompt_logprobs: int | None = None  # likewise with each token of the prompt
    thinking: Budget | None = None  # of the reasoning that the prompt opened; None: no bound

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on which tokens came before."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )

    def check(self) -> None:
        """Raise BadRequest naming the first field outside its limits."""
        _expect("temperature", self.temperature, 0 <= self.temperature <= 2, "a number from 0 to 2")
        _expect("top_p", self.top_p, 0 < self.top_p <= 1, "a number above 0 and up to 1")
        _expect("top_k", self.top_k, self.top_k >= 0, "0 (off) or a positive integer")
        _expect("min_p", self.min_p, 0 <= self.min_p <= 1, "a number from 0 to 1")
        _expect("seed", self.seed, 0 <= self.seed < 2**64, "an unsigned 64-bit integer")
        repetition = self.repetition_penalty
        _expect("repetition_penalty", repetition, 0 < repetition <= 2, "above 0 and up to 2")
        for field in ("frequency_penalty", "presence_penalty"):
            penalty = getattr(self, field)
            _expect(field, penalty, -2 <= penalty <= 2, "a number from -2 to 2")
        _expect("min_tokens", self.min_tokens, self.min_tokens >= 0, "0 or a positive integer")
        _expect_few("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS)
        _expect_few("logit_bias", self.logit_bias, MAX_BIASES)
        for _, bias in self.logit_bias:
            _expect("logit_bias", bias, -MAX_BIAS <= bias <= MAX_BIAS, "numbers from -100 to 100")
        _expect_few("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKENS)
        _expect_few("bad_words", self.bad_words, MAX_BAD_WORDS)
        if not all(self.bad_words):
            raise BadRequest("bad_words has an empty one; expected tokens", param="bad_words")
        top = self.logprobs or 0
        _expect("top_logprobs", top, 0 <= top <= MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}")
        top = self.prompt_logprobs or 0
        _expect("prompt_logprobs", top, 0 <= top <= MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}")
        if self.thinking is not None:
            self._check_budget(self.thinking)

    def _check_budget(self, budget: Budget) -> None:
        field = "thinking_token_budget"
        _expect(field, budget.num_tokens, budget.num_tokens >= 0, "0 or a positive integer")
        if not budget.ends:
            raise BadRequest(f"{field} has no token to end with; expected one", param=field)

    def check_ids(self, vocab_size: int) -> None:
        """Raise BadRequest naming the first field with a token that does not exist."""
        biased = (token for token, _ in self.logit_bias)
        banned = (token for word in self.bad_words for token in word)
        _expect_tokens("logit_bias", biased, vocab_size)
        _expect_tokens("bad_words", banned, vocab_size)
        _expect_tokens("allowed_token_ids", self.allowed_token_ids, vocab_size)
        ends = self.thinking.ends if self.thinking is not None else ()
        _expect_tokens("thinking_token_budget", ends, vocab_size)


def _expect(field: str, value: float, holds: bool, expected: str) -> None:
    if not holds or not math.isfinite(value):
        raise BadRequest(f"{field} is {value}; expected {expected}", param=field)


def _expect_few(field: str, values: tuple[object, ...], most: int) -> None:
    if len(values) > most:
        raise BadRequest(f"{field} has {len(values)} entries; expected at most {most}", param=field)


def _expect_tokens(field: str, tokens: Iterable[int], vocab_size: int) -> None:
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise BadRequest(
                f"{field} names token {token}; expected 0 to {vocab_size - 1}", param=field
            )


def choice_seed(seed: int, choice: int) -> int:
    """Seed of choice i of a request: the seed mod 2^64 for 0, else derived from (seed, i)."""
    seed %= 2**64
    if choice == 0:
        return seed
    material = seed.to_bytes(8, "little") + choice.to_bytes(4, "little")
    return int.from_bytes(hashlib.blake2b(material).digest()[:8], "little")
