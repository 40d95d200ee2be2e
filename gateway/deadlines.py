"""How long each wait of a journey may last, and the timers that watch them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from diptych.core.errors import BadRequest
from diptych.core.request import NORMAL_PATIENCE_S, patience_s

TIMEOUT_HEADER = "x-request-timeout-s"
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds."""

    queue_s: float = NORMAL_PATIENCE_S  # of requests of class `normal`
    replace_s: float = 5.0  # after a loss; noticing it takes up to as long
    first_token_s: float = 300.0  # since the prefill worker was last heard of this prompt
    room_s: float = 60.0  # for a decode worker, once the first token is out
    reserve_s: float = 30.0  # a reservation without Start
    next_token_s: float = 30.0
    renew_s: float = 8.0  # between renewals of a ticket that waits
    router_s: float = 8.0  # without a router, when one is needed

    def of_class(self, priority: str) -> "Deadlines":
        """The same for a request of a scheduling class."""
        return replace(self, queue_s=patience_s(priority, self.queue_s))


def client_timeout_s(headers: Mapping[str, str]) -> float | None:
    """How long a client waits at most; it shortens our own deadlines and lengthens none."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if not _SECONDS.fullmatch(text.strip()) or not float(text):
        raise BadRequest(f"{TIMEOUT_HEADER}: expected seconds, more than 0", param=TIMEOUT_HEADER)
    return float(text)


class Timer(Enum):
    """What is waited for."""

    PHASE = auto()  # the step that the phase is
    ROOM = auto()  # a decode worker
    RENEW = auto()
    AGAIN = auto()  # before asking the router once more
    PLACE = auto()  # before opening a new lease
    ROUTER = auto()


class Timers:
    """At most one time of each kind."""

    def __init__(self) -> None:
        self._at_s: dict[Timer, float] = {}

    @property
    def next_s(self) -> float:
        """When the first is due; there always is one while a journey goes on."""
        return min(self._at_s.values())

    def set(self, timer: Timer, at_s: float) -> None:
        self._at_s[timer] = at_s

    def stop(self, *timers: Timer) -> None:
        for timer in timers:
            self._at_s.pop(timer, None)

    def is_set(self, timer: Timer) -> bool:
        return timer in self._at_s

    def is_due(self, timer: Timer, now_s: float) -> bool:
        return self._at_s.get(timer, now_s + 1) <= now_s

    def due(self, now_s: float) -> list[Timer]:
        """Those whose time has come, in the order they were set."""
        return [timer for timer, at_s in self._at_s.items() if at_s <= now_s]
