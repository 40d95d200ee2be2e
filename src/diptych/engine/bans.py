"""Tokens that must not be sampled next. A banned logit is minus infinity."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from diptych.core.sampling import Sampling

BANNED = -np.inf


def ban(
    z: NDArray[np.float64],
    sampling: Sampling,
    tokens: Sequence[int],
    prompt_len: int,
    eos_token_id: int,
) -> None:
    """Ban, in place, what the request does not want behind its tokens so far."""
    if sampling.allowed_token_ids:
        allowed = list(sampling.allowed_token_ids)
        values = z[allowed]
        z[:] = BANNED
        z[allowed] = values
    for word in sampling.bad_words:
        if _ends_with(tokens, prompt_len, word[:-1]):
            z[word[-1]] = BANNED
    if len(tokens) - prompt_len < sampling.min_tokens:
        z[eos_token_id] = BANNED
        z[[token for token in sampling.stop_token_ids if token < len(z)]] = BANNED


def _ends_with(tokens: Sequence[int], prompt_len: int, start: tuple[int, ...]) -> bool:
    """Whether the output ends with the start of a word."""
    if not start:
        return True
    if len(tokens) - prompt_len < len(start) or tokens[-1] != start[-1]:
        return False
    return tuple(tokens[len(tokens) - len(start) :]) == start
