"""How probable the model found a token, from its logits as they came."""

import numpy as np
from numpy.typing import NDArray

from diptych.core.step import Logprob


def logprob(
    logits: NDArray[np.floating], token: int, num_top: int, hidden: NDArray[np.int64]
) -> Logprob:
    """Log-probability and rank of a token, and the `num_top` best; `hidden` ids are not ranked.

    A token that is hidden itself, as only one of a prompt is, has a value and a rank all the same.
    """
    z = logits.astype(np.float64)
    largest = z.max()
    weights = z - largest
    total = largest + np.log(np.exp(weights, out=weights).sum())
    value = z[token]
    z[hidden] = -np.inf
    rank = 1 + np.count_nonzero(z > value) + np.count_nonzero(z[:token] == value)
    top = tuple((int(best), float(z[best] - total)) for best in best_of(z, num_top))
    return Logprob(float(value - total), int(rank), top)


def best_of(z: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ids of the largest values, best first; of equal ones the lowest id."""
    count = min(count, int(np.count_nonzero(z > -np.inf)))
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(z, len(z) - count)[len(z) - count]
    above = np.flatnonzero(z > least)
    level = np.flatnonzero(z == least)[: count - len(above)]
    return np.concatenate([above[np.argsort(-z[above], kind="stable")], level])
