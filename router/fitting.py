"""Coefficients of a worker from what it reports: recursive least squares with forgetting.

A report tells how long the steps since the last one took and what they computed. Pure: samples in,
coefficients out. Values stay within bounds around the shipped ones, so a burst of nonsense (a
suspended machine, a first compilation) distorts decisions but cannot break them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diptych.router.costs import DEFAULTS, Costs
from diptych.router.messages import Load

FORGETTING = 0.98
LOOSENESS = 100.0  # of the shipped values, in their own size: how fast first samples move them
MAX_SPREAD = 1e3  # of a coefficient that no sample shows: its uncertainty does not grow for ever
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


class Fit:
    """The coefficients of one worker, as far as its reports show them."""

    def __init__(self, start: Costs = DEFAULTS) -> None:
        self._shipped = DEFAULTS
        self._scale = [getattr(self._shipped, name) for name in FITTED]
        self._theta = [getattr(start, n) / s for n, s in zip(FITTED, self._scale, strict=True)]
        size = len(FITTED)
        self._spread = [[LOOSENESS * (i == j) for j in range(size)] for i in range(size)]
        self.samples = 0
        self.costs = start

    def observe(self, sample: Sample) -> None:
        """Learn from the steps between two reports."""
        # Of an average step, in milliseconds by the shipped coefficients; the errors are relative.
        counts = (sample.steps, sample.tokens, sample.pairs, sample.rows, sample.context)
        took_ms = sample.busy_ms / sample.steps
        x = [s * c / sample.steps / took_ms for s, c in zip(self._scale, counts, strict=True)]
        gain_of = [_dot(row, x) for row in self._spread]
        surprise = 1.0 - _dot(self._theta, x)
        scale = FORGETTING + _dot(x, gain_of)
        gain = [g / scale for g in gain_of]
        self._theta = [
            min(BOUND, max(1 / BOUND, t + g * surprise))
            for t, g in zip(self._theta, gain, strict=True)
        ]
        grow = [
            1.0 if row[i] > MAX_SPREAD else FORGETTING**-0.5 for i, row in enumerate(self._spread)
        ]
        self._spread = [
            [(p - gain[i] * gain_of[j]) * grow[i] * grow[j] for j, p in enumerate(row)]
            for i, row in enumerate(self._spread)
        ]
        self.samples += 1
        fitted = [t * s for t, s in zip(self._theta, self._scale, strict=True)]
        self.costs = replace(self.costs, **dict(zip(FITTED, fitted, strict=True)))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
