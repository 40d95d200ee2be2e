"""Every lease from Want to its end: joins queue, ledger, registry and policy into one state.

Pure but for its own state: time is an argument, answers collect in an outbox. `service.py` feeds
it from streams, sends what comes out and calls `dispatch` at `next_wake_s`.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

from diptych.core.ids import WorkerId
from diptych.core.phases import Phase, Role
from diptych.router.ledger import Entry, Ledger, Stage
from diptych.router.messages import (
    Again,
    DecodeAt,
    Fleet,
    Have,
    Join,
    Member,
    PrefillAt,
    Progress,
    Queued,
    RefusedBy,
    SkipTo,
    Want,
)
from diptych.router.policy import (
    Candidate,
    Choice,
    Wait,
    Why,
    choose_decode,
    choose_prefill,
    find_path,
)
from diptych.router.queue import Queue, Waiting
from diptych.router.registry import Record, StreamRegistry

log = logging.getLogger(__name__)

QUEUE_LIMIT = 1024
NOBODY_WAIT_S = 8.0  # without any worker of a role: longer than a restart, shorter than patience
HANDOFF_WAIT_S = 20.0  # for a decode row; prefill's lease on the KV is 30 s
LOOK_PAST = 16  # requests that wait for somebody else than the rest does, per dispatch
RETRY_WAIT_S = 10.0  # at least, however long ago the first attempt came
SUSPECT_S = 2.0  # a worker that failed one request is avoided by all

Answer = Queued | PrefillAt | SkipTo | DecodeAt | RefusedBy


class Dispatcher:
    """The router's state and its only decisions."""

    def __init__(self, registry: StreamRegistry, *, queue_limit: int = QUEUE_LIMIT) -> None:
        self.ledger = Ledger()
        self.prompts = Queue(queue_limit)
        self.handoffs = Queue(queue_limit)
        self.outbox: list[tuple[int, Answer]] = []
        self._registry = registry
        self._suspects: dict[WorkerId, float] = {}
        self._untold: list[int] = []  # leases that do not know yet that they wait
        self._nobody: dict[Queue, float] = {}  # since when a queue has no worker at all
        self._candidates: list[Candidate] | None = None  # while one dispatch changes nothing
        self._leases = 0
        self._placed_s: float | None = None
        self._interval_s = 0.0  # between prompts leaving a non-empty queue, smoothed
        registry.watch(self._member_changed)

    # What happens.

    def open(self, want: Want, now_s: float) -> int:
        """Begin a lease; the number names it from now on."""
        self._leases += 1
        lease = self._leases
        entry = Entry(want=want, attempt=want.attempt, arrived_s=now_s)
        if want.resume is None:
            self.ledger.open(lease, entry)
            self._enqueue(lease, now_s)
        else:
            self.ledger.open(lease, self._resumed(entry))
        return lease

    def progress(self, lease: int, progress: Progress, now_s: float) -> None:
        """Note how far an attempt is; the last chunk's start asks for a decode worker."""
        entry = self.ledger.entries[lease]
        if progress.phase is Phase.DECODE:
            released = None if entry.decode is not None else entry.prefill
            self.ledger.update(lease, replace(entry, prefill=released, is_decoding=True))
            return
        entry = replace(entry, computed=max(entry.computed, progress.tokens))
        if entry.stage is Stage.PREFILL and progress.last_chunk_started:
            self.ledger.update(lease, replace(entry, stage=Stage.HANDOFF))
            self._enqueue(lease, now_s)
        else:
            self.ledger.update(lease, entry)

    def again(self, lease: int, again: Again, now_s: float) -> None:
        """Open the next attempt; one that is not newer is a late message and changes nothing."""
        entry = self.ledger.entries[lease]
        if again.attempt <= entry.attempt:
            return
        self.prompts.remove(lease)
        self.handoffs.remove(lease)
        if again.failed_worker:
            failed = WorkerId(again.failed_worker)
            self._suspects = {
                worker: failed_s
                for worker, failed_s in self._suspects.items()
                if now_s < failed_s + SUSPECT_S
            } | {failed: now_s}
            entry = replace(entry, avoid={**entry.avoid, failed: now_s})
            log.info(
                "attempt failed request=%s attempt=%d worker=%s have=%s why=%s",
                entry.want.request_id,
                entry.attempt,
                failed,
                again.have.name.lower(),
                again.why,
            )
        entry = replace(entry, attempt=again.attempt, decode=None, is_decoding=False)
        is_ticket_alive = (
            again.have is Have.TICKET
            and entry.prefill is not None
            and self._registry.find(entry.prefill) is not None
        )
        if is_ticket_alive:
            entry = replace(entry, stage=Stage.HANDOFF)
        else:
            entry = replace(entry, stage=Stage.WAITING, prefill=None, computed=0, is_hybrid=False)
        self.ledger.update(lease, entry)
        self._enqueue(lease, now_s)

    def close(self, lease: int) -> None:
        """The lease's stream ended, whyever."""
        self.prompts.remove(lease)
        self.handoffs.remove(lease)
        self.ledger.close(lease)

    def reported(self, record: Record) -> None:
        """A worker's load was heard."""
        if record.join.role is not Role.GATEWAY:
            self.ledger.report(record.rank.worker_id, record.load, record.join.num_blocks)

    # What follows.

    def dispatch(self, now_s: float) -> None:
        """Answer everything that can be answered now."""
        for record in self._registry.drop_silent(now_s):
            log.warning("member is silent, dropped member=%s", record.join.member_id)
        self._expire(now_s)
        self._candidates = None
        self._serve(self.handoffs, now_s)
        self._serve(self.prompts, now_s)
        self._tell_waiting()

    def next_wake_s(self) -> float | None:
        """When `dispatch` is due without anything happening."""
        times = [
            self._registry.next_silence_s(),
            self.prompts.next_deadline_s(),
            self.handoffs.next_deadline_s(),
        ]
        for queue, since_s in self._nobody.items():
            first = next(iter(queue), None)
            if first is not None:
                times.append(max(first.arrived_s, since_s) + NOBODY_WAIT_S)
        return min((t for t in times if t is not None), default=None)

    def fleet(self, now_s: float) -> Fleet:
        """Everybody, and whether a request can be served."""
        path = find_path([self._candidate(r, None, now_s) for r in self._workers()])
        able = [r.join for r in self._workers() if r.join.namespace == path.namespace]
        return Fleet(
            members=tuple(self._member(record, now_s) for record in self._registry.records()),
            ready=path.namespace is not None,
            reasons=path.reasons,
            queued=len(self.prompts) + len(self.handoffs),
            leases=len(self.ledger.entries),
            model=able[0].model if able else "",
            namespace=path.namespace or b"",
            max_model_len=min((join.max_model_len for join in able), default=0),
            block_tokens=able[0].block_tokens if able else 0,
        )

    # How.

    def _enqueue(self, lease: int, now_s: float) -> None:
        entry = self.ledger.entries[lease]
        if entry.stage is Stage.HANDOFF:
            # Bounded by prefill's lease, not by the client's patience in the queue.
            self.handoffs.push(Waiting(now_s, lease, now_s + HANDOFF_WAIT_S))
        elif self.prompts.is_full:
            self._refuse(lease, "no_capacity", f"{len(self.prompts)} requests wait already")
        else:
            patience_s = entry.want.deadline_s
            deadline_s = max(entry.arrived_s + patience_s, now_s + min(patience_s, RETRY_WAIT_S))
            self.prompts.push(Waiting(entry.arrived_s, lease, deadline_s))
            self._untold.append(lease)

    def _serve(self, queue: Queue, now_s: float) -> None:
        """First come, first served; only who waits for its very own reasons is looked past."""
        outcome: Choice | Wait | None = None
        patience = LOOK_PAST
        for waiting in queue:
            if not (isinstance(outcome, Wait) and outcome.why is Why.NOBODY):
                outcome = self._choose(waiting, now_s)
            self._settle(waiting, outcome, now_s)
            patience -= isinstance(outcome, Wait) and outcome.why is Why.FAILED
            if patience == 0 or (isinstance(outcome, Wait) and outcome.why is Why.BUSY):
                return

    def _choose(self, waiting: Waiting, now_s: float) -> Choice | Wait:
        entry = self.ledger.entries[waiting.lease]
        want = entry.want
        candidates = self._all_candidates(entry, now_s)
        if entry.stage is Stage.HANDOFF:
            return choose_decode(candidates, entry.namespace, want.prompt_len + want.max_new - 1)
        return choose_prefill(candidates, want.prompt_len, want.max_new, self.ledger.pending)

    def _settle(self, waiting: Waiting, outcome: Choice | Wait, now_s: float) -> None:
        lease = waiting.lease
        entry = self.ledger.entries[lease]
        queue = self.handoffs if entry.stage is Stage.HANDOFF else self.prompts
        if isinstance(outcome, Wait) and outcome.why is Why.NOBODY:
            since_s = max(waiting.arrived_s, self._nobody.setdefault(queue, now_s))
            if now_s >= since_s + NOBODY_WAIT_S:
                queue.remove(lease)
                self._refuse(lease, "no_capacity", outcome.message)
            return
        self._nobody.pop(queue, None)
        if isinstance(outcome, Choice):
            queue.remove(lease)
            if entry.stage is Stage.WAITING:
                self._measure(now_s)
            self._place(lease, entry, outcome)

    def _place(self, lease: int, entry: Entry, choice: Choice) -> None:
        rank, attempt = choice.rank, entry.attempt
        record = self._registry.find(rank.worker_id)
        assert record is not None, "the policy chose a member"
        if entry.stage is Stage.WAITING:
            entry = _running_on(entry, record.join)
        answer: Answer
        if entry.stage is Stage.HANDOFF:
            entry = replace(entry, stage=Stage.DECODE, decode=rank.worker_id)
            answer = DecodeAt(rank, choice.reasons, attempt)
        elif choice.role is Role.HYBRID:
            entry = replace(entry, stage=Stage.DECODE, decode=rank.worker_id, is_hybrid=True)
            answer = SkipTo(rank, choice.reasons, attempt)
        else:
            entry = replace(entry, stage=Stage.PREFILL, prefill=rank.worker_id)
            answer = PrefillAt(rank, choice.reasons, attempt)
        self._candidates = None
        self.ledger.update(lease, entry)
        self.ledger.assigned(rank.worker_id, entry.blocks)
        self.outbox.append((lease, answer))

    def _resumed(self, entry: Entry) -> Entry:
        resume = entry.want.resume
        assert resume is not None
        is_decoding = resume.decode_worker is not None and resume.tokens > 0
        entry = replace(
            entry,
            stage=Stage.PREFILL if resume.decode_worker is None else Stage.DECODE,
            prefill=None if is_decoding else resume.prefill_worker,
            decode=resume.decode_worker,
            is_decoding=is_decoding,
            is_hybrid=resume.decode_worker is not None and resume.prefill_worker is None,
        )
        for worker in (resume.prefill_worker, resume.decode_worker):
            if worker and (record := self._registry.find(worker)) is not None:
                return _running_on(entry, record.join)
        return entry

    def _expire(self, now_s: float) -> None:
        for waiting in self.prompts.expire(now_s):
            waited_s = now_s - waiting.arrived_s
            self._refuse(waiting.lease, "queue_timeout", f"no worker was free for {waited_s:.1f} s")
        for waiting in self.handoffs.expire(now_s):
            self._refuse(
                waiting.lease, "no_capacity", f"no decode worker had room for {HANDOFF_WAIT_S:g} s"
            )

    def _refuse(self, lease: int, code: str, message: str) -> None:
        entry = self.ledger.entries[lease]
        self.outbox.append((lease, RefusedBy(code, message, self._retry_after_s(), entry.attempt)))

    def _retry_after_s(self) -> float:
        return min(30.0, max(1.0, len(self.prompts) * self._interval_s))

    def _measure(self, now_s: float) -> None:
        if self._placed_s is not None and len(self.prompts):
            self._interval_s += 0.2 * (now_s - self._placed_s - self._interval_s)
        self._placed_s = now_s

    def _tell_waiting(self) -> None:
        for lease in self._untold:
            if lease in self.prompts:
                ahead = self.prompts.ahead_of(lease)
                predicted_s = (ahead + 1) * self._interval_s
                attempt = self.ledger.entries[lease].attempt
                self.outbox.append((lease, Queued(predicted_s, ahead, attempt)))
        self._untold.clear()

    def _member_changed(self, member_id: str, record: Record | None) -> None:
        if record is None:
            self.ledger.forget(WorkerId(member_id))
            return
        for lease, entry in list(self.ledger.entries.items()):
            # Resumed before its worker was back: only now is it known what the worker runs.
            if not entry.namespace and member_id in (entry.prefill, entry.decode):
                self.ledger.update(lease, _running_on(entry, record.join))

    def _workers(self) -> Iterator[Record]:
        for record in self._registry.records():
            if record.join.role is not Role.GATEWAY and not record.load.draining:
                yield record

    def _all_candidates(self, entry: Entry, now_s: float) -> list[Candidate]:
        if entry.avoid:
            return [self._candidate(record, entry, now_s) for record in self._workers()]
        if self._candidates is None:
            self._candidates = [self._candidate(r, None, now_s) for r in self._workers()]
        return self._candidates

    def _candidate(self, record: Record, entry: Entry | None, now_s: float) -> Candidate:
        join, rank = record.join, record.rank
        standing = self.ledger.standing(rank.worker_id)
        suspected_s = self._suspects.get(rank.worker_id)
        failed_s = entry.avoid.get(rank.worker_id) if entry else None
        if failed_s is None and suspected_s is not None and now_s < suspected_s + SUSPECT_S:
            failed_s = suspected_s
        return Candidate(
            rank=rank,
            role=join.role,
            namespace=join.namespace,
            block_tokens=join.block_tokens,
            num_slots=join.num_slots,
            num_blocks=join.num_blocks,
            prompts=standing.prompts,
            foreign_prompts=standing.foreign_prompts,
            prompt_tokens=standing.own.prompt_tokens,
            rows=standing.rows,
            blocks=standing.blocks,
            free_slots=record.load.free_slots - standing.slots_given,
            free_blocks=record.load.free_blocks - standing.blocks_given,
            last_assigned=standing.last_assigned,
            has_failed=failed_s is not None and record.joined_s <= failed_s,
            is_back=failed_s is None or record.reported_s > failed_s,
        )

    def _member(self, record: Record, now_s: float) -> Member:
        own = self.ledger.standing(WorkerId(record.join.member_id)).own
        return Member(
            join=record.join,
            load=record.load,
            ready=not record.load.draining,
            not_ready_reason="draining" if record.load.draining else "",
            leases=own.held + own.rows,
            silent_s=max(0.0, now_s - record.reported_s),
        )


def _running_on(entry: Entry, join: Join) -> Entry:
    return replace(entry, namespace=join.namespace, block_tokens=max(1, join.block_tokens))
