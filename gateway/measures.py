"""What a gateway measures: outputs by phase, first tokens, gaps, ends; requests, refusals."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diptych.core.errors import DiptychError
from diptych.core.phases import Phase
from diptych.gateway.decisions import Decisions
from diptych.gateway.journey import Journey
from diptych.gateway.notes import Course, Notes, Stay
from diptych.telemetry import metrics as m

STALL_S = 1.0  # a gap that a reader notices
CANCELLED = "cancelled"
OTHER = "other"  # in the place of names that strangers make up

Clock = Callable[[], float]


class Measures:
    """Metrics that requests and their outputs feed."""

    def __init__(self, metrics: m.Metrics) -> None:
        self.metrics = metrics
        self.decisions = Decisions()
        self.requests = metrics.histogram(m.REQUEST_SECONDS)
        self.ttft = metrics.histogram(m.TTFT_SECONDS)
        self.gaps = metrics.histogram(m.INTER_TOKEN_SECONDS)
        self.stalls = metrics.histogram(m.STREAM_STALL_SECONDS)
        self.phases = metrics.histogram(m.PHASE_SECONDS)
        self.tokens = metrics.counter(m.TOKENS)
        self.per_token = metrics.histogram(m.TIME_PER_OUTPUT_TOKEN_SECONDS)
        self.migrations = metrics.counter(m.MIGRATIONS)
        self._rejects = metrics.counter(m.REJECTS)
        self.inflight: Counter[str] = Counter()  # HTTP requests under way, by route
        metrics.pull(
            lambda: [m.HTTP_INFLIGHT.at(number, route) for route, number in self.inflight.items()]
        )
        self._http = metrics.counter(m.HTTP_REQUESTS)
        self.aborts = metrics.counter(m.ABORTS)
        self._cuts = metrics.counter(m.STREAM_ABORTS)
        self._keepalives = metrics.counter(m.KEEPALIVES)
        self._tokenizing = metrics.histogram(m.TOKENIZE_SECONDS)
        self._parsed = metrics.counter(m.TOOL_PARSE)
        self._limits = metrics.counter(m.RATELIMIT)
        self._ignored = metrics.counter(m.IGNORED_PARAMS)

    def rejected(self, error: DiptychError) -> None:
        """A request was answered by an error."""
        self._rejects.labels(str(error.http_status), error.code).inc()

    def visited(self, route: str, status: int, model: str, notes: Notes, reasoning: int) -> None:
        """An HTTP request is over."""
        self._http.labels(route, str(status), model).inc()
        self._keepalives.inc(notes.keepalives)
        for began_s, ended_s in notes.tokenizing:
            self._tokenizing.observe(ended_s - began_s)
        for result, number in notes.parsed.items():
            self._parsed.labels(result).inc(number)
        for name in notes.ignored:
            self._ignored.labels(name).inc()
        if notes.cut:
            self._cuts.labels(notes.cut).inc()
        if notes.limit:
            self._limits.labels(notes.limit).inc()
        if reasoning:
            self.tokens.labels("reasoning").inc(reasoning)

    def left_early(self) -> None:
        """A client left before an output of its request had begun."""
        self.aborts.labels(Phase.ENCODE).inc()

    @contextmanager
    def output(
        self, prompt_len: int, on_over: Callable[[Course], None] = lambda course: None
    ) -> "Iterator[OutputClock]":
        """Watch one output from here to the end of the context."""
        clock = OutputClock(self, time.monotonic)  # an event loop's may be coarse
        result = CANCELLED  # unless it ends or fails below
        try:
            yield clock
            result = "ok"
        except DiptychError as error:
            result = error.code
            raise
        finally:
            on_over(clock.close(prompt_len, result))


class OutputClock:
    """One output, as time passes."""

    def __init__(self, measures: Measures, now_s: Clock) -> None:
        self._measures = measures
        self._now_s = now_s
        self._began_s = self._phase_s = now_s()
        self._first_s: float | None = None
        self._token_s: float | None = None  # when the newest ones came
        self._phase = Phase.ROUTE
        self._attempt = 1
        self._cached = 0
        self._num_tokens = 0
        self._stays: list[Stay] = []
        self._prefill = self._decode = ""
        self._reasons: tuple[str, ...] | None = None

    def placed(self, reasons: tuple[str, ...], *, prefill: str = "", decode: str = "") -> None:
        """The router named a worker."""
        is_first = not (self._prefill or self._decode)
        phase = "prefill" if prefill else "hybrid" if is_first else "decode"
        self._measures.decisions.heard(phase, prefill or decode, reasons)
        self._prefill = prefill or self._prefill
        self._decode = decode or self._decode
        if self._reasons is None:
            self._reasons = reasons

    def saw(self, journey: Journey) -> None:
        """Something happened."""
        self._cached = journey.cached_tokens
        if journey.phase is not self._phase:
            now_s = self._now_s()
            if journey.attempt == 1:
                self._measures.phases.labels(self._phase).observe(now_s - self._phase_s)
            self._stay(now_s)
            self._phase, self._phase_s = journey.phase, now_s
        self._attempt = journey.attempt

    def emitted(self, num_tokens: int) -> None:
        """Tokens came."""
        now_s, before_s = self._now_s(), self._token_s
        if before_s is None:
            self._first_s = now_s
            self._measures.ttft.observe(now_s - self._began_s)
        else:
            self._measures.gaps.observe(now_s - before_s)
            if now_s - before_s > STALL_S:
                self._measures.stalls.observe(now_s - before_s)
        self._token_s = now_s
        self._num_tokens += num_tokens

    def close(self, prompt_len: int, result: str) -> Course:
        """It is over."""
        measures, now_s = self._measures, self._now_s()
        if self._phase is not Phase.FINISH:
            self._stay(now_s)
            if result == CANCELLED:
                measures.aborts.labels(self._phase).inc()
        measures.requests.labels(result).observe(now_s - self._began_s)
        if self._first_s is not None and self._token_s is not None:
            measures.tokens.labels("input").inc(prompt_len)
            measures.tokens.labels("cached").inc(self._cached)
            measures.tokens.labels("output").inc(self._num_tokens)
            if self._num_tokens > 1:
                mean_s = (self._token_s - self._first_s) / (self._num_tokens - 1)
                measures.per_token.observe(mean_s)
        if self._attempt > 1:
            measures.migrations.labels(result).inc()
        return Course(
            tuple(self._stays),
            result,
            self._first_s,
            self._token_s,
            self._num_tokens,
            self._cached,
            self._reasons or (),
        )

    def _stay(self, now_s: float) -> None:
        workers = {Phase.ROUTE: "", Phase.PREFILL: self._prefill}
        worker = workers.get(self._phase, self._decode)
        self._stays.append(Stay(self._phase, self._phase_s, now_s, self._attempt, worker))
