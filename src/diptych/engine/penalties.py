"""What a request adds to logits and takes from them, for what stands in its text already."""

import numpy as np
from numpy.typing import NDArray

from diptych.core.sampling import Sampling
from diptych.engine.history import History

LARGEST = 1e30  # of a logit: what grows beyond it stays there


def bias(z: NDArray[np.float64], sampling: Sampling) -> None:
    """Add the request's own opinion of some tokens, in place."""
    for token, value in sampling.logit_bias:
        z[token] += value


def penalise(z: NDArray[np.float64], sampling: Sampling, history: History) -> None:
    """Make tokens that were there already less likely (or more), in place.

    A repetition penalty r divides positive logits and multiplies negative ones.
    """
    r = sampling.repetition_penalty
    if r != 1:
        seen = history.seen
        values = z[seen]
        with np.errstate(over="ignore"):
            changed = np.where(values > 0, values / r, values * r)
        z[seen] = np.clip(changed, -LARGEST, LARGEST)
    if sampling.frequency_penalty or sampling.presence_penalty:
        taken = sampling.frequency_penalty * history.counts + sampling.presence_penalty
        z[history.output] -= taken
