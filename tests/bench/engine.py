"""What the engine itself costs, in this process: `python tests/bench/engine.py [checkpoint]`.

One JSON line a case. The checkpoint is the embedded model unless another one is named.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.engine.sampler import draw
from diptych.model import noise
from diptych.offline import LLM

VOCAB = 900
HOW = Sampling(temperature=1.0, top_p=0.95, ignore_eos=True)


def prompts(count: int, length: int) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for _ in range(count)]


def decode_step_ms(llm: LLM, rows: int, steps: int = 48) -> float:
    """Median time of a step in which `rows` sequences of a few dozen tokens get a token each."""
    times_ms: list[float] = []
    last_s = time.perf_counter()

    def on_step(output: StepOutput) -> None:
        nonlocal last_s
        now_s = time.perf_counter()
        if len(output.rows) == rows and not output.chunks:
            times_ms.append((now_s - last_s) * 1e3)
        last_s = now_s

    llm.generate(prompts(rows, 7), HOW, steps, on_step)
    return statistics.median(times_ms[1:])


def prefill_tokens_per_s(llm: LLM, count: int = 8, length: int = 500) -> float:
    began_s = time.perf_counter()
    llm.generate(prompts(count, length), HOW, 1)
    return count * length / (time.perf_counter() - began_s)


def sampler_ms(vocab: int, how: Sampling, repeats: int = 50) -> float:
    logits = np.random.default_rng(0).normal(size=vocab)
    began_s = time.perf_counter()
    for position in range(repeats):
        draw(logits, how, position)
    return (time.perf_counter() - began_s) / repeats * 1e3


def say(case: str, value: float, unit: str) -> None:
    print(json.dumps({"bench": "engine", "case": case, "value": round(value, 3), "unit": unit}))


def main(checkpoint: Path) -> None:
    for numerics in ("served", "exact"):
        llm = LLM(checkpoint, numerics=numerics)
        decode_step_ms(llm, 1, steps=8)  # the first steps are slower
        for rows in (1, 16, 64):
            say(f"{numerics} decode step, {rows} rows", decode_step_ms(llm, rows), "ms")
        say(f"{numerics} prefill", prefill_tokens_per_s(llm), "tokens/s")
    for vocab in (960, 129_280):
        say(f"sampler, {vocab} tokens, plain", sampler_ms(vocab, Sampling()), "ms")
        say(f"sampler, {vocab} tokens, top-p", sampler_ms(vocab, HOW), "ms")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(noise.write(Path(folder) / "tiny-noise"))
