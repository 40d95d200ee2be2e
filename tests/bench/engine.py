"""What the engine itself costs, in this process: `python tests/bench/engine.py CHECKPOINT`.

One JSON line a case, by the quickest quarter of its steps or the best of its runs, and in seconds
of this process on a CPU, for a machine is seldom ours alone; only what overlaps is timed by the
wall. With `--basic` only what every engine since the first one can do: so the file also runs on an
older tree, which is how `compare.py` uses it.
"""

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.engine.block_pool import BlockPool
from diptych.engine.ledger import Ledger
from diptych.engine.requests import Bounds
from diptych.engine.scheduler import Limits
from diptych.engine.slots import SlotPool
from diptych.offline import LLM

VOCAB = 900
RUNNING = 256
BATCHES = (1, 8, 32)
PROMPT = 2000
PARTING = 1100
HOW = Sampling(temperature=1.0, top_p=0.95, ignore_eos=True)
GREEDY = Sampling(temperature=0, ignore_eos=True)


Clock = Callable[[], float]
cpu_s = time.process_time
wall_s = time.perf_counter


@dataclass(frozen=True)
class Figure:
    """One case. More is better for tokens/s, less for the rest."""

    case: str
    value: float
    unit: str
    than: str = ""  # the case it is to be held against; none: the same one of the older engine


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(f"{count} {length} {seed}")
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for _ in range(count)]


def quick(times_s: list[float]) -> float:
    """The lower quartile."""
    return statistics.quantiles(times_s, n=4)[0]


def decode_tokens_per_s(llm: LLM, rows: int, steps: int = 48, clock: Clock = cpu_s) -> float:
    """Steps in which `rows` short sequences get a token each."""
    times_s: list[float] = []
    last_s = clock()

    def on_step(output: StepOutput) -> None:
        nonlocal last_s
        now_s = clock()
        if len(output.rows) == rows and not output.chunks:
            times_s.append(now_s - last_s)
        last_s = now_s

    llm.generate(prompts(rows, 7), HOW, steps, on_step)
    return rows / quick(times_s[1:])


def prefill_tokens_per_s(llm: LLM, count: int, length: int = 500, repeats: int = 3) -> float:
    times_s = []
    for _ in range(repeats if count < 32 else 1):
        began_s = cpu_s()
        llm.generate(prompts(count, length), HOW, 1)
        times_s.append(cpu_s() - began_s)
    return count * length / min(times_s)


def scheduler_us(running: int, steps: int = 200) -> float:
    """Planning and recording a step of `running` rows, without a model."""
    ledger = Ledger(
        Bounds(VOCAB, max_model_len=8192, eos_token_id=1),
        Limits(128, max_batch_tokens=2048),
        BlockPool(running * 8),
        SlotPool(running),
    )
    for i, prompt in enumerate(prompts(running, 100)):
        ledger.submit(Generation(Key(f"r{i}", 1), tuple(prompt), GREEDY, 2 * steps), hold=False)
    times_s: list[float] = []
    gc.collect()
    gc.disable()
    while len(times_s) < steps:
        began_s = cpu_s()
        plan = ledger.next_plan()
        planned_s = cpu_s()
        outcomes = [7] * sum(piece.samples for piece in plan.pieces)
        committing_s = cpu_s()
        ledger.commit(plan, outcomes)
        if sum(piece.count for piece in plan.pieces) == running:
            times_s.append(planned_s - began_s + cpu_s() - committing_s)
    gc.enable()
    return quick(times_s) * 1e6


def basic(checkpoint: Path) -> Iterator[Figure]:
    """What all engines can do, as they do it by default."""
    yield Figure(f"scheduler, {RUNNING} running, a step", scheduler_us(RUNNING), "µs")
    llm = LLM(checkpoint)
    decode_tokens_per_s(llm, 1, steps=8)  # the first steps are slower
    for rows in BATCHES:
        yield Figure(f"decode, batch {rows}", decode_tokens_per_s(llm, rows), "tokens/s")
    for count in BATCHES:
        yield Figure(f"prefill, {count} x 500 tokens", prefill_tokens_per_s(llm, count), "tokens/s")
    yield Figure(f"prefill, 1 x {PROMPT} tokens", prefill_tokens_per_s(llm, 1, PROMPT), "tokens/s")


def observer_us(steps: int = 200) -> float:
    """What a trace and its histograms add to a step of RUNNING rows, without a model."""
    from diptych.engine.measures import Measures
    from diptych.engine.stepper import Stepper

    class Nothing:
        def begin(self, plan: Any) -> Any:
            return plan

        def forward(self, plan: Any) -> None:
            pass

        def sample(self, plan: Any, chosen: Any) -> list[int]:
            return [7] * len(chosen)

    def step_us(measures: Measures | None) -> float:
        ledger = Ledger(
            Bounds(VOCAB, max_model_len=8192, eos_token_id=1),
            Limits(128, max_batch_tokens=2048),
            BlockPool(RUNNING * 8),
            SlotPool(RUNNING),
        )
        for i, prompt in enumerate(prompts(RUNNING, 7)):
            ledger.submit(Generation(Key(f"r{i}", 1), tuple(prompt), GREEDY, 500), hold=False)
        stepper = Stepper(ledger, Nothing(), None, measures)
        times_s = []
        for _ in range(steps):
            began_s = cpu_s()
            stepper.step(lambda output: None)
            times_s.append(cpu_s() - began_s)
        return quick(times_s) * 1e6

    return step_us(Measures("bench")) - step_us(None)


def first_token_ms(parts: Any, prompt: list[int], name: str) -> tuple[float, int, list[int]]:
    """Of a prompt alone in the engine; how much of it was cached, and its first tokens."""
    key, tokens, cached = Key(name, 1), list[int](), 0
    generation = Generation(key, tuple(prompt), GREEDY, 4, scope=b"s" * 16)
    began_s = cpu_s()
    first_s = 0.0
    parts.ledger.submit(generation, hold=False)

    def hear(output: StepOutput) -> None:
        nonlocal first_s, cached
        for row in output.rows:
            first_s = first_s or cpu_s() - began_s
            cached += row.cached_tokens
            tokens.extend(row.token_ids)

    while parts.stepper.step(hear):
        pass
    return first_s * 1e3, cached, tokens


def prefix(checkpoint: Path, repeats: int = 3) -> Iterator[Figure]:
    """The same prompt again, and the next turn of its conversation."""
    from diptych.engine.build import build_parts

    parts = build_parts(checkpoint, model_name="bench")
    first_token_ms(parts, prompts(1, 300)[0], "warm")
    times_ms: dict[str, list[float]] = {}

    def note(case: str, prompt: list[int], name: str) -> list[int]:
        took_ms, cached, tokens = first_token_ms(parts, prompt, name)
        times_ms.setdefault(f"first token, {case}, {cached} cached", []).append(took_ms)
        return tokens

    for i in range(repeats):
        [prompt] = prompts(1, PROMPT, seed=i)
        tokens = note(f"{PROMPT} tokens", prompt, f"cold-{i}")
        again = note(f"{PROMPT} tokens", prompt, f"hit-{i}")
        assert again == tokens, "a hit must not change a token"
        [question] = prompts(1, 60, seed=i)
        note("the next turn", prompt + tokens + question, f"turn-{i}")
        for j in (1, 2):  # the first one to part there makes the anchor
            [other] = prompts(1, PROMPT - PARTING, seed=10 * i + j)
            note(f"another from {PARTING} on", prompt[:PARTING] + other, f"parting-{i}-{j}")
    cold, *hits = times_ms
    yield Figure(cold, min(times_ms[cold]), "ms")
    for case in hits:
        yield Figure(case, min(times_ms[case]), "ms", than=cold)


def modes(checkpoint: Path) -> Iterator[Figure]:
    """What each choice costs or brings, next to the default."""
    off = LLM(checkpoint, replay="off")
    compact = LLM(checkpoint)
    prefill_tokens_per_s(off, 1)
    prefill_tokens_per_s(compact, 1)
    for length in (500, PROMPT):
        case = f"prefill, 2 x {length} tokens, replay"
        yield Figure(f"{case} off", prefill_tokens_per_s(off, 2, length), "tokens/s")
        rate = prefill_tokens_per_s(compact, 2, length)
        yield Figure(f"{case} compact", rate, "tokens/s", than=f"{case} off")
    overlapping = LLM(checkpoint, async_stepping=True)
    decode_tokens_per_s(compact, 1, steps=8)
    decode_tokens_per_s(overlapping, 1, steps=8)
    for rows in (1, 32):
        case = f"decode, batch {rows}, by the wall, async"
        rates: dict[str, list[float]] = {"off": [], "on": []}
        for _ in range(3):  # in turns
            rates["off"].append(decode_tokens_per_s(compact, rows, clock=wall_s))
            rates["on"].append(decode_tokens_per_s(overlapping, rows, clock=wall_s))
        yield Figure(f"{case} off", max(rates["off"]), "tokens/s")
        yield Figure(f"{case} on", max(rates["on"]), "tokens/s", than=f"{case} off")


def sampler(repeats: int = 50) -> Iterator[Figure]:
    import numpy as np

    from diptych.engine.sampler import draw

    for vocab in (960, 129_280):
        for name, how in (("plain", Sampling()), ("top-p", HOW)):
            logits = np.random.default_rng(0).normal(size=vocab)
            began_s = cpu_s()
            for position in range(repeats):
                draw(logits, how, position)
            took_us = (cpu_s() - began_s) / repeats * 1e6
            yield Figure(f"sampler, {vocab} tokens, {name}", took_us, "µs")


def rest(checkpoint: Path) -> Iterator[Figure]:
    """What only this engine can do."""
    yield Figure(f"trace and metrics, {RUNNING} rows, a step", observer_us(), "µs")
    yield from prefix(checkpoint)
    yield from modes(checkpoint)
    yield from sampler()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--basic", action="store_true")
    options = parser.parse_args()
    groups: list[Callable[[Path], Iterator[Figure]]] = [basic] if options.basic else [basic, rest]
    for group in groups:
        for figure in group(options.checkpoint):
            print(json.dumps(asdict(figure), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
