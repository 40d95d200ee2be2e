"""What `diptych doctor` finds: a list of values, and how it is printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from rich.console import Console
from rich.table import Table
from rich.text import Text


class State(StrEnum):
    """How something is."""

    OK = auto()
    SKIPPED = auto()  # there is nothing of the kind here
    WARNING = auto()
    BAD = auto()


COLOURS = {State.OK: "green", State.SKIPPED: "dim", State.WARNING: "yellow", State.BAD: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` says what to do, where something is to be done."""

    what: str
    state: State
    said: str
    fix: str = ""


def ok(what: str, said: str) -> Finding:
    return Finding(what, State.OK, said)


def skipped(what: str, said: str) -> Finding:
    return Finding(what, State.SKIPPED, said)


def warning(what: str, said: str, fix: str) -> Finding:
    return Finding(what, State.WARNING, said, fix)


def bad(what: str, said: str, fix: str) -> Finding:
    return Finding(what, State.BAD, said, fix)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if anything is bad."""
    return int(any(finding.state is State.BAD for finding in findings))


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """A line each, fixes below; then the verdict."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.state, COLOURS[finding.state]), Text(finding.what), Text(finding.said)
        )
        if finding.fix:
            table.add_row("", "", Text(f"→ {finding.fix}", "bold"))
    console.print(table)
    counts = {state: sum(f.state is state for f in findings) for state in State}
    verdict = f"{counts[State.BAD]} bad, {counts[State.WARNING]} warnings, {counts[State.OK]} fine"
    console.print(f"\n{verdict}")
