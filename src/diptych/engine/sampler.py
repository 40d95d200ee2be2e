"""From the logits of one row to a token. float64, one row at a time: no row sees its neighbours.

A token is a function of the logits, the request's tokens and its parameters, in this order:

0. the end of reasoning whose budget is used up, whatever else is asked
1. logit bias; repetition, frequency and presence penalties
2. bans: ids that are never said, allowed ids, bad words, no end before `min_tokens`, the grammar
3. z / temperature; greedy is the largest
4. top-k, top-p and min-p, jointly on the full softmax of z
5. the argmax of z + Gumbel noise; noise is keyed by (seed, position, token)

Log-probabilities are those of the logits as they came.
"""

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from diptych.core.errors import BadRequest, Broken
from diptych.core.sampling import Purpose, Sampling
from diptych.core.step import Logprob
from diptych.engine.bans import BANNED, ban
from diptych.engine.history import History
from diptych.engine.logprobs import logprob
from diptych.engine.outcome import Outcome, Scored
from diptych.engine.penalties import LARGEST, bias, penalise
from diptych.engine.philox import uniforms
from diptych.engine.requests import Request
from diptych.engine.support import support

LIKELY = 4.0  # logits below the best: whoever is closer is tried first
UNKNOWN = Logprob(math.nan, 0)  # of a row whose logits are not finite
MOST_NOISE = float(-np.log(-np.log1p(-(2.0**-33))))  # of any draw


class Sampler:
    """Samples for a model; `never` are ids that no output may hold."""

    def __init__(self, eos_token_id: int, never: Collection[int] = ()) -> None:
        self._eos_token_id = eos_token_id
        self._never = np.array(sorted(never), np.int64)

    def outcome(self, logits: NDArray[np.floating], request: Request) -> Outcome:
        """The token behind the request's tokens, or why its row has none."""
        if any(math.isnan(each.value) for each in request.prompt_logprobs or ()):
            return Broken("logits in the prompt are not finite")
        try:
            token = self.sample(logits, request)
        except (Broken, BadRequest) as error:
            return error
        num_top = request.generation.sampling.logprobs
        if num_top is None:
            return token
        return Scored(token, logprob(logits, token, num_top, self._never))

    def score(self, logits: NDArray[np.floating], request: Request) -> None:
        """Note the log-probabilities of the next tokens of its prompt, one for each row."""
        found, num_top = request.prompt_logprobs, request.generation.sampling.prompt_logprobs
        assert found is not None and num_top is not None, "nobody has asked"
        for row in logits:
            token = request.generation.prompt[1 + len(found)]
            is_finite = np.abs(row).max() <= LARGEST
            found.append(logprob(row, token, num_top, self._never) if is_finite else UNKNOWN)

    def sample(self, logits: NDArray[np.floating], request: Request) -> int:
        """The token behind the request's tokens."""
        sampling, position = request.generation.sampling, len(request.tokens)
        if not np.abs(logits).max() <= LARGEST:  # also false for NaN
            raise Broken(f"the logits at position {position} are not finite")
        if sampling.thinking is not None:
            forced = sampling.thinking.forced(request.tokens, len(request.generation.prompt))
            if forced is not None:
                return forced
        z = logits.astype(np.float64)
        bias(z, sampling)
        if sampling.has_penalties:
            penalise(z, sampling, history_of(request))
        z[self._never] = BANNED
        ban(z, sampling, request.tokens, len(request.generation.prompt), self._eos_token_id)
        if request.guide is not None:
            z[~request.guide.allowed(request.tokens)[: len(z)]] = BANNED
        if z.max() == BANNED:
            text = (
                f"no token is allowed at position {position}: what is asked for contradicts itself"
            )
            raise BadRequest(text, code="conflicting_parameters")
        return draw(z, sampling, position)


def history_of(request: Request) -> History:
    """What came before, counted up to now."""
    if request.history is None:
        request.history = History(request.generation.prompt)
    request.history.follow(request.tokens)
    return request.history


def draw(z: NDArray[np.float64], sampling: Sampling, position: int) -> int:
    """A token by temperature, support and noise; equal scores go to the lowest id."""
    if sampling.is_greedy:
        return int(np.argmax(z))
    z = z / sampling.temperature
    tokens = support(z, sampling)
    values = z[tokens]
    is_likely = values >= values.max() - LIKELY
    tried = tokens[is_likely]
    scores = _scores(z, tried, sampling, position)
    can_win = ~is_likely & (values + MOST_NOISE >= scores.max())
    if can_win.any():
        others = tokens[can_win]
        tried = np.concatenate([tried, others])
        scores = np.concatenate([scores, _scores(z, others, sampling, position)])
    return int(tried[scores == scores.max()].min())


def _scores(
    z: NDArray[np.float64], tokens: NDArray[np.int64], sampling: Sampling, position: int
) -> NDArray[np.float64]:
    noise = -np.log(-np.log(uniforms(sampling.seed, position, tokens, Purpose.SAMPLE)))
    scores: NDArray[np.float64] = z[tokens] + noise
    return scores
