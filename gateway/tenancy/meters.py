"""What is limited and how: rates, places, quotas. Integers and microseconds; pure.

A rate is GCRA: one number, the time at which the bucket would be full again ("full at"). With
limit L a period of P µs, n units cost ⌊n·P / L⌋ µs; they are allowed while full at ≤ now + P.
`book.lua` does the same arithmetic in Redis.
"""

from dataclasses import dataclass, field

MINUTE_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """So many units a minute; a full minute's worth may come at once."""

    name: str
    limit: int
    period_us: int = MINUTE_US

    def cost_us(self, units: int) -> int:
        return units * self.period_us // self.limit

    def level_us(self, full_at_us: int, now_us: int) -> int:
        """How far from empty-handed: 0 is nothing used, the period is everything."""
        return max(0, full_at_us - now_us)

    def wait_us(self, full_at_us: int, now_us: int, units: int) -> int:
        """Until so many units are allowed; 0 is now."""
        return max(0, self.level_us(full_at_us, now_us) + self.cost_us(units) - self.period_us)

    def remaining(self, full_at_us: int, now_us: int) -> int:
        """Units that would be allowed now."""
        free_us = self.period_us - self.level_us(full_at_us, now_us)
        return max(0, ((free_us + 1) * self.limit - 1) // self.period_us)

    def can_ever(self, units: int) -> bool:
        """Whether an empty bucket would allow it."""
        return self.cost_us(units) <= self.period_us


@dataclass(frozen=True, slots=True)
class Places:
    """So many requests at a time."""

    name: str
    limit: int


@dataclass(frozen=True, slots=True)
class Quota:
    """So many tokens in a day or a month (UTC)."""

    name: str  # with its window
    limit: int
    ends_s: int  # seconds since 1970
    owner: tuple[str, str] = field(compare=False, default=("", ""))  # ("key" | "tenant", name)
    first_day: str = field(compare=False, default="")


Meter = Rate | Places | Quota


@dataclass(frozen=True, slots=True)
class Hold:
    """What a request takes of a meter."""

    meter: Meter
    units: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Where a meter stands after a request took, or was refused, its units."""

    meter: Meter
    remaining: int
    reset_us: int = 0  # until nothing is used


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to a request. If one meter refuses, nothing is taken of any."""

    readings: tuple[Reading, ...]
    refused: Meter | None = None
    wait_us: int = 0
