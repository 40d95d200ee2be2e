"""What the cache tier saves: first tokens by where KV is found, hits of public traces by tier.

Through the HTTP of platforms with the tiny model. Without flags it takes four minutes and reads
the slices in `data/`; whole traces are given by file. Run it by `make bench-cache`.
"""

import argparse
import asyncio
import json
import platform as machine
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from first_token import Figure, measure
from replay import Replayed, replay
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from traces import DATA, Trace, agents, mooncake


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["first-token", "replay"])
    parser.add_argument("--prompts", type=int, default=7, help="of 2,000 tokens, for each median")
    parser.add_argument("--requests", type=int, default=150, help="of each trace; 0: all")
    parser.add_argument("--within-s", type=float, default=30.0, help="of each replay")
    parser.add_argument("--conversation", type=Path, help="Mooncake's conversation trace, whole")
    parser.add_argument("--synthetic", type=Path, help="Mooncake's synthetic trace, whole")
    parser.add_argument("--agents", type=Path, help="agent runs of tau-bench, all of them")
    parser.add_argument("--json", type=Path, help="also append the figures to this file")
    options = parser.parse_args()
    console = Console()
    figures: list[Figure | Replayed] = []
    if options.only != "replay":
        figures += first_tokens(console, options.prompts)
    if options.only != "first-token":
        figures += replays(console, traces(options), options.within_s)
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(asdict(figure)) + "\n" for figure in figures)


def traces(options: argparse.Namespace) -> list[Trace]:
    found = [
        mooncake("conversation", options.conversation or data("mooncake_conversation")),
        mooncake("synthetic", options.synthetic or data("mooncake_synthetic")),
        agents("agent runs", options.agents or data("agent_tau_airline")),
    ]
    return [trace.first(options.requests or None) for trace in found]


def data(name: str) -> Path:
    return DATA / f"{name}_slice.jsonl.xz"


def first_tokens(console: Console, count: int) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder, console.status("first token") as status:
        figures = asyncio.run(measure(count, Path(folder), lambda what: status.update(what)))
    where = f"{machine.machine()} CPU"
    table = Table(title=f"first token of 2,000 tokens, tiny model, {where}, median of {count}")
    for column in ("KV found in", "first token", "of cold", "cached tokens", "says usage"):
        table.add_column(column, justify="left" if column == "KV found in" else "right")
    cold = figures[0].first_token_ms
    for f in figures:
        ratio, cached = f"{f.first_token_ms / cold:.2f}", str(f.cached_tokens)
        table.add_row(f.found, f"{f.first_token_ms:.0f} ms", ratio, cached, f.sources)
    console.print(table)
    return figures


def replays(console: Console, chosen: Sequence[Trace], within_s: float) -> list[Replayed]:
    done: list[Replayed] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for trace in chosen:
            for is_deterministic in (True, False):
                name = f"{trace.name}, {mode(is_deterministic)}"
                task = progress.add_task(name, total=len(trace.requests))
                with tempfile.TemporaryDirectory() as folder:
                    running = replay(
                        trace,
                        Path(folder),
                        is_deterministic=is_deterministic,
                        within_s=within_s,
                        step=lambda task=task: progress.advance(task),  # type: ignore[misc]
                    )
                    done.append(asyncio.run(running))
    table = Table(title="hit tokens of replayed traces, in shares of all prompt tokens")
    columns_shown = ("trace", "mode", "requests", "tokens", "ideal", "hit", "of ideal")
    for column in (*columns_shown, "own pages", "memory", "disk", "took"):
        table.add_column(column, justify="left" if column in ("trace", "mode") else "right")
    for r in done:
        shares = [r.ideal, sum(r.hits.values()), *r.hits.values()]
        ideal, hit, *tiers = (f"{share / max(1, r.tokens):.1%}" for share in shares)
        counts = str(r.requests), f"{r.tokens:,}"
        of_ideal = f"{r.share_of_ideal:.2f}"
        row = (r.trace, mode(r.is_deterministic), *counts, ideal, hit, of_ideal, *tiers)
        table.add_row(*row, f"{r.took_s:.0f} s")
    console.print(table)
    return done


def mode(is_deterministic: bool) -> str:
    return "deterministic" if is_deterministic else "free"


if __name__ == "__main__":
    main()
