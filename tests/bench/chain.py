"""What the chain costs: HTTP through all stations next to the same engine called in-process.

One run prints both, for 1 and 16 streams, with the ratio; how long a first token takes from prefill
to the client, and a stream from there to its decode worker's first. Run it by `make bench`.
"""

import argparse
import asyncio
import json
import platform as machine
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
import orjson
from rich.console import Console
from rich.table import Table

from diptych.core.sampling import Sampling
from diptych.core.step import StepOutput
from diptych.offline import LLM
from diptych.supervisor.checkpoint import EMBEDDED_MODEL, embedded_folder
from diptych.testing.platform import platform
from diptych.text import tokenizer
from diptych.text.chat import Chat, Message, Role, render

PROMPT = "The river was seven stones wide and nobody had ever counted them twice. " * 6
MAX_TOKENS = 64


@dataclass(frozen=True)
class Figure:
    """One measurement: medians over the streams, tokens per second over all of them."""

    way: str
    streams: int
    ttft_ms: float
    tokens_per_s: float
    gap_ms: float | None = None  # from prefill's first token at the gateway to the client's
    handoff_ms: float | None = None  # from there to decode's first


@dataclass(frozen=True)
class Stream:
    """What a client saw of one, and what the gateway says of it."""

    first_s: float
    tokens: int
    timings: Mapping[str, float]

    @property
    def gap_ms(self) -> float:
        """The request's way to the gateway is in it, too: no clock is shared."""
        return 1e3 * self.first_s - self.timings["first_token_ms"]


def summarise(way: str, firsts_s: Sequence[float], num_tokens: int, took_s: float) -> Figure:
    return Figure(way, len(firsts_s), 1e3 * statistics.median(firsts_s), num_tokens / took_s)


def in_process(checkpoint: Path, streams: int) -> Figure:
    llm = LLM(checkpoint)
    chat = Chat((Message(Role.USER, PROMPT),), effort=None)
    prompt = tokenizer.load(checkpoint).encode(render(chat))
    llm.generate([prompt], Sampling(temperature=0, ignore_eos=True), 4)  # warm
    firsts: dict[object, float] = {}
    start = time.perf_counter()

    def note(output: StepOutput) -> None:
        for row in output.rows:
            firsts.setdefault(row.key, time.perf_counter() - start)

    sampling = [Sampling(seed=i, ignore_eos=True) for i in range(streams)]
    outputs = llm.generate([prompt] * streams, sampling, MAX_TOKENS, on_step=note)
    took_s = time.perf_counter() - start
    return summarise(
        "in-process", [*firsts.values()], sum(len(o.token_ids) for o in outputs), took_s
    )


async def one_stream(client: httpx.AsyncClient, seed: int) -> Stream:
    body = {
        "model": EMBEDDED_MODEL,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "seed": seed,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "thinking": {"type": "disabled"},
    }
    start, first, tokens = time.perf_counter(), 0.0, 0
    timings: dict[str, float] = {}
    headers = {"x-diptych-timings": "1"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = orjson.loads(line.removeprefix("data: "))
            timings |= event.get("timings") or {}
            for choice in event["choices"]:
                got = len(choice.get("token_ids") or [])
                first = first or (time.perf_counter() - start if got else 0.0)
                tokens += got
    return Stream(first, tokens, timings)


async def through_http(base_url: str, way: str, streams: int) -> Figure:
    async with httpx.AsyncClient(base_url=base_url, timeout=300) as client:
        await one_stream(client, 999)  # warm
        start = time.perf_counter()
        results = await asyncio.gather(*(one_stream(client, seed) for seed in range(streams)))
        took_s = time.perf_counter() - start
    figure = summarise(way, [s.first_s for s in results], sum(s.tokens for s in results), took_s)
    handoffs = [s.timings["handoff_ms"] for s in results if "handoff_ms" in s.timings]
    return replace(
        figure,
        gap_ms=statistics.median(s.gap_ms for s in results),
        handoff_ms=statistics.median(handoffs) if handoffs else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--json", type=Path, help="also append the figures to this file")
    options = parser.parse_args()
    figures: list[Figure] = []
    console = Console()
    for way, flags in (("HTTP, split", ()), ("HTTP, hybrid", ("--hybrid",))):
        with tempfile.TemporaryDirectory() as folder, console.status(way):
            data_dir = Path(folder)
            with platform(data_dir, *flags, bundled=True) as running:
                figures += [
                    asyncio.run(through_http(running.base_url, way, n)) for n in options.streams
                ]
            if not flags:
                figures += [in_process(embedded_folder(), n) for n in options.streams]
    show(console, figures)
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(asdict(figure)) + "\n" for figure in figures)


def show(console: Console, figures: Sequence[Figure]) -> None:
    table = Table(title=f"bundled model, {machine.machine()} CPU, {MAX_TOKENS} tokens a stream")
    columns = "first token", "to client", "hand-off", "tokens/s", "of in-process"
    for column in ("way", "streams", *columns):
        table.add_column(column, justify="left" if column == "way" else "right")
    alone = {f.streams: f.tokens_per_s for f in figures if f.way == "in-process"}
    for f in sorted(figures, key=lambda f: f.streams):
        ratio = f.tokens_per_s / alone[f.streams]
        shown = [_ms(f.ttft_ms), _ms(f.gap_ms), _ms(f.handoff_ms)]
        table.add_row(f.way, str(f.streams), *shown, f"{f.tokens_per_s:.0f}", f"{ratio:.2f}")
    console.print(table)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"


if __name__ == "__main__":
    main()
