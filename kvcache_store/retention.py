"""How long parts are kept: classes, days, and which of two promises is the later one. Pure."""

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final

from diptych.core.errors import BadRequest

DAY_S: Final = 86_400
SKEW_S: Final = 3_600  # a clock may be this much ahead without costing anybody a day
FOREVER: Final = 2**32 - 1  # a day that never comes


class Retention(StrEnum):
    """What a caller asks for. The promise runs from the last access."""

    AGENT = auto()
    CHAT = auto()
    PINNED = auto()  # until the operator says otherwise
    NONE = auto()  # zero retention: never stored


TTL_DAYS: Final = {Retention.AGENT: 3, Retention.CHAT: 7}
CODES: Final = {Retention.AGENT: 1, Retention.CHAT: 2, Retention.PINNED: 3}  # on disk


@dataclass(frozen=True, slots=True)
class Kept:
    """A promise: as if last accessed on `day` (since 1970) under a class."""

    retention: Retention
    day: int

    @property
    def expires_day(self) -> int:
        """The first day on which nothing is owed any more. A whole day counts as its end."""
        days = TTL_DAYS.get(self.retention)
        return FOREVER if days is None else self.day + days + 1

    def is_over(self, now_s: float) -> bool:
        return self.expires_day != FOREVER and now_s - SKEW_S >= self.expires_day * DAY_S


def day_of(now_s: float) -> int:
    """Day since 1970."""
    return int(now_s // DAY_S)


def later(one: Kept, other: Kept) -> Kept:
    """The promise that lasts longer; `one` if they last alike."""
    return other if other.expires_day > one.expires_day else one


def retention_of(name: str) -> Retention:
    """The class of a name; BadRequest for one that does not exist."""
    try:
        return Retention(name)
    except ValueError:
        raise BadRequest(
            f"retention: expected one of {', '.join(Retention)}", param="retention"
        ) from None
