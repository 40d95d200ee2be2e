"""This engine next to the one before it, in one run: `make bench-engine`.

Runs `engine.py` on this tree and on an older one, which git unpacks into a folder of its own, in
turns; of the rounds each case keeps its best. Then what `scheduler.py` says of this tree alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from diptych.model import noise

ROOT = Path(__file__).resolve().parents[2]
BENCH = Path(__file__).parent
PREVIOUS = "1aa12df426f67a8fefbd9fce3140cd5b5b3d555c"  # one queue, no cache, no replay, no overlap


@dataclass(frozen=True)
class Figure:
    """As `engine.py` prints it."""

    case: str
    value: float
    unit: str
    than: str = ""

    def factor(self, other: "Figure") -> float:
        """By how much this is better: more tokens/s, less of any time."""
        if self.unit == "tokens/s":
            return self.value / other.value
        return other.value / self.value


Figures = dict[str, Figure]  # by case


def unpack(revision: str, folder: Path) -> bool:
    """Write an older tree into a folder; False if git does not know it."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", revision], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode != 0:
        return False
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="tar")  # its links are ours
    return True


def run(script: str, tree: Path, *arguments: str) -> list[dict[str, Any]]:
    """The JSON lines of a script of this tree, run on the packages of another."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, str(BENCH / script), *arguments],
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def keep_best(figures: Figures, lines: Iterable[dict[str, Any]]) -> None:
    """Replace what is beaten."""
    for line in lines:
        figure = Figure(**line)
        kept = figures.setdefault(figure.case, figure)
        if figure.factor(kept) > 1:
            figures[figure.case] = figure


def table(before: Figures, now: Figures, rounds: int) -> Table:
    title = f"engine on one thread, by its time on the CPU; the best of {rounds} rounds"
    shown = Table(title=title)
    for column in ("case", "before", "now", "", "better by"):
        shown.add_column(column, justify="left" if column in ("case", "") else "right")
    for case, figure in now.items():
        was = before.get(case)
        other = now[figure.than] if figure.than else was
        shown.add_row(
            case,
            f"{was.value:,.0f}" if was else "",
            f"{figure.value:,.0f}",
            figure.unit,
            f"{figure.factor(other):.2f} x" if other else "",
        )
    shown.caption = "better than the engine before, or than the row above that it varies"
    return shown


def scheduler_table(costs: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="scheduler alone, µs a step, by the wall")
    for column in ("running", "waiting", "overlapped", "caching", "plan", "commit", "step"):
        shown.add_column(column, justify="right")
    for cost in costs:
        flags = ("yes" if cost[name] else "no" for name in ("overlapped", "caching"))
        times = (f"{cost[name]:,.0f}" for name in ("plan_us", "commit_us", "step_us"))
        shown.add_row(str(cost["running"]), str(cost["waiting"]), *flags, *times)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", default=PREVIOUS, metavar="REVISION")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also append the figures to this file")
    options = parser.parse_args()
    console = Console()
    console.width = max(console.width, 100)
    before: Figures = {}
    now: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = str(noise.write(Path(folder) / "tiny-noise"))
        old = Path(folder) / "before"
        has_old = unpack(options.against, old)
        if not has_old:
            console.print(f"git knows no {options.against} here: nothing to compare with")
        with console.status("measuring"):
            for turn in range(options.rounds):
                if has_old:
                    keep_best(before, run("engine.py", old, checkpoint, "--basic"))
                flags = () if turn == 0 else ("--basic",)
                keep_best(now, run("engine.py", ROOT, checkpoint, *flags))
            costs = run("scheduler.py", ROOT)
    console.print(table(before, now, options.rounds))
    console.print(scheduler_table(costs))
    if options.json:
        with options.json.open("a") as file:
            for tree, figures in (("before", before), ("now", now)):
                for figure in figures.values():
                    line = {"tree": tree, **asdict(figure)}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.writelines(json.dumps(cost) + "\n" for cost in costs)


if __name__ == "__main__":
    main()
