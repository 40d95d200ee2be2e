"""The newest decisions of the router that this gateway heard, with their reasons."""

import time
from collections import deque
from dataclasses import dataclass, field

from diptych.telemetry.logs import request_id_var

KEPT = 100


@dataclass(frozen=True, slots=True)
class Decision:
    """A request was given to a worker: for its prompt, its output, or both."""

    request_id: str
    phase: str  # prefill, decode or hybrid
    worker: str
    reasons: tuple[str, ...]
    time_s: float = field(default_factory=time.time)


class Decisions:
    """The last ones; the oldest make room."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=KEPT)

    def heard(self, phase: str, worker: str, reasons: tuple[str, ...]) -> None:
        """Note one, for the request that is worked on."""
        self._kept.append(Decision(request_id_var.get(), phase, worker, reasons))

    def newest(self, count: int) -> list[Decision]:
        """Newest first."""
        return list(self._kept)[: -count - 1 : -1]
