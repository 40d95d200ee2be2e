"""What a gateway measures of its outputs: phases, first tokens, gaps, ends, refusals."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from diptych.core.errors import DiptychError
from diptych.core.phases import Phase
from diptych.gateway.journey import Journey
from diptych.telemetry import metrics as m

STALL_S = 1.0  # a gap that a reader notices

Clock = Callable[[], float]


class Measures:
    """Metrics that outputs feed."""

    def __init__(self, metrics: m.Metrics) -> None:
        self.metrics = metrics
        self.requests = metrics.histogram(m.REQUEST_SECONDS)
        self.ttft = metrics.histogram(m.TTFT_SECONDS)
        self.gaps = metrics.histogram(m.INTER_TOKEN_SECONDS)
        self.stalls = metrics.histogram(m.STREAM_STALL_SECONDS)
        self.phases = metrics.histogram(m.PHASE_SECONDS)
        self.tokens = metrics.counter(m.TOKENS)
        self.migrations = metrics.counter(m.MIGRATIONS)
        self._rejects = metrics.counter(m.REJECTS)

    def rejected(self, error: DiptychError) -> None:
        """A request was answered by an error."""
        self._rejects.labels(str(error.http_status), error.code).inc()

    @contextmanager
    def output(self, prompt_len: int) -> "Iterator[OutputClock]":
        """Watch one output from here to the end of the context."""
        clock = OutputClock(self, asyncio.get_running_loop().time)
        result = "cancelled"  # unless it ends or fails below
        try:
            yield clock
            result = "ok"
        except DiptychError as error:
            result = error.code
            raise
        finally:
            clock.close(prompt_len, result)


class OutputClock:
    """One output, as time passes."""

    def __init__(self, measures: Measures, now_s: Clock) -> None:
        self._measures = measures
        self._now_s = now_s
        self._began_s = self._phase_s = now_s()
        self._token_s: float | None = None  # when the newest ones came
        self._phase = Phase.ROUTE
        self._attempt = 1
        self._cached = 0
        self._num_tokens = 0

    def saw(self, journey: Journey) -> None:
        """Something happened."""
        self._cached = journey.cached_tokens
        self._attempt = journey.attempt
        if journey.phase is self._phase:
            return
        now_s = self._now_s()
        if journey.attempt == 1:
            self._measures.phases.labels(self._phase).observe(now_s - self._phase_s)
        self._phase, self._phase_s = journey.phase, now_s

    def emitted(self, num_tokens: int) -> None:
        """Tokens came."""
        now_s, before_s = self._now_s(), self._token_s
        if before_s is None:
            self._measures.ttft.observe(now_s - self._began_s)
        else:
            self._measures.gaps.observe(now_s - before_s)
            if now_s - before_s > STALL_S:
                self._measures.stalls.observe(now_s - before_s)
        self._token_s = now_s
        self._num_tokens += num_tokens

    def close(self, prompt_len: int, result: str) -> None:
        """It is over."""
        measures = self._measures
        measures.requests.labels(result).observe(self._now_s() - self._began_s)
        if self._num_tokens:
            measures.tokens.labels("input").inc(prompt_len)
            measures.tokens.labels("cached").inc(self._cached)
            measures.tokens.labels("output").inc(self._num_tokens)
        if self._attempt > 1:
            measures.migrations.labels(result).inc()
