"""The workers as the policy sees them: membership, ledger, what was learned, who is kept away."""

from collections.abc import Iterator
from math import inf

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.router.admission import Breakers
from diptych.router.estimates import Estimates
from diptych.router.ledger import Entry, Ledger
from diptych.router.pairs import Pairs
from diptych.router.policy import Candidate
from diptych.router.registry import Record, StreamRegistry

SUSPECT_S = 2.0  # a worker that failed one request is avoided by all
REMADE_S = 0.5  # at the latest: reports that do not come change a candidate, too
STALE_S = 2.0  # reports come every second at least
LEAST_LEFT = 0.1  # of what was expected of prompts, however long ago they were given


class Candidates:
    """Made when they are asked for, and again when the worker or the time changes them."""

    def __init__(
        self,
        registry: StreamRegistry,
        ledger: Ledger,
        estimates: Estimates,
        breakers: Breakers,
        pairs: Pairs,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._estimates = estimates
        self._breakers = breakers
        self._pairs = pairs
        self._suspects: dict[WorkerId, float] = {}
        self._heard_s: dict[WorkerId, float] = {}  # when prompts there last made progress
        self._free_s: dict[WorkerId, float] = {}  # when last chunks there should be computed
        self._shared_s: dict[Incarnation, float] = {}  # when other routers told theirs
        self._made: dict[WorkerId, Candidate] = {}
        self._passing: set[WorkerId] = set()  # whose candidate changes by itself as time passes
        self._now_s = -inf
        self._made_s = -inf  # when the oldest of them may have been made

    def suspect(self, worker: WorkerId, now_s: float) -> None:
        """It failed a request just now."""
        self._suspects = {
            name: failed_s
            for name, failed_s in self._suspects.items()
            if now_s < failed_s + SUSPECT_S
        } | {worker: now_s}
        self._made.pop(worker, None)

    def heard(self, worker: WorkerId, now_s: float) -> None:
        """Its prompts begin, or made progress: what they were expected to take runs from now."""
        self._heard_s[worker] = max(now_s, self._free_s.get(worker, now_s))

    def ends(self, worker: WorkerId, left_ms: float, now_s: float) -> None:
        """The last chunk of a prompt begins there: nothing more is heard of it until it is done."""
        self._free_s[worker] = max(now_s, self._free_s.get(worker, now_s)) + left_ms / 1000
        self.heard(worker, now_s)

    def ended(self, worker: WorkerId, now_s: float) -> None:
        """A prompt there is computed; if it holds no other, nothing is left whatever we think."""
        if self._ledger.standing(worker).own.held <= 1:
            self._free_s.pop(worker, None)
            self.heard(worker, now_s)

    def shared(self, router: Incarnation, now_s: float) -> None:
        """Another router told what it carries: what that should take runs from now."""
        self._shared_s[router] = now_s

    def forget_router(self, router: Incarnation) -> None:
        self._shared_s.pop(router, None)

    def forget(self, worker: WorkerId) -> None:
        self._made.pop(worker, None)
        self._heard_s.pop(worker, None)
        self._free_s.pop(worker, None)

    def all(self, entry: Entry, now_s: float) -> list[Candidate]:
        """As one request sees them: it avoids who failed it."""
        if entry.avoid:
            return [self.of(record, entry, now_s) for record in self.workers()]
        self._drop_old(now_s)
        made = self._made
        found = []
        for record in self.workers():
            candidate = made.get(WorkerId(record.join.member_id))
            if candidate is None:
                candidate = self.of(record, None, now_s)
                made[candidate.rank.worker_id] = candidate
                is_silent = record.reported_s + STALE_S <= now_s + REMADE_S
                if candidate.queue_ms or candidate.has_failed or is_silent:
                    self._passing.add(candidate.rank.worker_id)
            found.append(candidate)
        return found

    def _drop_old(self, now_s: float) -> None:
        if now_s > self._now_s:
            if now_s >= self._made_s + REMADE_S:
                self._made.clear()
                self._made_s = now_s
            for worker in self._passing:
                self._made.pop(worker, None)
            self._passing.clear()
            self._now_s = now_s
        for touched in (self._ledger.touched, self._pairs.touched):
            for worker in touched:
                self._made.pop(worker, None)
            touched.clear()

    def workers(self) -> Iterator[Record]:
        """All that take requests."""
        unready = self._pairs.unready
        return (record for record in self.present() if record.join.member_id not in unready)

    def present(self) -> Iterator[Record]:
        """Those, and who has not shown yet that it can."""
        for record in self._registry.records():
            if record.join.role is not Role.GATEWAY and not record.load.draining:
                yield record

    def of(self, record: Record, entry: Entry | None, now_s: float) -> Candidate:
        """One of them."""
        join, rank = record.join, record.rank
        worker = rank.worker_id
        standing = self._ledger.standing(worker)
        failed_s = self._failed_s(worker, entry, now_s)
        is_tripped = self._breakers.is_open(worker, now_s)
        free_slots = record.load.free_slots - standing.slots_given
        free_blocks = record.load.free_blocks - standing.blocks_given
        if now_s - record.reported_s > STALE_S:  # neither full nor idle: by the ledger
            free_slots = join.num_slots - standing.held - standing.rows
            tokens = standing.own.prompt_tokens + standing.shared.prompt_tokens
            pages = tokens // max(1, join.block_tokens)
            free_blocks = join.num_blocks - standing.blocks - pages
        return Candidate(
            rank=rank,
            role=join.role,
            namespace=join.namespace,
            block_tokens=join.block_tokens,
            num_slots=join.num_slots,
            num_blocks=join.num_blocks,
            prompts=standing.prompts,
            foreign_prompts=standing.foreign_prompts,
            queue_ms=self.queue_ms(worker, now_s),
            rows=standing.rows,
            context=standing.context,
            blocks=standing.blocks,
            free_slots=free_slots,
            free_blocks=free_blocks,
            keep=join.keep_tokens or 1,
            costs=self._estimates.costs(worker, join.role),
            last_assigned=standing.last_assigned,
            has_failed=is_tripped or (failed_s is not None and record.joined_s <= failed_s),
            is_back=not is_tripped and (failed_s is None or record.reported_s > failed_s),
            bad_partners=self._pairs.bad_partners(worker),
        )

    def queue_ms(self, worker: WorkerId, now_s: float) -> float:
        """Until the prompts that we and other routers gave it are computed."""
        theirs_ms = 0.0
        for router, share in self._ledger.shares.items():
            if (carried := share.carried.get(worker)) is not None and carried.work_us:
                passed_ms = 1000 * (now_s - self._shared_s.get(router, now_s))
                theirs_ms += max(0.0, carried.work_us / 1000 - passed_ms)
        return self.own_ms(worker, now_s) + theirs_ms

    def own_ms(self, worker: WorkerId, now_s: float) -> float:
        """Until the prompts that we gave it are computed: as expected, less the time since."""
        given_ms = self._ledger.standing(worker).own.work_us / 1000
        passed_ms = max(0.0, 1000 * (now_s - self._heard_s.get(worker, now_s)))
        ending_ms = max(0.0, 1000 * (self._free_s.get(worker, now_s) - now_s))
        return ending_ms + max(LEAST_LEFT * given_ms, given_ms - passed_ms)

    def _failed_s(self, worker: WorkerId, entry: Entry | None, now_s: float) -> float | None:
        failed_s = entry.avoid.get(worker) if entry else None
        suspected_s = self._suspects.get(worker)
        if failed_s is None and suspected_s is not None and now_s < suspected_s + SUSPECT_S:
            return suspected_s
        return failed_s
