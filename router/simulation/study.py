"""One trace through one fleet under one placer, in figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from diptych.router.costs import Costs
from diptych.router.simulation import placers
from diptych.router.simulation.clock import Clock
from diptych.router.simulation.placers import Ours, Placer, Rival
from diptych.router.simulation.workers import DecodeWorker, Job, PrefillWorker

# Unlike the shipped coefficients, so that ours must be fitted.
PREFILL_COSTS = Costs(step_ms=4.0, token_ms=0.04, pair_ms=2e-7)
DECODE_COSTS = Costs(step_ms=14.0, row_ms=0.08, context_ms=2e-6)


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many workers of which size."""

    prefill: int = 24
    decode: int = 40
    prefill_blocks: int = 2000
    decode_slots: int = 256
    block_tokens: int = 512


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Times to the first token in milliseconds."""

    placer: str
    mean_ms: float
    p50_ms: float
    p99_ms: float
    hit_ratio: float  # of prompt tokens
    imbalance: float  # tokens computed by the busiest prefill worker, of the mean
    refused: int


Build = Callable[[Clock, Sequence[PrefillWorker], Sequence[DecodeWorker]], Placer]

PLACERS: dict[str, Build] = {
    "round robin": lambda clock, p, d: Rival(clock, p, d, placers.round_robin),
    "least request": lambda clock, p, d: Rival(clock, p, d, placers.least_request),
    "prefix hash": lambda clock, p, d: Rival(clock, p, d, placers.prefix_hash),
    "ours": Ours,
}


def paced(jobs: Sequence[Job], fleet: Fleet, use: float) -> list[Job]:
    """The same traffic at another speed: prompts would use so much of the prefill workers, were
    nothing cached."""
    first_s = jobs[0].at_s
    span_s = max(1.0, jobs[-1].at_s - first_s)
    work_s = sum(PREFILL_COSTS.prompt_ms(j.prompt_len, j.prompt_len) for j in jobs) / 1000
    speed = use * fleet.prefill * span_s / work_s
    return [replace(job, at_s=(job.at_s - first_s) / speed) for job in jobs]


def run(name: str, jobs: Sequence[Job], fleet: Fleet) -> Figures:
    """Serve all jobs."""
    clock = Clock()
    prefill = [
        PrefillWorker(
            f"prefill-{number}",
            clock,
            PREFILL_COSTS,
            num_blocks=fleet.prefill_blocks,
            block_tokens=fleet.block_tokens,
        )
        for number in range(fleet.prefill)
    ]
    decode = [
        DecodeWorker(
            f"decode-{number}",
            clock,
            DECODE_COSTS,
            num_slots=fleet.decode_slots,
            num_blocks=1_000_000,
        )
        for number in range(fleet.decode)
    ]
    placer = PLACERS[name](clock, prefill, decode)
    served = [replace(job) for job in jobs]
    for job in served:
        clock.at(job.at_s, _arrival(placer, job))
    left = iter(served)
    waiting = next(left, None)

    def is_over() -> bool:
        nonlocal waiting
        while waiting is not None and (waiting.first_token_s is not None or waiting.is_refused):
            waiting = next(left, None)
        return waiting is None

    clock.run(is_over)
    return _figures(name, served, prefill)


def _arrival(placer: Placer, job: Job) -> Callable[[], None]:
    return lambda: placer.arrive(job)


def _figures(name: str, jobs: Sequence[Job], prefill: Sequence[PrefillWorker]) -> Figures:
    served = [job for job in jobs if job.first_token_s is not None]
    waits = sorted(1000 * ((job.first_token_s or 0.0) - job.at_s) for job in served)
    computed = [worker.computed_tokens for worker in prefill]
    return Figures(
        name,
        sum(waits) / len(waits),
        waits[len(waits) // 2],
        waits[min(len(waits) - 1, int(0.99 * len(waits)))],
        sum(job.cached for job in served) / sum(job.prompt_len for job in served),
        max(computed) * len(computed) / max(1, sum(computed)),
        sum(job.is_refused for job in jobs),
    )
