"""What is noted of one request while it runs: for metrics, its log line, its trace, its timings.

Values and times only; no text. Times are `time.monotonic`'s.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from diptych.core.phases import Phase


@dataclass(frozen=True, slots=True)
class Stay:
    """An output was in a phase, at a worker if one was needed."""

    phase: Phase
    began_s: float
    ended_s: float
    attempt: int = 1
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """How one output went, from placement to its end."""

    stays: tuple[Stay, ...]
    result: str  # ok, cancelled, or an error's code
    first_s: float | None = None  # when its first token came, and
    last_s: float | None = None  # its last
    num_tokens: int = 0
    cached_tokens: int = 0
    reasons: tuple[str, ...] = ()  # of the router, for the first worker

    @property
    def is_hybrid(self) -> bool:
        """One worker computed prompt and output, all the time."""
        return not any(stay.phase is Phase.PREFILL for stay in self.stays)

    def seconds(self, phase: Phase) -> float:
        """Spent in a phase, in all attempts."""
        return sum(stay.ended_s - stay.began_s for stay in self.stays if stay.phase is phase)


@dataclass(slots=True)
class Notes:
    """Of one request."""

    began_s: float = field(default_factory=time.monotonic)
    tokenizing: list[tuple[float, float]] = field(default_factory=list)
    courses: list[Course] = field(default_factory=list)  # of its outputs, as they end
    ignored: tuple[str, ...] = ()  # fields that changed nothing
    parsed: Counter[str] = field(default_factory=Counter)  # calls of tools, and oddities
    wants_timings: bool = False
    keepalives: int = 0
    error: str = ""  # the code of what it failed with
    cut: str = ""  # why its stream did not end as it should
    limit: str = ""  # the kind of limit that refused it

    @contextmanager
    def tokenized(self) -> Iterator[None]:
        """Tokenise inside."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.tokenizing.append((began_s, time.monotonic()))
