"""How many workers recorded traffic needs, by the router's own formulas in virtual time.

Workers take what the shipped coefficients say. The fleet is made as large as its signals wish
until a run wishes for no more than it had.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from diptych.core.phases import Role
from diptych.router.costs import DEFAULTS
from diptych.router.scaling import LEAST
from diptych.router.signals import Scale
from diptych.router.simulation.clock import Clock
from diptych.router.simulation.placers import Ours
from diptych.router.simulation.workers import DecodeWorker, Job, PrefillWorker
from diptych.router.windows import SPAN_S, p90

LOOK_S = 10.0  # between looks at the signals
ROUNDS = 5
FIRST = {Role.PREFILL: 2, Role.DECODE: 2}
SLOTS, BLOCKS, BLOCK_TOKENS = 256, 2000, 512  # of a worker

Sizes = dict[Role, int]


@dataclass(frozen=True, slots=True)
class Needed:
    """Pools that suffice nine tenths of the time, what was wished at most, and how users fared."""

    sizes: Sizes
    most: Sizes
    p90_ms: float  # to the first token
    refused: int


def needed(jobs: Sequence[Job]) -> Needed:
    """Run the traffic again and again."""
    sizes = dict(FIRST)
    for _ in range(ROUNDS):
        found = _run(jobs, sizes)
        if all(found.sizes[role] <= sizes[role] for role in sizes):
            break
        sizes = found.sizes
    return found


def _run(jobs: Sequence[Job], sizes: Sizes) -> Needed:
    clock = Clock()
    memory = {"num_blocks": BLOCKS, "block_tokens": BLOCK_TOKENS}
    prefill = [
        PrefillWorker(f"prefill-{n}", clock, DEFAULTS, **memory) for n in range(sizes[Role.PREFILL])
    ]
    decode = [
        DecodeWorker(f"decode-{n}", clock, DEFAULTS, num_slots=SLOTS, num_blocks=1_000_000)
        for n in range(sizes[Role.DECODE])
    ]
    placer = Ours(clock, prefill, decode)
    scale, wishes = Scale(placer.dispatcher), list[Sizes]()
    first_s, last_s = jobs[0].at_s, jobs[-1].at_s
    served = [replace(job, at_s=job.at_s - first_s) for job in jobs]
    for job in served:
        clock.at(job.at_s, partial(placer.arrive, job))

    def look() -> None:
        wishes.append(scale.now(clock.now_s).desired)
        clock.at(clock.now_s + LOOK_S, look)

    clock.at(min(SPAN_S, last_s - first_s), look)
    clock.run(lambda: clock.now_s > last_s - first_s and not placer.dispatcher.ledger.entries)
    seen = {role: [float(wish.get(role, LEAST)) for wish in wishes] for role in sizes}
    waits_ms = [1000 * (j.first_token_s - j.at_s) for j in served if j.first_token_s is not None]
    return Needed(
        {role: round(p90(values) or 1) for role, values in seen.items()},
        {role: round(max(values)) for role, values in seen.items()},
        p90(waits_ms) or 0.0,
        sum(job.is_refused for job in served),
    )
