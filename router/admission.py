"""Who is let in, and who is kept away from whom: breaker, poison, retry budget, classes.

Pure but for its own state; the time is an argument. What the caller did wrong (4xx) never reaches
us as a failure, and a lease that ends without a token is no success: it moves no breaker, in either
direction.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from math import inf

from diptych.core.ids import Incarnation, WorkerId
from diptych.router.queue import BATCH, NORMAL, URGENT

DEATH = "worker_lost"  # the code of a connection that broke: core/errors.py, Lost
BROKEN = "Broken"  # the class of an engine's own failure on a request
POISON = "poison_request"
BLOCK_S = 600.0
BLOCKED_LIMIT = 10_000
BLOCKED_TOLD = 64  # to other routers, twice a second
DEATHS_ALLOWED = 1  # of the worker in one phase of one request
RETRY_SHARE = 0.10  # of the requests that came in
RETRY_FLOOR = 64.0  # what one worker's death may cost at once
TRIP_AFTER = 3  # failures in a row
OPEN_S = 5.0
LONGEST_OPEN_S = 60.0


@dataclass(frozen=True, slots=True)
class Class:
    """What a scheduling class promises."""

    level: int
    gap_target_ms: float  # between tokens
    first_token_target_s: float  # what pools are sized for; how long it may wait is its own word


CLASSES = {
    "interactive": Class(URGENT, 60.0, 2.0),
    "normal": Class(NORMAL, 150.0, 10.0),
    "batch": Class(BATCH, inf, inf),
}


def class_of(name: str) -> Class:
    """An unknown one is normal: gateways may know more of them."""
    return CLASSES.get(name, CLASSES["normal"])


@dataclass(slots=True)
class Breaker:
    """One worker: closed, open until a time, then half open for one request at a time."""

    failures: int = 0  # in a row
    trips: int = 0  # without a success in between
    open_until_s: float = -inf
    trial: int | None = None  # the lease that tries it while it is half open

    def is_open(self, now_s: float) -> bool:
        is_tripped = self.trips > 0
        return is_tripped and (now_s < self.open_until_s or self.trial is not None)

    def failed(self, now_s: float, lease: int) -> bool:
        """Count a failure; True if it opens now."""
        was_trial = self.trial == lease
        self.failures += 1
        if was_trial:
            self.trial = None
        if not was_trial and (self.failures < TRIP_AFTER or self.is_open(now_s)):
            return False
        self.trips += 1
        self.open_until_s = now_s + min(LONGEST_OPEN_S, OPEN_S * 2.0 ** (self.trips - 1))
        return True

    def placed(self, lease: int) -> None:
        if self.trips and self.trial is None:
            self.trial = lease

    def ended(self, lease: int) -> None:
        """A lease is over, whyever: that says nothing of the worker."""
        if self.trial == lease:
            self.trial = None


class Breakers:
    """Of all workers."""

    def __init__(self) -> None:
        self._of: dict[WorkerId, Breaker] = {}
        self.trips_total = 0

    def is_open(self, worker: WorkerId, now_s: float) -> bool:
        breaker = self._of.get(worker)
        return breaker is not None and breaker.is_open(now_s)

    def failed(self, worker: WorkerId, now_s: float, lease: int) -> None:
        breaker = self._of.setdefault(worker, Breaker())
        self.trips_total += breaker.failed(now_s, lease)

    def succeeded(self, worker: WorkerId) -> None:
        self._of.pop(worker, None)

    def ended(self, worker: WorkerId, lease: int) -> None:
        """A lease is over, whyever."""
        if (breaker := self._of.get(worker)) is not None:
            breaker.ended(lease)

    def placed(self, worker: WorkerId, lease: int) -> None:
        """A request goes there: if the breaker is half open, it is the one that tries."""
        breaker = self._of.get(worker)
        if breaker is not None:
            breaker.placed(lease)

    def num_open(self, now_s: float) -> int:
        return sum(breaker.is_open(now_s) for breaker in self._of.values())

    def forget(self, worker: WorkerId) -> None:
        """Another life begins with a clean slate."""
        self._of.pop(worker, None)

    def next_close_s(self, now_s: float) -> float | None:
        """When the next one lets a request try."""
        times = [b.open_until_s for b in self._of.values() if b.open_until_s > now_s]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Death:
    """A worker died under a request, as its gateway saw it; or its engine failed on it."""

    phase: str
    worker: WorkerId
    life: Incarnation | None  # None: it was gone already, or the engine says so itself
    at_s: float


def is_death(code: str, kind: str) -> bool:
    """Whether an attempt's end may be the request's fault; whoever was busy or left is not."""
    return kind == BROKEN or (code == DEATH and kind in ("", "Lost"))


@dataclass(frozen=True, slots=True)
class Deaths:
    """Of one request's workers."""

    all: tuple[Death, ...] = ()

    def another(self, death: Death) -> "Deaths":
        return Deaths((*self.all, death))

    def is_poison(self, phase: str, lives: Callable[[Death], bool]) -> bool:
        """`lives(death)`: the worker was heard since, so that only the link to it had died."""
        same = [death for death in self.all if death.phase == phase and not lives(death)]
        return len(same) > DEATHS_ALLOWED


class Blocked:
    """Prompts that killed workers, for a while: those seen here, and those of other routers."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._own: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, fingerprint: bytes, now_s: float) -> None:
        """It killed its workers here; one without a fingerprint is nobody's."""
        if fingerprint:
            self._own.pop(fingerprint, None)
            self._own[fingerprint] = None
            self.learn(fingerprint, BLOCK_S, now_s)

    def learn(self, fingerprint: bytes, left_s: float, now_s: float) -> None:
        """It is blocked for so long, whoever says so."""
        until_s = now_s + min(left_s, BLOCK_S)
        self._until[fingerprint] = max(until_s, self._until.get(fingerprint, until_s))
        self._until.move_to_end(fingerprint)
        if len(self._until) > BLOCKED_LIMIT:
            gone, _ = self._until.popitem(last=False)
            self._own.pop(gone, None)

    def left_s(self, fingerprint: bytes, now_s: float) -> float:
        """How long it stays blocked; 0 if it is not."""
        while self._until and next(iter(self._until.values())) <= now_s:
            gone, _ = self._until.popitem(last=False)
            self._own.pop(gone, None)
        return max(0.0, self._until.get(fingerprint, now_s) - now_s)

    def own(self, now_s: float) -> dict[bytes, float]:
        """The newest of those that were seen here, and how long they stay blocked."""
        newest = islice(reversed(self._own), BLOCKED_TOLD)
        return {name: left for name in newest if (left := self.left_s(name, now_s)) > 0}


class RetryBudget:
    """At most a tenth more load by computing prompts again, and a floor for small platforms."""

    def __init__(self) -> None:
        self._left = RETRY_FLOOR

    def earned(self) -> None:
        """A request came in."""
        self._left = min(2 * RETRY_FLOOR, self._left + RETRY_SHARE)

    def spend(self) -> bool:
        """Whether one more prompt may be computed again."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
