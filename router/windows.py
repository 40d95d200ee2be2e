"""Amounts over the last minute and over all time. Values and times in, numbers out; no clock."""

from collections import deque
from math import ceil

SPAN_S = 60.0
LEAST_SPAN_S = 10.0  # of a young window: one early request is no flood


class Window:
    """What was added in the last `SPAN_S` seconds, in buckets of a second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, float]] = deque()
        self._since_s: float | None = None

    def add(self, amount: float, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = now_s
        second = int(now_s)
        if self._buckets and self._buckets[-1][0] == second:
            amount += self._buckets.pop()[1]
        self._buckets.append((second, amount))
        self._drop_old(now_s)

    def total(self, now_s: float) -> float:
        self._drop_old(now_s)
        return sum(amount for _, amount in self._buckets)

    def rate(self, now_s: float) -> float:
        """A second; 0 when nothing came."""
        if self._since_s is None:
            return 0.0
        span_s = min(SPAN_S, max(LEAST_SPAN_S, now_s - self._since_s))
        return self.total(now_s) / span_s

    def _drop_old(self, now_s: float) -> None:
        while self._buckets and self._buckets[0][0] <= now_s - SPAN_S:
            self._buckets.popleft()


class Samples:
    """Values of the last `SPAN_S` seconds, the newest `limit` of them."""

    def __init__(self, limit: int = 1024) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=limit)

    def add(self, value: float, now_s: float) -> None:
        self._values.append((now_s, value))

    def p90(self, now_s: float) -> float | None:
        """None without any."""
        return p90([value for at_s, value in self._values if at_s > now_s - SPAN_S])


class Level:
    """A number that holds until it changes, and its sum over time."""

    def __init__(self) -> None:
        self._value = 0.0
        self._since_s = 0.0
        self._total = 0.0
        self._recent = Window()

    def set(self, value: float, now_s: float) -> None:
        passed = self._value * max(0.0, now_s - self._since_s)
        self._total += passed
        self._recent.add(min(passed, self._value * SPAN_S), now_s)
        self._value, self._since_s = value, now_s

    def total(self, now_s: float) -> float:
        """Times seconds, since the beginning."""
        return self._total + self._value * max(0.0, now_s - self._since_s)

    def recent(self, now_s: float) -> float:
        """The same of the last minute."""
        self.set(self._value, now_s)
        return self._recent.total(now_s)


def p90(values: list[float]) -> float | None:
    """Nine of ten are not above it; None without values."""
    if not values:
        return None
    return sorted(values)[ceil(0.9 * len(values)) - 1]
