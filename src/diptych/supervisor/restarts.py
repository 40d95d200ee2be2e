"""How long to wait before starting a process again. Pure."""

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 10.0
HEALTHY_S = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Delays that double with every death, and begin anew after a healthy life."""

    first_s: float = FIRST_DELAY_S
    max_s: float = MAX_DELAY_S
    healthy_s: float = HEALTHY_S


@dataclass(slots=True)
class Restarts:
    """The deaths of one process."""

    pace: Pace
    count: int = 0
    _in_a_row: int = 0

    def died(self, lived_s: float) -> float:
        """Count a death; seconds until the next start."""
        if lived_s >= self.pace.healthy_s:
            self._in_a_row = 0
        delay_s = min(self.pace.max_s, self.pace.first_s * 2.0 ** min(self._in_a_row, 30))
        self._in_a_row += 1
        self.count += 1
        return delay_s
