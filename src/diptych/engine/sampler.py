"""From the logits of one row to a token. float64, one row at a time: no row sees its neighbours.

1. z = logits / temperature; greedy is the largest logit.
2. top-k, top-p and min-p are all taken on the full softmax of z; what all three keep may be drawn.
   Equal logits are kept by lowest id, and the most probable token always survives.
3. The token is the argmax of z + Gumbel noise; noise is keyed by (seed, position, token).
"""

import numpy as np
from numpy.typing import NDArray

from diptych.core.errors import Broken
from diptych.core.sampling import Purpose, Sampling
from diptych.engine.philox import uniforms


def sample(logits: NDArray[np.floating], sampling: Sampling, position: int) -> int:
    """The token at `position` of its sequence; equal scores go to the lowest id."""
    if not np.isfinite(logits).all():
        raise Broken(f"the logits at position {position} are not finite")
    if sampling.is_greedy:
        return int(np.argmax(logits))
    z = logits.astype(np.float64) / sampling.temperature
    tokens = support(z, sampling)
    noise = -np.log(-np.log(uniforms(sampling.seed, position, tokens, Purpose.SAMPLE)))
    return int(tokens[np.argmax(z[tokens] + noise)])


def support(z: NDArray[np.float64], sampling: Sampling) -> NDArray[np.int64]:
    """Ids of the tokens that may be drawn, ascending.

    Each filter keeps the front of the tokens sorted by (largest z, lowest id), so together they
    keep the shortest front.
    """
    is_cut = 0 < sampling.top_k < len(z) or sampling.top_p < 1 or sampling.min_p > 0
    if not is_cut:
        return np.arange(len(z))
    order = np.argsort(-z, kind="stable")
    weights = np.exp(z[order] - z[order[0]])  # relative to the most probable token
    keep = sampling.top_k or len(z)
    if sampling.top_p < 1:
        mass = np.cumsum(weights)
        keep = min(keep, 1 + int(np.searchsorted(mass, sampling.top_p * mass[-1])))
    if sampling.min_p > 0:
        keep = min(keep, int(np.count_nonzero(weights >= sampling.min_p)))
    return np.sort(order[:keep])
