"""Coefficients of workers from what they report: recursive least squares with forgetting.

A report tells how long the steps since the last one took and what they computed. Pure: samples in,
coefficients out. Kept are the normal equations; they are solved inside bounds around the shipped
values by coordinate descent from the last solution (clipping an unbounded solution would leave the
valley of good ones). So a burst of nonsense, like a suspended machine or a first compilation,
distorts decisions for a while but cannot break them.
"""

from dataclasses import dataclass, replace

from diptych.router.costs import DEFAULTS, Costs
from diptych.router.messages import Load

FORGETTING = 0.98
PULL = 1e-4  # towards the start, against a sample's 1: for coefficients that no sample shows
SWEEPS = 8
BOUND = 100.0  # a coefficient is at most this many times larger or smaller than shipped
LONGEST_STEP_MS = 60_000.0

FITTED = ("step_ms", "token_ms", "pair_ms", "row_ms", "context_ms")


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps between two reports: what they took and computed."""

    busy_ms: float
    steps: int
    tokens: int
    pairs: int
    rows: int
    context: int

    @classmethod
    def between(cls, before: Load, after: Load) -> "Sample | None":
        """None if nothing was computed, or the totals began anew."""
        steps = after.steps_total - before.steps_total
        busy_us = after.busy_us_total - before.busy_us_total
        sample = cls(
            busy_us / 1000,
            steps,
            after.prompt_rows_total - before.prompt_rows_total,
            after.prompt_pairs_total - before.prompt_pairs_total,
            after.decode_rows_total - before.decode_rows_total,
            after.decode_context_total - before.decode_context_total,
        )
        counts = (sample.tokens, sample.pairs, sample.rows, sample.context)
        is_sane = steps > 0 and min(counts) >= 0 and 0 < sample.busy_ms < LONGEST_STEP_MS * steps
        return sample if is_sane else None

    def expected_ms(self, costs: Costs) -> float:
        """What these steps should have taken."""
        return (
            costs.step_ms * self.steps
            + costs.token_ms * self.tokens
            + costs.pair_ms * self.pairs
            + costs.row_ms * self.rows
            + costs.context_ms * self.context
        )


class Fit:
    """The coefficients of workers, as far as their reports show them."""

    def __init__(self, start: Costs = DEFAULTS) -> None:
        self._shipped = DEFAULTS
        self._scale = [getattr(self._shipped, name) for name in FITTED]
        self._start = [getattr(start, n) / s for n, s in zip(FITTED, self._scale, strict=True)]
        self._theta = list(self._start)
        self._products = [[0.0] * len(FITTED) for _ in FITTED]  # discounted sum of x · xᵀ
        self._targets = [0.0] * len(FITTED)  # and of x
        self.samples = 0
        self.costs = start

    def observe(self, sample: Sample) -> None:
        """Learn from the steps between two reports."""
        # Of an average step, in milliseconds by the shipped coefficients; the errors are relative.
        counts = (sample.steps, sample.tokens, sample.pairs, sample.rows, sample.context)
        took_ms = sample.busy_ms / sample.steps
        x = [s * c / sample.steps / took_ms for s, c in zip(self._scale, counts, strict=True)]
        for row, a in zip(self._products, x, strict=True):
            row[:] = [FORGETTING * p + a * c for p, c in zip(row, x, strict=True)]
        self._targets = [FORGETTING * t + c for t, c in zip(self._targets, x, strict=True)]
        for _ in range(SWEEPS):
            self._sweep()
        self.samples += 1
        fitted = [t * s for t, s in zip(self._theta, self._scale, strict=True)]
        self.costs = replace(self.costs, **dict(zip(FITTED, fitted, strict=True)))

    def _sweep(self) -> None:
        """Improve one coefficient after another, the others held."""
        theta = self._theta
        for i, row in enumerate(self._products):
            others = sum(p * t for p, t in zip(row, theta, strict=True)) - row[i] * theta[i]
            wanted = self._targets[i] + PULL * self._start[i] - others
            theta[i] = min(BOUND, max(1 / BOUND, wanted / (row[i] + PULL)))
