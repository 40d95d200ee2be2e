"""64 workers in virtual time under recorded traffic: our router next to what is common elsewhere.

Run it by `make simulate`. Policy, index, queue and ledger are the router's own code.
"""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diptych.router.simulation import traces
from diptych.router.simulation.study import PLACERS, Figures, Fleet, paced, run

DATA = Path(__file__).parent / "data"  # its README has the sources
TRACES = {
    "mooncake": DATA / "mooncake_conversation.jsonl.xz",
    "azure-chat": DATA / "azure_chat.csv.xz",
    "azure-code": DATA / "azure_code.csv.xz",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", nargs="+", default=list(TRACES))
    parser.add_argument("--file", type=Path, help="another trace in Mooncake's or Azure's form")
    parser.add_argument("--limit", type=int, default=4000, help="requests of each")
    parser.add_argument("--use", type=float, nargs="+", default=[0.7, 0.95])
    parser.add_argument("--prefill", type=int, default=24)
    parser.add_argument("--decode", type=int, default=40)
    parser.add_argument("--placers", nargs="+", default=list(PLACERS))
    parser.add_argument("--json", type=Path, help="also append the figures to this file")
    options = parser.parse_args()
    fleet = Fleet(options.prefill, options.decode)
    console = Console()
    paths = {name: TRACES[name] for name in options.traces}
    if options.file:
        paths = {options.file.stem: options.file}
    for name, path in paths.items():
        jobs = traces.read(path, options.limit)
        for use in options.use:
            figures = []
            for placer in options.placers:
                began_s = time.perf_counter()
                with console.status(f"{name} {placer}"):
                    figures.append(run(placer, paced(jobs, fleet, use), fleet))
                took_s = time.perf_counter() - began_s
                console.log(f"{name} at {use:g}: {placer} took {took_s:.1f} s", style="dim")
            title = (
                f"{name}, {len(jobs)} requests, {fleet.prefill} prefill and {fleet.decode} decode "
                f"workers, {use:.0%} of prefill used were nothing cached"
            )
            show(console, title, figures)
            if options.json:
                with options.json.open("a") as file:
                    for f in figures:
                        fields = {k: getattr(f, k) for k in Figures.__slots__}
                        file.write(json.dumps({"trace": name, "use": use, **fields}) + "\n")


def show(console: Console, title: str, figures: list[Figures]) -> None:
    table = Table(title=title)
    table.add_column("placer")
    for column in ("mean", "p50", "p99", "hits", "busiest / mean", "refused"):
        table.add_column(column, justify="right")
    for f in figures:
        table.add_row(
            f.placer,
            f"{f.mean_ms:.0f} ms",
            f"{f.p50_ms:.0f} ms",
            f"{f.p99_ms:.0f} ms",
            f"{f.hit_ratio:.3f}",
            f"{f.imbalance:.2f}",
            str(f.refused),
        )
    console.print(table)


if __name__ == "__main__":
    main()
