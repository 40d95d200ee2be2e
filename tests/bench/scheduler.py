"""What planning and recording a step costs, with no model: `python tests/bench/scheduler.py`.

One JSON line a case. `measure` is what the engine's benchmark calls.
"""

import gc
import json
import statistics
import time
from dataclasses import asdict, dataclass

from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.ledger import Ledger
from diptych.engine.requests import Bounds
from diptych.engine.scheduler import Limits, Plan
from diptych.engine.slots import SlotPool

GRAIN = 128
TOKEN = 7


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a step of `running` sequences that get a token each."""

    running: int
    waiting: int
    overlapped: bool  # planned before the step ahead of it has come back
    caching: bool  # blocks are hashed, published and anchored
    plan_us: float
    commit_us: float
    slowest_us: float

    @property
    def step_us(self) -> float:
        return self.plan_us + self.commit_us


def measure(
    running: int = 256,
    *,
    waiting: int = 0,
    overlapped: bool = True,
    caching: bool = True,
    steps: int = 400,
) -> Cost:
    """Median cost of `next_plan` and `commit`."""
    ledger = _ledger(running, steps)
    how = Sampling(temperature=0, ignore_eos=True)
    for i in range(running + waiting):
        prompt = tuple((i * 31 + j * 7) % 900 for j in range(100 + i % 100))
        scope = b"s" * 16 if caching else b""
        ledger.submit(Generation(Key(f"r{i}", 1), prompt, how, 2 * steps, scope=scope), hold=False)
    plan_us: list[float] = []
    commit_us: list[float] = []
    out: list[Plan] = []
    gc.collect()
    gc.disable()
    try:
        while len(plan_us) < steps:
            began_s = time.perf_counter()
            plan = ledger.next_plan()
            planned_s = time.perf_counter()
            out.append(plan)
            done = out.pop(0) if len(out) > overlapped else None
            outcomes = [TOKEN] * sum(p.samples for p in done.pieces) if done else []
            committing_s = time.perf_counter()
            if done:
                ledger.commit(done, outcomes)
            if len(plan.pieces) == running and all(p.count == 1 for p in plan.pieces):
                plan_us.append((planned_s - began_s) * 1e6)
                commit_us.append((time.perf_counter() - committing_s) * 1e6)
    finally:
        gc.enable()
    return Cost(
        running,
        waiting,
        overlapped,
        caching,
        round(statistics.median(plan_us), 1),
        round(statistics.median(commit_us), 1),
        round(max(map(sum, zip(plan_us, commit_us, strict=True))), 1),
    )


def _ledger(running: int, steps: int) -> Ledger:
    return Ledger(
        Bounds(vocab_size=1000, max_model_len=8192, eos_token_id=1),
        Limits(GRAIN, max_batch_tokens=2048, window=128, replay=True),
        BlockPool(running * (4 + 2 * steps // GRAIN)),
        SlotPool(running),
        AnchorPool(4 * running),
    )


if __name__ == "__main__":
    for cost in (
        measure(64),
        measure(256),
        measure(256, overlapped=False),
        measure(256, caching=False),
        measure(256, waiting=2000),
    ):
        print(json.dumps({"case": "scheduler", **asdict(cost), "step_us": round(cost.step_us, 1)}))
