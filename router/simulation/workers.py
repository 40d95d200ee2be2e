"""Workers of a simulated fleet: how long they take, what they cache, what they report."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from diptych.core.ids import BlockHash
from diptych.router.costs import Costs
from diptych.router.messages import BlockChanges, Load
from diptych.router.simulation.clock import Clock

CHUNK_TOKENS = 4096


@dataclass(slots=True, eq=False)
class Job:
    """A request of a trace, and what became of it."""

    number: int
    at_s: float
    prompt_len: int
    output_len: int
    blocks: tuple[BlockHash, ...] = ()
    first_token_s: float | None = None
    cached: int = 0
    is_refused: bool = False
    on_progress: Callable[[int, bool], None] = lambda tokens, is_last: None
    on_first_token: Callable[[], None] = lambda: None
    on_end: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Log:
    """Changes of a cache that were not announced yet."""

    first_seq: int = 0
    hashes: list[BlockHash] = field(default_factory=list)
    stored: list[bool] = field(default_factory=list)

    def add(self, block: BlockHash, is_stored: bool) -> None:
        self.hashes.append(block)
        self.stored.append(is_stored)

    def take(self) -> BlockChanges | None:
        if not self.hashes:
            return None
        taken = BlockChanges(self.first_seq, tuple(self.hashes), tuple(self.stored))
        self.first_seq += len(self.hashes)
        self.hashes, self.stored = [], []
        return taken


class PrefillWorker:
    """One prompt after another, chunk by chunk, less the prefix that its LRU cache holds."""

    def __init__(
        self, name: str, clock: Clock, costs: Costs, *, num_blocks: int, block_tokens: int
    ) -> None:
        self.name = name
        self.clock = clock
        self.costs = costs
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.computed_tokens = 0
        self.busy_us = self.steps = self.rows = self.pairs = 0
        self.query_tokens = self.hit_tokens = 0
        self.log = _Log()
        self._cache: OrderedDict[BlockHash, None] = OrderedDict()
        self._queue: deque[Job] = deque()
        self._is_busy = False

    @property
    def num_jobs(self) -> int:
        return len(self._queue) + self._is_busy

    def submit(self, job: Job) -> None:
        self._queue.append(job)
        if not self._is_busy:
            self._next()

    def load(self) -> Load:
        return Load(
            running=int(self._is_busy),
            waiting=len(self._queue),
            free_blocks=self.num_blocks,
            free_slots=1024 - self.num_jobs,
            query_tokens_total=self.query_tokens,
            hit_tokens_total=self.hit_tokens,
            busy_us_total=self.busy_us,
            steps_total=self.steps,
            prompt_rows_total=self.rows,
            prompt_pairs_total=self.pairs,
        )

    def _next(self) -> None:
        if not self._queue:
            return
        self._is_busy = True
        job = self._queue.popleft()
        hit = 0
        for block in job.blocks:
            if block not in self._cache:
                break
            self._cache.move_to_end(block)
            hit += 1
        job.cached = min(hit * self.block_tokens, job.prompt_len - 1)
        self.query_tokens += job.prompt_len
        self.hit_tokens += job.cached
        self._chunk(job, job.cached)

    def _chunk(self, job: Job, start: int) -> None:
        end = min(start + CHUNK_TOKENS, job.prompt_len)
        count = end - start
        costs = self.costs
        pairs = count * (start + count // 2)
        took_ms = costs.step_ms + costs.token_ms * count + costs.pair_ms * pairs
        is_last = end == job.prompt_len
        job.on_progress(start, is_last)

        def done() -> None:
            self.busy_us += round(took_ms * 1000)
            self.steps += 1
            self.rows += count
            self.pairs += pairs
            self.computed_tokens += count
            if is_last:
                self._publish(job)
                self._is_busy = False
                job.first_token_s = self.clock.now_s
                job.on_first_token()
                self._next()
            else:
                self._chunk(job, end)

        self.clock.at(self.clock.now_s + took_ms / 1000, done)

    def _publish(self, job: Job) -> None:
        for block in job.blocks:
            if block not in self._cache:
                self.log.add(block, True)
            self._cache[block] = None
            self._cache.move_to_end(block)
        while len(self._cache) > self.num_blocks:
            block, _ = self._cache.popitem(last=False)
            self.log.add(block, False)


class DecodeWorker:
    """Rows share its steps: each gets a token every `gap_ms(rows, context)`."""

    def __init__(
        self, name: str, clock: Clock, costs: Costs, *, num_slots: int, num_blocks: int
    ) -> None:
        self.name = name
        self.clock = clock
        self.costs = costs
        self.num_slots = num_slots
        self.num_blocks = num_blocks
        self.busy_us = self.steps = self.row_steps = self.context_steps = 0
        self._ends: list[tuple[float, int, Job]] = []  # heap: at which token of the worker's own
        self._tokens = 0.0  # that each row has had since the beginning
        self._context = 0
        self._since_s = 0.0
        self._alarm = 0

    @property
    def num_jobs(self) -> int:
        return len(self._ends)

    def submit(self, job: Job) -> None:
        self._advance()
        self._context += job.prompt_len
        heapq.heappush(self._ends, (self._tokens + job.output_len, job.number, job))
        self._wait()

    def load(self) -> Load:
        self._advance()
        self._wait()
        return Load(
            running=len(self._ends),
            free_blocks=self.num_blocks,
            free_slots=self.num_slots - len(self._ends),
            tokens_total=self.row_steps,
            busy_us_total=self.busy_us,
            steps_total=self.steps,
            decode_rows_total=self.row_steps,
            decode_context_total=self.context_steps,
        )

    def _gap_s(self) -> float:
        return self.costs.gap_ms(len(self._ends), self._context) / 1000

    def _advance(self) -> None:
        now_s = self.clock.now_s
        if self._ends:
            passed = (now_s - self._since_s) / self._gap_s()
            self._tokens += passed
            steps = round(passed)
            self.steps += steps
            self.busy_us += round(steps * self._gap_s() * 1e6)
            self.row_steps += steps * len(self._ends)
            self.context_steps += steps * self._context
        self._since_s = now_s

    def _wait(self) -> None:
        self._alarm += 1
        if self._ends:
            number = self._alarm
            left = max(0.0, self._ends[0][0] - self._tokens)
            due_s = self.clock.now_s + left * self._gap_s()
            self.clock.at(due_s, lambda: self._ring(number))

    def _ring(self, number: int) -> None:
        if number != self._alarm:
            return  # the rows have changed since
        self._advance()
        while self._ends and self._ends[0][0] <= self._tokens + 1e-6:
            job = heapq.heappop(self._ends)[2]
            self._context -= job.prompt_len
            job.on_end()
        self._wait()
