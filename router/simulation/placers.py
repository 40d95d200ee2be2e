"""Who places the requests of a simulation: the router's own code, and what is common elsewhere."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from diptych.core.ids import Incarnation
from diptych.core.phases import Phase, Role
from diptych.router.dispatcher import Dispatcher
from diptych.router.messages import (
    Answer,
    DecodeAt,
    Join,
    Load,
    PrefillAt,
    Progress,
    Queued,
    RefusedBy,
    SkipTo,
    Want,
)
from diptych.router.registry import Record, StreamRegistry
from diptych.router.simulation.clock import Clock
from diptych.router.simulation.workers import DecodeWorker, Job, PrefillWorker

REPORT_S = 0.1
MOVE_S = 0.01  # of a prompt's KV
PREFIX_BLOCKS = 4  # that prefix hashing looks at
LOAD_FACTOR = 1.25  # of the mean load, beyond which it goes on to the next


class Placer(Protocol):
    """Takes requests as they arrive; the jobs tell how they fare."""

    def arrive(self, job: Job) -> None: ...


class Rival:
    """Binds at once: a rule for prompts, fewest rows for outputs."""

    def __init__(
        self,
        clock: Clock,
        prefill: Sequence[PrefillWorker],
        decode: Sequence[DecodeWorker],
        rule: Callable[[Job, Sequence[PrefillWorker]], PrefillWorker],
    ) -> None:
        self._clock = clock
        self._prefill = prefill
        self._decode = decode
        self._rule = rule

    def arrive(self, job: Job) -> None:
        def move() -> None:
            worker = min(self._decode, key=lambda d: d.num_jobs)
            self._clock.at(self._clock.now_s + MOVE_S, lambda: worker.submit(job))

        job.on_first_token = move
        self._rule(job, self._prefill).submit(job)


def round_robin(job: Job, workers: Sequence[PrefillWorker]) -> PrefillWorker:
    return workers[job.number % len(workers)]


def least_request(job: Job, workers: Sequence[PrefillWorker]) -> PrefillWorker:
    start = job.number % len(workers)  # ties take turns
    turned = [*workers[start:], *workers[:start]]
    return min(turned, key=lambda worker: worker.num_jobs)


def prefix_hash(job: Job, workers: Sequence[PrefillWorker]) -> PrefillWorker:
    """Consistent hashing of the beginning, with bounded loads."""
    prefix = b"".join(job.blocks[:PREFIX_BLOCKS]) or job.number.to_bytes(8, "little")

    def rank(worker: PrefillWorker) -> bytes:
        return hashlib.blake2b(prefix + worker.name.encode(), digest_size=8).digest()

    mean = sum(worker.num_jobs for worker in workers) / len(workers)
    ordered = sorted(workers, key=rank)
    return next((w for w in ordered if w.num_jobs + 1 <= LOAD_FACTOR * (mean + 1)), ordered[0])


class Ours:
    """The router's dispatcher, fed as its service feeds it."""

    def __init__(
        self,
        clock: Clock,
        prefill: Sequence[PrefillWorker],
        decode: Sequence[DecodeWorker],
    ) -> None:
        self._clock = clock
        self._registry = StreamRegistry()
        self.dispatcher = Dispatcher(self._registry, queue_limit=1_000_000)
        self._prefill = {worker.name: worker for worker in prefill}
        self._decode = {worker.name: worker for worker in decode}
        self._jobs: dict[int, Job] = {}
        self._targets: dict[int, DecodeWorker] = {}
        self._ready: set[int] = set()  # leases whose prompt is computed
        self._wake_s = float("inf")
        for number, worker in enumerate(prefill):
            self._join(number, worker, Role.PREFILL, 1024)
        for number, other in enumerate(decode, len(prefill)):
            self._join(number, other, Role.DECODE, other.num_slots)

    def arrive(self, job: Job) -> None:
        want = Want(
            str(job.number), job.prompt_len, max(1, job.output_len), 600.0, hashes=job.blocks
        )
        lease = self.dispatcher.open(want, self._clock.now_s)
        self._jobs[lease] = job
        job.on_progress = lambda tokens, is_last: self._progressed(lease, tokens, is_last)
        job.on_first_token = lambda: self._computed(lease)
        self._pump()

    def _join(
        self, number: int, worker: PrefillWorker | DecodeWorker, role: Role, num_slots: int
    ) -> None:
        block_tokens = worker.block_tokens if isinstance(worker, PrefillWorker) else 512
        join = Join(
            worker.name, role, worker.name, Incarnation(1), b"n", block_tokens=block_tokens,
            num_blocks=worker.num_blocks, num_slots=num_slots,
        )  # fmt: skip
        record = Record(join, worker.load(), number, 0.0, 0.0)
        self._registry.announce(record)
        phase_s = REPORT_S * (number % 16) / 16
        self._clock.at(phase_s, lambda: self._report(record, worker, None))

    def _report(
        self, record: Record, worker: PrefillWorker | DecodeWorker, before: Load | None
    ) -> None:
        now_s, name = self._clock.now_s, worker.name
        load = worker.load()
        if load != before or now_s % 1.0 < REPORT_S:
            self._registry.report(name, record.stream, load, now_s)
            self.dispatcher.reported(replace(record, load=load, reported_s=now_s))
            if isinstance(worker, PrefillWorker) and (changes := worker.log.take()) is not None:
                assert self.dispatcher.announced(name, record.join.incarnation, changes) is None
            self._pump()
        self._clock.at(now_s + REPORT_S, lambda: self._report(record, worker, load))

    def _progressed(self, lease: int, tokens: int, is_last: bool) -> None:
        progress = Progress(Phase.PREFILL, tokens, is_last)
        self._clock.at(self._clock.now_s, lambda: self._tell(lease, progress))

    def _tell(self, lease: int, progress: Progress) -> None:
        if lease in self.dispatcher.ledger.entries:
            self.dispatcher.progress(lease, progress, self._clock.now_s)
            self._pump()

    def _computed(self, lease: int) -> None:
        self._ready.add(lease)
        self._start(lease)

    def _start(self, lease: int) -> None:
        worker = self._targets.get(lease)
        if worker is None or lease not in self._ready:
            return
        job = self._jobs[lease]
        job.on_end = lambda: self._end(lease)

        def begin() -> None:
            worker.submit(job)
            self._tell(lease, Progress(Phase.DECODE, 1))

        self._clock.at(self._clock.now_s + MOVE_S, begin)

    def _end(self, lease: int) -> None:
        job = self._jobs.pop(lease)
        self._targets.pop(lease, None)
        self._ready.discard(lease)
        if not job.is_refused:
            told = job.output_len // 128 * 128
            self.dispatcher.progress(lease, Progress(Phase.DECODE, told), self._clock.now_s)
        self.dispatcher.close(lease)
        self._pump()

    def _pump(self) -> None:
        now_s = self._clock.now_s
        self.dispatcher.dispatch(now_s)
        outbox = self.dispatcher.outbox
        answers = list(outbox)
        outbox.clear()
        for lease, answer in answers:
            self._answered(lease, answer)
        wake_s = self.dispatcher.next_wake_s()
        if wake_s is not None and (wake_s < self._wake_s or self._wake_s <= now_s):
            self._wake_s = wake_s
            self._clock.at(wake_s, self._pump)

    def _answered(self, lease: int, answer: Answer) -> None:
        job = self._jobs[lease]
        match answer:
            case PrefillAt(rank):
                self._prefill[rank.worker_id].submit(job)
            case DecodeAt(rank):
                self._targets[lease] = self._decode[rank.worker_id]
                self._start(lease)
            case RefusedBy():
                job.is_refused = True
                self._end(lease)
            case Queued() | SkipTo():
                assert isinstance(answer, Queued), "no simulated worker does both"
