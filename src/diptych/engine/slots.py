"""Which slots are free. A slot holds what a sequence needs whatever its length."""

from collections import deque
from collections.abc import Sequence

PADDING_SLOT = 0  # never handed out: what padding rows point at


class SlotPool:
    """Slots 1 … num_slots, first in, first out."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = deque(range(1, num_slots + 1))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A slot, or None while others hold them all."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._taken.add(slot)
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back; it must be taken."""
        assert slot in self._taken, f"freeing slot {slot}, which is not taken"
        self._taken.remove(slot)
        self._free.append(slot)

    def check(self, owned: Sequence[int]) -> None:
        """Assert that exactly the slots in `owned` are taken, each once, and no slot is lost."""
        assert len(set(owned)) == len(owned), "a slot has two owners"
        assert set(owned) == self._taken, "taken slots and owned slots differ"
        assert sorted([*self._free, *self._taken]) == list(range(1, self.num_slots + 1))
