"""How many workers a pool should have: two formulas; and how near users are to their targets.

    N_P = arriving · (1 - hit) / (0.65 · r)  +  backlog / (30 s · r)     tokens; r: of one worker
    N_D = max(Σ rows of a class / rows a worker may have at its pace,
              tokens a second / (0.8 · what a worker gives then),
              blocks in use / (0.85 · a worker's blocks))

Pure. Without demand both are 0, whatever else is unknown; None is "cannot be computed", and then
nothing is shown. What a decode worker gives comes from fitted step times, not from what it gave:
one with a single row gives few tokens and is not full.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, exp, inf

from diptych.core.phases import Role
from diptych.router.costs import DEFAULTS, Costs

PROMPT_USE = 0.65  # of a prefill worker: what arrives is uneven
DRAIN_S = 30.0  # in which a backlog should be gone
ROW_USE = 0.8
BLOCK_USE = 0.85
LEAST = 1  # workers of a pool: with none nothing is served
MOST_PRESSURE = 2.0
PRESSURE_S = 45.0  # over which pressure is smoothed


@dataclass(frozen=True, slots=True)
class Prompts:
    """What is asked of the workers that compute prompts, in tokens."""

    arriving: float = 0.0  # a second
    hit_share: float = 0.0  # of those: not computed
    backlog: float = 0.0  # to be computed, known now
    rate: float | None = None  # a second and worker, while it computes; None: never seen


@dataclass(frozen=True, slots=True)
class Rows:
    """What is asked of the workers that decode."""

    wanted: Mapping[float, int] = field(default_factory=dict)  # rows by pace, ms a token
    context: float = 0.0  # positions of a row
    tokens: float = 0.0  # a second
    used_blocks: int = 0
    num_blocks: int = 0  # of a worker; 0: not said
    num_slots: int = 0  # likewise
    costs: Costs = DEFAULTS


def workers_for_prompts(prompts: Prompts) -> float | None:
    """N_P before rounding."""
    coming = prompts.arriving * (1.0 - prompts.hit_share)
    if coming <= 0 and prompts.backlog <= 0:
        return 0.0
    if not prompts.rate:
        return None
    return coming / (PROMPT_USE * prompts.rate) + prompts.backlog / (DRAIN_S * prompts.rate)


def workers_for_rows(rows: Rows) -> float | None:
    """N_D before rounding."""
    wanted = sum(rows.wanted.values())
    if not wanted and rows.tokens <= 0 and not rows.used_blocks:
        return 0.0
    if not rows.num_slots or not rows.num_blocks:
        return None
    by_pace = sum(n / most_rows(rows, gap_ms) for gap_ms, n in rows.wanted.items())
    each = wanted / by_pace if wanted else most_rows(rows, inf)
    gives = 1000.0 * each / rows.costs.gap_ms(round(each), round(each * rows.context))
    by_rate = rows.tokens / (ROW_USE * gives)
    by_room = rows.used_blocks / (BLOCK_USE * rows.num_blocks)
    return max(by_pace, by_rate, by_room)


def most_rows(rows: Rows, gap_ms: float) -> float:
    """S_max: rows beside which a token still takes no longer; as many as fit if none could."""
    each_ms = rows.costs.row_ms + rows.costs.context_ms * rows.context
    fit = (gap_ms - rows.costs.step_ms) / each_ms if each_ms > 0 else inf
    return min(float(rows.num_slots), fit) if fit >= 1 else float(rows.num_slots)


def desired(prompts: Prompts | None, rows: Rows | None) -> dict[Role, int]:
    """Workers by role; roles of which nothing can be said are left out."""
    raw = {
        Role.PREFILL: None if prompts is None else workers_for_prompts(prompts),
        Role.DECODE: None if rows is None else workers_for_rows(rows),
    }
    return {role: _whole(number) for role, number in raw.items() if number is not None}


def desired_hybrids(prompts: Prompts, rows: Rows) -> int | None:
    """Workers that do both: each demand takes its part of them."""
    parts = workers_for_prompts(prompts), workers_for_rows(rows)
    return None if parts[0] is None or parts[1] is None else _whole(parts[0] + parts[1])


def _whole(number: float) -> int:
    return max(LEAST, ceil(number - 1e-9))


@dataclass(frozen=True, slots=True)
class Lateness:
    """P90 of the last minute, each of its target; 0 without traffic."""

    first_token: float = 0.0
    gap: float = 0.0
    prefill_queue: int = 0  # prompts that wait at prefill workers, or for one of them
    waited_for_rows_s: float = 0.0  # prompts held back and prompts done, for want of a decode row


def pressures(late: Lateness) -> dict[Role, float]:
    """Whose workers are too few. First tokens are late though nothing waits at prefill, and rows
    are waited for: then it is decode that is short."""
    is_decodes = late.prefill_queue == 0 and late.waited_for_rows_s > 0
    first = min(MOST_PRESSURE, late.first_token)
    gap = min(MOST_PRESSURE, late.gap)
    return {
        Role.PREFILL: 0.0 if is_decodes else first,
        Role.DECODE: max(gap, first) if is_decodes else gap,
    }


class Smoothed:
    """Pressures over time, so that a burst of a few seconds scales nothing."""

    def __init__(self) -> None:
        self._values: dict[Role, float] = {}
        self._at_s: float | None = None

    def update(self, now: Mapping[Role, float], now_s: float) -> dict[Role, float]:
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        weight = 1.0 - exp(-passed_s / PRESSURE_S)
        for role, value in now.items():
            before = self._values.get(role, 0.0)
            self._values[role] = before + weight * (value - before)
        self._at_s = now_s
        return dict(self._values)
