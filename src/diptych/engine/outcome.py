"""What a sampled row gives."""

from dataclasses import dataclass

from diptych.core.errors import BadRequest, Broken
from diptych.core.step import Logprob


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of a request that asks for log-probabilities."""

    token: int
    logprob: Logprob


Failure = Broken | BadRequest  # a bug; or what the caller asked for leaves no token
Outcome = int | Scored | Failure  # a token, or why there is none
