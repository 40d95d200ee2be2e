"""Pins: parts that must stay for a moment. Each has an owner, a reason and a deadline. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from diptych.core.ids import BlockHash

LONGEST_S: Final = 60.0  # whoever needs longer asks again
LEAK_FACTOR: Final = 2.0  # a pin that outlives its lease by this much is somebody's bug


@dataclass(frozen=True, slots=True)
class Pin:
    """One lease on some parts."""

    pin_id: int
    owner: str
    reason: str
    since_s: float
    until_s: float
    names: tuple[BlockHash, ...]

    def is_leaked(self, now_s: float) -> bool:
        return now_s > self.since_s + LEAK_FACTOR * (self.until_s - self.since_s)


class Pins:
    """The book. `is_pinned` may be asked from any thread."""

    def __init__(self) -> None:
        self._pins: dict[int, Pin] = {}
        self._counts: Counter[BlockHash] = Counter()
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._pins)

    def is_pinned(self, names: Sequence[BlockHash]) -> bool:
        return bool(self._counts) and any(name in self._counts for name in names)

    def hold(
        self, names: Sequence[BlockHash], owner: str, reason: str, now_s: float, lease_s: float
    ) -> int:
        """Pin parts for at most `lease_s`; the pin's id, 0 if there is nothing to pin."""
        if not names or lease_s <= 0:
            return 0
        until_s = now_s + min(lease_s, LONGEST_S)
        pin = Pin(self._next_id, owner, reason, now_s, until_s, tuple(names))
        self._next_id += 1
        self._pins[pin.pin_id] = pin
        self._counts.update(pin.names)
        return pin.pin_id

    def release(self, pin_id: int) -> bool:
        """Let go; False if it was over already. Twice is once."""
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            return False
        for name in pin.names:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]
        return True

    def all(self) -> list[Pin]:
        return list(self._pins.values())
