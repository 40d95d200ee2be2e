"""What a sampled row gives."""

from dataclasses import dataclass

from diptych.core.errors import Broken
from diptych.core.step import Logprob


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of a request that asks for log-probabilities."""

    token: int
    logprob: Logprob


Outcome = int | Scored | Broken  # a token, or why there is none
