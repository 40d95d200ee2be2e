"""Asks the policy: gathers what is known of a request and of the workers, and records decisions."""

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf

from diptych.core.ids import WorkerId
from diptych.core.phases import Role
from diptych.router.admission import Breakers, class_of
from diptych.router.candidates import Candidates
from diptych.router.decisions import Decision
from diptych.router.estimates import Estimates
from diptych.router.forecast import Room
from diptych.router.ledger import Entry, Ledger, Stage
from diptych.router.pairs import Pairs
from diptych.router.policy import Ask, Choice, Wait, Why, choose_decode, choose_prefill
from diptych.router.prefix_index import NOTHING, Overlap, PrefixIndex
from diptych.router.registry import StreamRegistry

log = logging.getLogger(__name__)

PROMISES = 8  # prompts that wait for a busy worker while others have room


class Chooser:
    """Everything a choice depends on, and the choice."""

    def __init__(
        self,
        registry: StreamRegistry,
        ledger: Ledger,
        breakers: Breakers,
        pairs: Pairs,
        on_decision: Callable[[Decision], None] | None,
        seed: int = 0,
    ) -> None:
        self.index = PrefixIndex()
        self.estimates = Estimates()
        self.candidates = Candidates(registry, ledger, self.estimates, breakers, pairs)
        self.is_stale = False  # another router was not heard lately
        self._registry = registry
        self._ledger = ledger
        self._on_decision = on_decision
        self._distrusted: set[WorkerId] = set()  # by the index's own measure; told once
        self._overlaps: dict[int, Overlap] = {}  # of leases that came in since the last round
        self._promised_ms: dict[str, float] = {}  # in this round, to those who wait for a worker
        self._promises = 0
        self._num_waiting = 0
        self._draws = seed  # routers of one fleet must not draw alike

    def arrived(self, lease: int, entry: Entry, now_s: float) -> None:
        """Look up who holds a new request's blocks, for its cost and its first choice."""
        self._overlaps[lease] = self.index.lookup(entry.keys, now_s)

    def begin_round(self, num_waiting: int) -> None:
        """Choices for a queue begin: nothing is promised yet."""
        self._promised_ms, self._promises = {}, 0
        self._num_waiting = num_waiting

    def end_round(self) -> None:
        """Time will have passed before the next choice."""
        self._overlaps.clear()

    def forget_lease(self, lease: int) -> None:
        self._overlaps.pop(lease, None)

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone."""
        self.index.forget(worker)
        self.estimates.forget(worker)
        self.candidates.forget(worker)

    def given_ms(self, now_s: float) -> list[float]:
        """What each worker that computes prompts has to do."""
        return [
            self.candidates.queue_ms(record.rank.worker_id, now_s)
            for record in self.candidates.workers()
            if record.join.role is not Role.DECODE
        ]

    def room(self, now_s: float) -> Room:
        """What decode workers have free and in use."""
        decoders = [
            self.candidates.of(record, None, now_s)
            for record in self.candidates.workers()
            if record.join.role is not Role.PREFILL
        ]
        if not decoders or not all(d.num_slots and d.num_blocks for d in decoders):
            return Room()
        return Room(
            sum(d.decode_slots_left for d in decoders),
            sum(d.rows for d in decoders),
            sum(max(0, d.num_blocks - d.blocks) for d in decoders),
            sum(d.blocks for d in decoders),
            sum(d.costs.gap_ms(d.rows, d.context) for d in decoders) / len(decoders),
            max(1, decoders[0].block_tokens),
        )

    def cost_ms(self, lease: int, entry: Entry) -> float:
        """What computing a prompt is expected to take wherever most of it is cached."""
        overlap = self._overlaps.get(lease, NOTHING)
        most = max(overlap.shared, *overlap.device.values(), 0.0)
        for record in self.candidates.workers():
            if record.join.role is not Role.DECODE:
                hit = min(most * record.join.block_tokens, entry.want.prompt_len - 1.0)
                costs = self.estimates.costs(record.rank.worker_id, record.join.role)
                return costs.prompt_ms(entry.want.prompt_len - hit, entry.want.prompt_len)
        return float(entry.want.prompt_len)

    def choose(self, lease: int, entry: Entry, now_s: float) -> Choice | Wait:
        """A worker for whatever the request needs next."""
        candidates = self.candidates.all(entry, now_s)
        ask = self._ask(lease, entry, now_s)
        if entry.stage is Stage.HANDOFF:
            outcome = choose_decode(candidates, entry.namespace, ask)
        else:
            outcome = choose_prefill(candidates, ask, self._ledger.pending)
        if isinstance(outcome, Wait) and outcome.why is Why.WORTH_IT:
            promised_ms = self._promised_ms.get(outcome.worker, 0.0) + outcome.work_ms
            self._promised_ms[outcome.worker] = promised_ms
            self._promises += 1
        if self._on_decision is not None:
            names = {c.namespace for c in candidates}
            self._on_decision(
                Decision(
                    entry.want.request_id,
                    entry.attempt,
                    ask,
                    tuple(candidates),
                    {name: replace(self._ledger.pending(name)) for name in names},
                    entry.namespace if entry.stage is Stage.HANDOFF else None,
                    outcome,
                )
            )
        return outcome

    def _ask(self, lease: int, entry: Entry, now_s: float) -> Ask:
        want = entry.want
        overlap = self._overlaps.get(lease) or self.index.lookup(entry.keys, now_s)
        held: dict[str, float] = {}
        grain = 0
        for member, blocks in overlap.device.items():
            record = self._registry.find(member)
            if record is not None and self.estimates.is_trusted(WorkerId(member)):
                grain = record.join.block_tokens
                held[member] = blocks * grain
        if overlap.shared and not grain:
            grain = next((r.join.block_tokens for r in self.candidates.workers()), 0)
        self._draws += 1
        # Who lost a worker has no time for a pace: better slower rows than one that fails.
        pace_ms = inf if entry.was_let_down else class_of(want.priority_class).gap_target_ms
        return Ask(
            prompt_len=want.prompt_len,
            max_new=want.max_new,
            expected_new=min(
                want.max_new, self.estimates.expected_new(want.tenant, want.priority_class)
            ),
            gap_target_ms=pace_ms,
            first_block=entry.keys[0] if entry.keys else 0,
            shared=overlap.shared * grain,
            on_disk=overlap.on_disk * grain,
            held=held,
            waiting=self._num_waiting,
            promised_ms=dict(self._promised_ms),
            may_wait=self._promises < PROMISES,
            holder=(entry.prefill or "") if entry.stage is Stage.HANDOFF else "",
            draw=_mix(self._draws),
            is_blind=self._registry.is_blind,
            is_stale=self.is_stale,
        )

    def watch_accuracy(self, worker: WorkerId) -> None:
        """Tell once when the index is wrong about a worker."""
        if self.estimates.is_trusted(worker):
            self._distrusted.discard(worker)
        elif worker not in self._distrusted:
            self._distrusted.add(worker)
            log.warning(
                "index is wrong about a worker, its blocks do not count worker=%s accuracy=%.2f",
                worker,
                self.estimates.accuracy(worker) or 0.0,
            )

    def load_only(self) -> list[str]:
        """Workers that announce no blocks: only their load counts."""
        known = set(self.index.holders())
        names = (record.join.member_id for record in self.candidates.workers())
        return [name for name in names if name not in known]

    def accuracies(self) -> list[tuple[str, float]]:
        """Of the index, by worker, where it is known."""
        names = (record.rank.worker_id for record in self.candidates.workers())
        found = ((name, self.estimates.accuracy(name)) for name in names)
        return [(name, accuracy) for name, accuracy in found if accuracy is not None]


def _mix(number: int) -> int:
    """64 bits that look random (splitmix64's finaliser)."""
    z = number * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return z ^ z >> 31
