"""Which tokens may be drawn: top-k, top-p and min-p, all taken on the full softmax.

Each filter keeps the front of the tokens in the order (largest z, lowest id), so together they keep
the shortest front. Its end is found by counting, not by sorting: tokens are put into buckets by the
upper bits of their z, and only the bucket in which the front ends is put in order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diptych.core.sampling import Sampling

SORT_UP_TO = 4096  # so few tokens are sorted faster than counted
NUM_BUCKETS = 1 << 16

Ids = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Front:
    """Tokens that are kept for sure, and those among which the cut lies."""

    sure: Ids
    sure_mass: float
    unsure: Ids
    mass: float | None  # of all tokens; None: all are unsure


def support(z: Values, sampling: Sampling) -> Ids:
    """Ids of the tokens that may be drawn, ascending; a banned one (minus infinity) never."""
    is_ordered = 0 < sampling.top_k < len(z) or sampling.top_p < 1
    if not is_ordered and not sampling.min_p:
        return np.flatnonzero(z > -np.inf)
    weights = z - z.max()
    np.exp(weights, out=weights)  # relative to the most probable token
    if not is_ordered:
        return np.flatnonzero((weights >= sampling.min_p) & (z > -np.inf))
    kept = _front(z, weights, sampling)
    drawable: Ids = kept[(weights[kept] >= sampling.min_p) & (z[kept] > -np.inf)]
    return drawable


def _front(z: Values, weights: Values, sampling: Sampling) -> Ids:
    """The tokens that top-k and top-p keep, ascending."""
    front = _narrowed(z, weights, sampling)
    unsure = front.unsure[np.argsort(-z[front.unsure], kind="stable")]
    keep = len(unsure)
    if sampling.top_k:
        keep = min(keep, sampling.top_k - len(front.sure))
    if sampling.top_p < 1:
        mass = front.sure_mass + np.cumsum(weights[unsure])
        total = mass[-1] if front.mass is None else front.mass
        keep = min(keep, 1 + int(np.searchsorted(mass, sampling.top_p * total)))
    return np.sort(np.concatenate([front.sure, unsure[:keep]]))


def _narrowed(z: Values, weights: Values, sampling: Sampling) -> Front:
    """Find the bucket in which the first of both filters ends."""
    if len(z) <= SORT_UP_TO:
        return Front(np.empty(0, np.int64), 0.0, np.arange(len(z)), None)
    bucket = _buckets(z)
    masses = np.cumsum(np.bincount(bucket, weights, NUM_BUCKETS))
    end = NUM_BUCKETS - 1
    if sampling.top_k:
        counts = np.cumsum(np.bincount(bucket, minlength=NUM_BUCKETS))
        end = min(end, int(np.searchsorted(counts, sampling.top_k)))
    if sampling.top_p < 1:
        end = min(end, int(np.searchsorted(masses, sampling.top_p * masses[-1])))
    sure_mass = float(masses[end - 1]) if end else 0.0
    sure, unsure = np.flatnonzero(bucket < end), np.flatnonzero(bucket == end)
    return Front(sure, sure_mass, unsure, float(masses[-1]))


def _buckets(z: Values) -> NDArray[np.int32]:
    """The upper 16 bits of each value as a float32, turned so that larger values come first."""
    rounded = z.astype(np.float32)
    rounded += np.float32(0)  # no negative zeros: equal values share a bucket
    upper = rounded.view(np.int32) >> 16
    upper ^= (upper >> 31) & 0x7FFF  # of two negative numbers the one with more bits is less
    buckets: NDArray[np.int32] = 0x7FFF - upper
    return buckets
