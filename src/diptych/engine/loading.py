"""How much of a prompt to load from the cache tier, and how much to compute. Pure.

Loading is worth it where it is predicted to take less time than computing the same positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from diptych.engine.scheduler import Limits
from diptych.engine.tier import Stored

BYTE_S = 2e-9
_FORGETTING = 0.2  # weight of the newest measurement
_RECOVERY = 0.02  # of a tier that is not asked


@dataclass(frozen=True, slots=True)
class Local:
    """What the pools hold of a prompt: its first `blocks`, with an anchor after `anchored`."""

    blocks: int
    anchored: int


@dataclass(slots=True)
class Rates:
    """What was measured lately; the defaults are a CPU's and a loopback's."""

    row_s: float = 1e-4  # of a prompt, computed
    byte_s: float = BYTE_S  # of the tier, loaded
    wait_s: float = 2e-3  # for the first byte

    def computed(self, rows: int, took_s: float) -> None:
        """A step computed so many rows of prompts."""
        self.row_s += _FORGETTING * (took_s / rows - self.row_s)

    def loaded(self, size_bytes: int, asked_bytes: int, took_s: float) -> None:
        """The tier delivered so much of what it was asked for.

        If that is nothing, this says how long at least all of it would have taken.
        """
        if took_s <= self.wait_s:
            return
        byte_s = (took_s - self.wait_s) / (size_bytes or asked_bytes)
        if size_bytes or byte_s > self.byte_s:
            self.byte_s += _FORGETTING * (byte_s - self.byte_s)

    def passed_over(self) -> None:
        """It had something that nobody fetched. One that was slow is tried again some day."""
        self.byte_s -= _RECOVERY * max(0.0, self.byte_s - BYTE_S)


@dataclass(frozen=True, slots=True)
class Load:
    """Bring the prompt's blocks [first, blocks) and, if `has_anchor`, the anchor at their end."""

    first: int
    blocks: int
    has_anchor: bool


def choose(
    local: Local,
    stored: Sequence[Stored],
    limits: Limits,
    rates: Rates,
    *,
    block_bytes: int,
    anchor_bytes: int,
) -> Load | None:
    """What to load; None if nothing is worth it.

    `stored[0]` is the block before the first that is missing here (it may have an anchor that is
    missing), or the first of all.
    """
    offset = max(0, local.blocks - 1)
    usable = list(stored)
    if limits.deterministic:
        full = (index for index, block in enumerate(usable) if not block.full_window)
        del usable[next(full, len(usable)) :]
    reach = max(local.blocks, offset + len(usable))
    anchors = [offset + i + 1 for i, block in enumerate(usable) if block.has_anchor]
    anchored = max((a for a in anchors if a > local.anchored), default=0)
    goal, has_anchor = anchored, bool(anchored)
    far = (reach - max(anchored, local.anchored)) * limits.grain > limits.window
    if not limits.deterministic and far and reach > local.blocks:
        goal, has_anchor = reach, False
    if not goal:
        return None
    gained = goal * limits.grain - _usable_here(local, limits)
    size_bytes = max(0, goal - local.blocks) * block_bytes + has_anchor * anchor_bytes
    if gained * rates.row_s <= rates.wait_s + size_bytes * rates.byte_s:
        return None
    return Load(min(local.blocks, goal), goal, has_anchor)


def _usable_here(local: Local, limits: Limits) -> int:
    """Positions that need no computing as it is: pools.py decides alike."""
    far = (local.blocks - local.anchored) * limits.grain > limits.window
    if limits.deterministic or not far:
        return local.anchored * limits.grain
    return local.blocks * limits.grain - limits.window
