"""Who was seen to hand KV over to whom, and who cannot.

A worker is *proven* once real bytes went between it and one partner of its namespace and tokens
came: by a canary, or by a request. A *pair* that could not exchange KV is bad for a while; neither
of its workers is, unless it has no other partner. Lives are told apart: a restarted worker has
proven nothing. Pure but for its own state; the time is an argument.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from diptych.core.ids import Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.messages import Join, Load

log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
BAD_S = 30.0
LONGEST_BAD_S = 600.0
KEPT_LIVES = 256  # of workers that are away
UNTRIED = "canary: none has come through yet"


@dataclass(slots=True)
class Life:
    """One life of a worker, and what it has shown."""

    rank: Rank
    join: Join
    number: int  # in the order in which they came
    is_here: bool = True
    is_heard: bool = False
    is_draining: bool = False
    is_proven: bool = False
    is_trusted: bool = False  # it worked before we came, and nothing speaks against it
    failures: int = 0  # of canaries, in a row
    not_before_s: float = -inf  # the next one
    why: str = UNTRIED  # what went wrong last

    @property
    def name(self) -> WorkerId:
        return self.rank.worker_id

    @property
    def is_prefill(self) -> bool:
        return self.join.role is Role.PREFILL

    @property
    def is_hybrid(self) -> bool:
        return self.join.role is Role.HYBRID

    @property
    def is_able(self) -> bool:
        """Whether a canary may go there."""
        return self.is_here and self.is_heard and not self.is_draining


@dataclass(slots=True)
class Pair:
    """What is known of two lives."""

    proven_s: float = -inf
    failures: int = 0  # in a row
    bad_until_s: float = -inf
    not_before_s: float = -inf  # the next canary


@dataclass(slots=True)
class Side:
    """The workers of one namespace."""

    prefill: list[Life] = field(default_factory=list)
    decode: list[Life] = field(default_factory=list)  # hybrids among them

    def partners(self, life: Life) -> list[Life]:
        """Whom a worker exchanges KV with."""
        return self.decode if life.is_prefill else self.prefill


class Pairs:
    """All of a fleet. Unless workers `must_prove`, all that join serve and only marks count."""

    def __init__(self, *, must_prove: bool = False) -> None:
        self.must_prove = must_prove
        self.unready: dict[WorkerId, str] = {}  # who serves nothing, and why
        self.touched: set[WorkerId] = set()  # whose marks changed since somebody looked
        self.version = 0  # counts changes of it
        self.is_stirred = False  # another canary may be due; whoever looks clears it
        self.here: dict[WorkerId, Life] = {}
        self.known: dict[tuple[Rank, Rank], Pair] = {}  # prefill, decode
        self._lives: dict[Rank, Life] = {}
        self._bad: dict[WorkerId, tuple[WorkerId, ...]] = {}
        self._next_expiry_s = inf
        self._joined = 0

    # What happens.

    def joined(self, rank: Rank, join: Join) -> None:
        """A worker is here; one that was away for a moment keeps what it has shown."""
        if join.role is Role.GATEWAY:
            return
        life = self._lives.get(rank)
        if life is None:
            self._forget(old for old in self._lives if old.worker_id == rank.worker_id)
            self._joined += 1
            life = self._lives[rank] = Life(rank, join, self._joined)
        life.join, life.is_here, life.failures, life.not_before_s = join, True, 0, -inf
        for names, pair in self.known.items():
            if rank in names:
                pair.not_before_s = -inf
        self.here[rank.worker_id] = life
        self._settle()

    def left(self, worker: WorkerId) -> None:
        """It is away."""
        life = self.here.pop(worker, None)
        if life is not None:
            life.is_here = False
            away = [each.rank for each in self._lives.values() if not each.is_here]
            self._forget(away[: max(0, len(away) - KEPT_LIVES)])
            self._settle()

    def heard(self, rank: Rank, load: Load) -> None:
        """A worker reports. One that has computed before we knew it is trusted for now."""
        life = self._lives.get(rank)
        if life is None or (life.is_heard and life.is_draining == load.draining):
            return
        if not life.is_heard:
            life.is_trusted = load.steps_total > 0
        life.is_heard, life.is_draining = True, load.draining
        self._settle()

    def worked(self, prefill: Rank, decode: Rank, now_s: float) -> None:
        """KV went over, and tokens came."""
        if prefill not in self._lives or decode not in self._lives:
            return
        pair = self.pair(prefill, decode)
        was_bad = pair.bad_until_s > now_s
        pair.proven_s, pair.failures = now_s, 0
        pair.bad_until_s = pair.not_before_s = -inf
        if was_bad:
            log.info("pair is good again prefill=%s decode=%s", prefill.worker_id, decode.worker_id)
        is_news = [self._proved(self._lives[rank]) for rank in (prefill, decode)]
        if was_bad or any(is_news):
            self._settle()

    def worked_alone(self, hybrid: Rank) -> None:
        """Tokens came of a prompt and its worker."""
        life = self._lives.get(hybrid)
        if life is not None and self._proved(life):
            self._settle()

    def failed(self, prefill: Rank, decode: Rank, why: str, now_s: float) -> None:
        """KV could not be fetched: the pair is bad, for longer each time in a row."""
        if prefill not in self._lives or decode not in self._lives:
            return
        pair = self.pair(prefill, decode)
        bad_s = min(LONGEST_BAD_S, BAD_S * 2.0 ** min(pair.failures, 10))
        pair.failures += 1
        pair.proven_s, pair.bad_until_s = -inf, now_s + bad_s
        pair.not_before_s = now_s + retry_s(pair.failures)
        self._lives[prefill].why = f"canary: {decode.worker_id}: {why}"
        self._lives[decode].why = f"canary: {why}"
        log.warning(
            "pair is bad prefill=%s decode=%s for_s=%g why=%s",
            prefill.worker_id,
            decode.worker_id,
            bad_s,
            why,
        )
        for life in (self._lives[prefill], self._lives[decode]):
            if life.is_trusted and not life.is_hybrid:
                partners = self.sides()[life.join.namespace].partners(life)
                life.is_trusted = any(not self.pair_of(life, p).failures for p in partners)
        self._settle()

    def blamed(self, life: Life, why: str, *, for_good: bool) -> None:
        """A worker failed by itself; `for_good`: it is not trusted any more either."""
        life.why = f"canary: {why}"
        life.is_trusted = life.is_trusted and not for_good
        self._settle()

    def expire(self, now_s: float) -> None:
        """Marks whose time is over count no more."""
        if now_s < self._next_expiry_s:
            return
        for pair in self.known.values():
            if pair.bad_until_s <= now_s:
                pair.bad_until_s = -inf
        self._settle()

    # What is known.

    def bad_partners(self, worker: WorkerId) -> tuple[WorkerId, ...]:
        """With whom it cannot exchange KV now."""
        return self._bad.get(worker, ())

    def has_partner(self, worker: WorkerId) -> bool:
        """Whether anybody who serves may fetch from a prefill worker."""
        life, bad = self.here.get(worker), self.bad_partners(worker)
        if life is None or not bad:
            return True
        partners = self.sides()[life.join.namespace].partners(life)
        return any(p.name not in bad and p.name not in self.unready for p in partners)

    def next_expiry_s(self) -> float | None:
        """When the first mark ends."""
        return None if self._next_expiry_s == inf else self._next_expiry_s

    def states(self) -> Iterator[tuple[WorkerId, bool]]:
        """Each worker, and whether it is proven and serves."""
        for worker, life in self.here.items():
            yield worker, life.is_proven and worker not in self.unready

    @property
    def num_bad(self) -> int:
        """Pairs that are avoided now."""
        return sum(map(len, self._bad.values())) // 2

    def life(self, rank: Rank) -> Life | None:
        """A life that is known, here or away."""
        return self._lives.get(rank)

    def pair(self, prefill: Rank, decode: Rank) -> Pair:
        """What is known of two lives, to be changed."""
        return self.known.setdefault((prefill, decode), Pair())

    def pair_of(self, life: Life, other: Life) -> Pair:
        """The same of two that are here, to be read."""
        names = (life.rank, other.rank) if life.is_prefill else (other.rank, life.rank)
        pair = self.known.get(names)
        return Pair() if pair is None else pair

    def sides(self) -> defaultdict[bytes, Side]:
        """Who is here, by namespace."""
        found: defaultdict[bytes, Side] = defaultdict(Side)
        for life in self.here.values():
            side = found[life.join.namespace]
            (side.prefill if life.is_prefill else side.decode).append(life)
        return found

    # How.

    def _proved(self, life: Life) -> bool:
        was_proven, life.is_proven = life.is_proven, True
        life.failures, life.not_before_s = 0, -inf
        return not was_proven

    def _forget(self, ranks: Iterable[Rank]) -> None:
        gone = set(ranks)
        for rank in gone:
            del self._lives[rank]
        if gone:
            self.known = {names: p for names, p in self.known.items() if gone.isdisjoint(names)}

    def _settle(self) -> None:
        """Work out again who serves nothing, and which marks count."""
        bad: defaultdict[WorkerId, list[WorkerId]] = defaultdict(list)
        self._next_expiry_s = inf
        for (prefill, decode), pair in self.known.items():
            if pair.bad_until_s == -inf:
                continue
            self._next_expiry_s = min(self._next_expiry_s, pair.bad_until_s)
            if self._lives[prefill].is_here and self._lives[decode].is_here:
                bad[prefill.worker_id].append(decode.worker_id)
                bad[decode.worker_id].append(prefill.worker_id)
        marks = {worker: tuple(sorted(partners)) for worker, partners in bad.items()}
        self.touched |= {w for w in marks | self._bad if marks.get(w) != self._bad.get(w)}
        self._bad = marks
        if not self.must_prove:
            return
        sides = self.sides()
        unready = {
            worker: why
            for worker, life in self.here.items()
            if (why := self._lack(life, sides[life.join.namespace].partners(life)))
        }
        self.is_stirred = True
        if unready != self.unready:
            self._tell(unready)
            self.unready = unready
            self.version += 1

    def _lack(self, life: Life, partners: list[Life]) -> str:
        """Why a worker serves nothing; "" if it does."""
        if not partners and not life.is_hybrid:
            other = "decode" if life.is_prefill else "prefill"
            return f"no {other} worker of the same weights, layout and numerics"
        if not (life.is_proven or life.is_trusted):
            return life.why
        is_cut_off = len(self.bad_partners(life.name)) >= len(partners) and not life.is_hybrid
        return life.why if is_cut_off else ""

    def _tell(self, unready: dict[WorkerId, str]) -> None:
        for worker in sorted(unready | self.unready):
            why = unready.get(worker)
            if why is not None and why != self.unready.get(worker):
                log.info("worker is not ready worker=%s why=%s", worker, why)
            elif why is None and worker in self.here:
                log.info("worker is ready worker=%s", worker)


def retry_s(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    return min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 10))
