"""What the end of an attempt says of its workers: a death, a pair that cannot talk, or nothing."""

import logging
from dataclasses import replace

from diptych.core.ids import Rank, WorkerId
from diptych.router.admission import BROKEN, Breakers, Death, is_death
from diptych.router.candidates import Candidates
from diptych.router.ledger import Entry
from diptych.router.messages import Again
from diptych.router.pairs import Pairs
from diptych.router.registry import StreamRegistry

log = logging.getLogger(__name__)

BUSY_CODES = (  # no faults
    *("no_capacity", "queue_timeout", "draining", "ticket_gone", "cancelled", "worker_left"),
)


class Failures:
    """Tells breaker, suspicion and pairs of what gateways met."""

    def __init__(
        self, registry: StreamRegistry, breakers: Breakers, candidates: Candidates, pairs: Pairs
    ) -> None:
        self._registry = registry
        self._breakers = breakers
        self._candidates = candidates
        self._pairs = pairs

    def take(self, lease: int, entry: Entry, again: Again, phase: str, now_s: float) -> Entry:
        """Blame whom the gateway names; the lease, with what it must avoid and has seen die."""
        log.info(
            "attempt failed request=%s attempt=%d worker=%s partner=%s have=%s code=%s why=%s",
            entry.want.request_id,
            entry.attempt,
            again.failed_worker,
            again.partner or "-",
            again.have.name.lower(),
            again.code,
            again.why,
        )
        failed = WorkerId(again.failed_worker)
        if again.partner:
            return self._between(entry, WorkerId(again.partner), failed, again.why, now_s)
        record = self._registry.find(failed)
        if again.code not in BUSY_CODES:
            entry = replace(entry, was_let_down=True)
            if record is not None:  # else its next life would pay for this one
                self._breakers.failed(failed, now_s, lease)
        self._candidates.suspect(failed, now_s)
        was_told_to_go = record is not None and record.load.draining
        if is_death(again.code, again.kind) and not was_told_to_go:
            may_live = record if again.kind != BROKEN else None
            life = may_live.join.incarnation if may_live is not None else None
            entry = replace(entry, deaths=entry.deaths.another(Death(phase, failed, life, now_s)))
        return replace(entry, avoid={**entry.avoid, failed: now_s})

    def is_poison(self, entry: Entry, phase: str) -> bool:
        """Whether workers died under it in a phase once too often."""
        return entry.deaths.is_poison(phase, self._lives)

    def handed_over(self, prefill: WorkerId, decode: WorkerId | None, now_s: float) -> None:
        """Tokens came of KV that was fetched."""
        if (pair := self._pair(prefill, decode)) is not None:
            self._pairs.worked(*pair, now_s)

    def _between(
        self, entry: Entry, prefill: WorkerId, decode: WorkerId, why: str, now_s: float
    ) -> Entry:
        """The pair is bad and nobody is blamed; this request tries another prefill worker first."""
        if (pair := self._pair(prefill, decode)) is not None:
            self._pairs.failed(*pair, why, now_s)
        return replace(entry, was_let_down=True, avoid={**entry.avoid, prefill: now_s})

    def _lives(self, death: Death) -> bool:
        """Whether a worker that was taken for dead has spoken since."""
        record = self._registry.find(death.worker)
        if record is None or record.join.incarnation != death.life:
            return False
        return record.reported_s > death.at_s

    def _pair(self, prefill: WorkerId, decode: WorkerId | None) -> tuple[Rank, Rank] | None:
        prefilling = self._registry.find(prefill)
        decoding = self._registry.find(decode) if decode is not None else None
        if prefilling is None or decoding is None:
            return None
        return prefilling.rank, decoding.rank
