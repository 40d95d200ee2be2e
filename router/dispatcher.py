"""Every lease from Want to its end: joins queue, ledger, registry and policy into one state.

Pure but for its own state: time is an argument, answers collect in an outbox. `service.py` feeds
it from streams, sends what comes out and calls `dispatch` at `next_wake_s`.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Phase, Role
from diptych.router.admission import (
    POISON,
    Blocked,
    Breakers,
    RetryBudget,
    class_of,
)
from diptych.router.chooser import Chooser
from diptych.router.decisions import Decision
from diptych.router.demand import Demand
from diptych.router.explained import Explained
from diptych.router.failures import BUSY_CODES, Failures
from diptych.router.ledger import Entry, Ledger, Stage
from diptych.router.messages import (
    Again,
    Answer,
    BlockChanges,
    DecodeAt,
    Fleet,
    Have,
    Join,
    Member,
    PrefillAt,
    Progress,
    SkipTo,
    Want,
)
from diptych.router.pairs import Pairs
from diptych.router.policy import Choice, Wait, Why, find_path
from diptych.router.prefix_index import Missing, keys_of
from diptych.router.queue import Queue
from diptych.router.registry import Record, StreamRegistry
from diptych.router.waiting_room import WaitingRoom

log = logging.getLogger(__name__)

QUEUE_LIMIT = 1024
LOOK_PAST = 16  # requests that wait for somebody else than the rest does, per dispatch


class Dispatcher:
    """The router's state and its only decisions."""

    def __init__(
        self,
        registry: StreamRegistry,
        *,
        queue_limit: int = QUEUE_LIMIT,
        on_decision: Callable[[Decision], None] | None = None,
        seed: int = 0,
        pairs: Pairs | None = None,
    ) -> None:
        self.pairs = pairs or Pairs()
        self.ledger = Ledger()
        self.outbox: list[tuple[int, Answer]] = []
        self.breakers = Breakers()
        self.blocked = Blocked()
        self._budget = RetryBudget()
        self._registry = registry
        self.chooser = Chooser(registry, self.ledger, self.breakers, self.pairs, on_decision, seed)
        self.index = self.chooser.index
        self.estimates = self.chooser.estimates
        self._candidates = self.chooser.candidates
        self._failures = Failures(registry, self.breakers, self._candidates, self.pairs)
        self._leases = 0
        self._looked_s = 0.0
        self.demand = Demand()
        self._room = WaitingRoom(queue_limit, self.ledger, self.chooser, self.demand, self._answer)
        self.prompts, self.handoffs = self._room.prompts, self._room.handoffs
        self.explained = Explained()
        self.is_export_blocked = False  # prompts are held back for want of a decode row
        self.on_first_token: Callable[[float], None] = lambda took_of_expected: None
        registry.watch(self._member_changed)

    # What happens.

    def open(self, want: Want, now_s: float) -> int:
        """Begin a lease; the number names it from now on."""
        self._leases += 1
        lease = self._leases
        entry = Entry(want=want, attempt=want.attempt, arrived_s=now_s, keys=keys_of(want.hashes))
        if want.resume is not None:
            self.ledger.open(lease, self._resumed(entry))
            return lease
        self.ledger.open(lease, entry)
        self._budget.earned()
        self.demand.arrived(want.prompt_len, now_s)
        if left_s := self.blocked.left_s(want.fingerprint, now_s):
            self._room.refuse(lease, POISON, "this prompt has killed its workers twice", left_s)
        else:
            self.chooser.arrived(lease, entry, now_s)
            self._room.add(lease, now_s)
        return lease

    def progress(self, lease: int, progress: Progress, now_s: float) -> None:
        """Note how far an attempt is; the last chunk's start asks for a decode worker."""
        entry = self.ledger.entries[lease]
        if progress.phase in (Phase.HANDOFF, Phase.DECODE):
            self._first_token(lease, entry, now_s)
        if progress.phase is Phase.HANDOFF:
            return
        if progress.phase is Phase.DECODE:
            self._decoding(lease, entry, progress.tokens, now_s)
            return
        entry = replace(entry, computed=max(entry.computed, progress.tokens))
        is_last = entry.stage is Stage.PREFILL and progress.last_chunk_started
        if entry.prefill is not None:
            left_ms = entry.work_us_left / 1000 if is_last else 0.0
            self._candidates.ends(entry.prefill, left_ms, now_s)
        if is_last:
            if entry.prefill is not None:
                self.estimates.expects_hit(entry.prefill, entry.hit)
            self.ledger.update(lease, replace(entry, stage=Stage.HANDOFF))
            self._room.add(lease, now_s)
        else:
            self.ledger.update(lease, entry)

    def again(self, lease: int, again: Again, now_s: float) -> None:
        """Open the next attempt; one that is not newer is a late message and changes nothing."""
        entry = self.ledger.entries[lease]
        if again.attempt <= entry.attempt:
            return
        self._room.remove(lease)
        self.demand.closed(lease)
        phase = entry.phase_of(WorkerId(again.failed_worker))
        if again.failed_worker:
            entry = self._failures.take(lease, entry, again, phase, now_s)
        self._let_go(lease, entry)
        entry = replace(
            entry, attempt=again.attempt, decode=None, is_decoding=False, hit=0, work_us=0
        )
        is_ticket_alive = (
            again.have is Have.TICKET
            and entry.prefill is not None
            and self._registry.find(entry.prefill) is not None
            and self.pairs.has_partner(entry.prefill)
        )
        if is_ticket_alive:
            entry = replace(entry, stage=Stage.HANDOFF)
        else:
            entry = replace(entry, stage=Stage.WAITING, prefill=None, computed=0, is_hybrid=False)
        self.ledger.update(lease, entry)
        if self._failures.is_poison(entry, phase):
            self.blocked.add(entry.want.fingerprint, now_s)
            log.error("poison request=%s phase=%s", entry.want.request_id, phase)
            self._room.refuse(lease, POISON, f"its worker died twice at {phase}")
        elif self._is_extra(again) and not self._budget.spend():
            self._room.refuse(lease, "no_capacity", "too many requests are being tried again")
        else:
            self._room.add(lease, now_s)

    def close(self, lease: int) -> None:
        """The lease is over, whyever."""
        self._room.remove(lease)
        self.demand.closed(lease)
        self.chooser.forget_lease(lease)
        entry = self.ledger.entries.get(lease)
        if entry is not None:
            self._let_go(lease, entry)
            if entry.is_decoding:
                half_a_report = 64  # gateways tell every 128 tokens
                new = min(entry.want.max_new, entry.new_tokens + half_a_report)
                self.estimates.ended(entry.want.tenant, entry.want.priority_class, new)
                self._room.forecast.ended(new)
        self.ledger.close(lease)

    def reported(self, record: Record) -> None:
        """A worker's load was heard."""
        join, worker = record.join, record.rank.worker_id
        if join.role is not Role.GATEWAY:
            self.ledger.report(worker, record.load, join.num_blocks)
            self.pairs.heard(record.rank, record.load)
            self.estimates.reported(worker, join.role, join.incarnation, record.load)
            life, now_s = join.incarnation, record.reported_s
            self.demand.reported(worker, join.role, life, record.load, now_s)
            self.chooser.watch_accuracy(worker)

    def announced(self, member_id: str, life: Incarnation, blocks: BlockChanges) -> Missing | None:
        """A member's blocks changed; what it must send first, if something is missing."""
        missing = self.index.announce(member_id, life, blocks)
        if missing is not None:
            log.warning("block changes missing member=%s from=%d", member_id, missing.next_seq)
        return missing

    # What follows.

    def dispatch(self, now_s: float) -> None:
        """Answer everything that can be answered now."""
        self._looked_s = now_s
        for record in self._registry.drop_silent(now_s):
            log.warning("member is silent, dropped member=%s", record.join.member_id)
        self.pairs.expire(now_s)
        self._room.expire(now_s)
        self.prompts.age(now_s)
        self._serve(self.handoffs, now_s)
        num_handoffs = len(self.handoffs)
        is_short = self._serve(self.prompts, now_s) is Why.ROWS
        self.is_export_blocked = len(self.prompts) > 0 and (is_short or num_handoffs > 0)
        is_blocked = self.is_export_blocked
        self.demand.waits(is_blocked=is_blocked, handoffs=num_handoffs, now_s=now_s)
        self._room.tell(now_s)
        self.chooser.end_round()

    def next_wake_s(self) -> float | None:
        """When `dispatch` is due without anything happening."""
        times = [
            self._registry.next_silence_s(),
            self.breakers.next_close_s(self._looked_s),
            self.pairs.next_expiry_s(),
            *self._room.wakes_s(),
        ]
        return min((t for t in times if t is not None), default=None)

    def fleet(self, now_s: float) -> Fleet:
        """Everybody, and whether a request can be served."""
        workers = list(self._candidates.workers())
        path = find_path([self._candidates.of(record, None, now_s) for record in workers])
        reasons: tuple[str, ...] = ()
        if path.namespace is None:
            lacking = (f"{worker}: {why}" for worker, why in sorted(self.pairs.unready.items()))
            reasons = (*self._missing(now_s), *lacking)
        able = [r.join for r in workers if r.join.namespace == path.namespace]
        return Fleet(
            members=tuple(self._member(record, now_s) for record in self._registry.records()),
            ready=path.namespace is not None,
            reasons=reasons,
            queued=len(self.prompts) + len(self.handoffs),
            leases=len(self.ledger.entries),
            model=able[0].model if able else "",
            namespace=path.namespace or b"",
            max_model_len=min((join.max_model_len for join in able), default=0),
            block_tokens=able[0].block_tokens if able else 0,
        )

    # How.

    def _serve(self, queue: Queue, now_s: float) -> Why | None:
        """In the queue's order; only who waits for its very own reasons is looked past.

        Says why the rest must wait, if all of it must.
        """
        passed: set[int] = set()
        self.chooser.begin_round(len(self.prompts))
        while waiting := next((w for w in queue if w.lease not in passed), None):
            entry = self.ledger.entries[waiting.lease]
            outcome = self.chooser.choose(waiting.lease, entry, now_s)
            if isinstance(outcome, Wait) and outcome.why is Why.NOBODY:
                message = outcome.message
                if queue is self.prompts and self.pairs.unready:
                    message = "; ".join(self._missing(now_s)) or "no worker is proven yet"
                self._room.nobody_is_there(queue, message, now_s)
                return outcome.why
            self._room.somebody_is_there(queue)
            if isinstance(outcome, Choice):
                self._room.served(queue, waiting.lease, now_s)
                self._place(waiting.lease, entry, outcome, now_s)
                continue
            passed.add(waiting.lease)
            if outcome.why in (Why.BUSY, Why.ROWS) or len(passed) >= LOOK_PAST:
                return outcome.why
        return None

    def _missing(self, now_s: float) -> tuple[str, ...]:
        """What would make a path of all that are here, were they ready."""
        present = self._candidates.present()
        return find_path([self._candidates.of(record, None, now_s) for record in present]).reasons

    def _place(self, lease: int, entry: Entry, choice: Choice, now_s: float) -> None:
        rank, attempt = choice.rank, entry.attempt
        record = self._registry.find(rank.worker_id)
        assert record is not None, "the policy chose a member"
        if entry.stage is Stage.WAITING:
            entry = _running_on(entry, record.join)
            entry = replace(entry, hit=choice.hit, work_us=round(1000 * choice.work_ms))
            if not self.ledger.standing(rank.worker_id).own.prompts:
                self._candidates.heard(rank.worker_id, now_s)
            self.index.predict(rank.worker_id, entry.keys, now_s)
            if attempt == entry.want.attempt:
                expected_s = now_s - entry.arrived_s + choice.first_ms / 1000
                self.demand.promised(lease, entry.arrived_s, expected_s)
        is_handoff, request_id = entry.stage is Stage.HANDOFF, entry.want.request_id
        self.explained.placed(request_id, choice, is_handoff=is_handoff, now_s=now_s)
        answer: Answer
        if is_handoff:
            entry = replace(entry, stage=Stage.DECODE, decode=rank.worker_id)
            answer = DecodeAt(rank, choice.reasons, attempt)
        elif choice.role is not Role.PREFILL:
            entry = replace(
                entry, stage=Stage.DECODE, decode=rank.worker_id, is_hybrid=True, prompted=None
            )
            answer = SkipTo(rank, choice.reasons, attempt)
        else:
            entry = replace(
                entry, stage=Stage.PREFILL, prefill=rank.worker_id, prompted=rank.worker_id
            )
            answer = PrefillAt(rank, choice.reasons, attempt)
        self.ledger.update(lease, entry)
        self.ledger.assigned(rank.worker_id, entry.blocks)
        self.breakers.placed(rank.worker_id, lease)
        self._answer(lease, answer)

    def _resumed(self, entry: Entry) -> Entry:
        resume = entry.want.resume
        assert resume is not None
        is_decoding = resume.decode_worker is not None and resume.tokens > 0
        entry = replace(
            entry,
            stage=Stage.PREFILL if resume.decode_worker is None else Stage.DECODE,
            prefill=None if is_decoding else resume.prefill_worker,
            prompted=resume.prefill_worker,
            decode=resume.decode_worker,
            is_decoding=is_decoding,
            is_hybrid=resume.decode_worker is not None and resume.prefill_worker is None,
        )
        for worker in (resume.prefill_worker, resume.decode_worker):
            if worker and (record := self._registry.find(worker)) is not None:
                return _running_on(entry, record.join)
        return entry

    # What became of a placement.

    def _first_token(self, lease: int, entry: Entry, now_s: float) -> None:
        target_s = class_of(entry.want.priority_class).first_token_target_s
        took_of_expected = self.demand.first_token(lease, target_s, now_s)
        if took_of_expected is not None:
            self.on_first_token(took_of_expected)

    def _decoding(self, lease: int, entry: Entry, tokens: int, now_s: float) -> None:
        for worker in (entry.prefill, entry.decode):
            if worker is not None:
                self.breakers.succeeded(worker)
        if entry.prefill is not None:
            self._candidates.ended(entry.prefill, now_s)
            self._failures.handed_over(entry.prefill, entry.decode, now_s)
        if entry.is_hybrid and not entry.is_decoding and entry.decode is not None:
            self.estimates.expects_hit(entry.decode, entry.hit)
            self._candidates.heard(entry.decode, now_s)
        released = None if entry.decode is not None else entry.prefill
        self.ledger.update(
            lease, replace(entry, prefill=released, is_decoding=True, new_tokens=tokens)
        )

    def _answer(self, lease: int, answer: Answer) -> None:
        self.outbox.append((lease, answer))

    def _is_extra(self, again: Again) -> bool:
        """Whether a prompt is computed again because of a failure, before anything was said."""
        return again.have is Have.NOTHING and again.code not in BUSY_CODES

    def _let_go(self, lease: int, entry: Entry) -> None:
        for worker in (entry.prefill, entry.decode):
            if worker is not None:
                self.breakers.ended(worker, lease)

    def _member_changed(self, member_id: str, record: Record | None) -> None:
        if record is None:
            worker = WorkerId(member_id)
            self.ledger.forget(worker)
            self.breakers.forget(worker)
            self.chooser.forget(worker)
            self.demand.forget(worker)
            self.pairs.left(worker)
            return
        self.pairs.joined(record.rank, record.join)
        for lease, entry in list(self.ledger.entries.items()):
            # Resumed before its worker was back: only now is it known what the worker runs.
            if not entry.namespace and member_id in (entry.prefill, entry.decode):
                self.ledger.update(lease, _running_on(entry, record.join))

    def _member(self, record: Record, now_s: float) -> Member:
        worker = record.rank.worker_id
        own = self.ledger.standing(worker).own
        lack = "draining" if record.load.draining else self.pairs.unready.get(worker, "")
        return Member(
            join=record.join,
            load=record.load,
            ready=not lack,
            not_ready_reason=lack,
            leases=own.held + own.rows,
            silent_s=max(0.0, now_s - record.reported_s),
        )


def _running_on(entry: Entry, join: Join) -> Entry:
    return replace(entry, namespace=join.namespace, block_tokens=max(1, join.block_tokens))
