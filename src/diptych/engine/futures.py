"""Tokens that the device has sampled and the scheduler does not know yet, by slot.

The next forward is launched before the step that samples its inputs is retired; it finds them here.
A slot has one owner in a step, so a slot and the step that sampled name a token. What a slot was
given by another step, for another owner, or not at all, reads as NO_TOKEN: that row belongs to a
sequence that has ended, and it computes for nothing.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NO_TOKEN = 0  # any id that can be embedded
_NEVER = -1


class TokenFutures:
    """The newest token of each slot, and the step that sampled it. Touched by the device alone."""

    def __init__(self, num_slots: int) -> None:
        self._tokens = np.full(num_slots + 1, NO_TOKEN)
        self._steps = np.full(num_slots + 1, _NEVER)

    def write(self, step: int, slot: int, token: int) -> None:
        """Keep what `step` sampled for a slot."""
        self._tokens[slot] = token
        self._steps[slot] = step

    def read(self, step: int, slots: Ints) -> Ints:
        """What `step` sampled for these slots."""
        return np.where(self._steps[slots] == step, self._tokens[slots], NO_TOKEN)
