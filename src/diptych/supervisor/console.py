"""What a person sees: prefixed log lines, the welcome, the status table."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diptych.supervisor.plan import Plan

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan")

TABLE_WIDTH = 132

CURL = """curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "max_tokens": 64, "thinking": {{"type": "disabled"}},
       "messages": [{{"role": "user", "content": "Say hello."}}]}}'"""

PYTHON = """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="unused")
reply = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Say hello."}}],
    max_tokens=64,
    extra_body={{"thinking": {{"type": "disabled"}}}},
)
print(reply.choices[0].message.content)"""

NOISE = (
    "The embedded model answers NOISE: the full architecture, really computed, but its weights are "
    "drawn from a seed and have learned nothing. Serve your own with --checkpoint DIR."
)


class Screen:
    """Lines of many processes on one terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._colours: dict[str, str] = {}

    def say(self, who: str, what: str) -> None:
        """One line, prefixed with its process."""
        colour = self._colours.setdefault(who, COLOURS[len(self._colours) % len(COLOURS)])
        self._console.print(Text.assemble((f"{who:>10} | ", colour), Text.from_ansi(what)))

    def ready(self, plan: Plan, is_embedded: bool) -> None:
        """Where it answers, and what to paste."""
        fields = {"url": plan.base_url, "model": plan.model_name}
        self._console.print(f"\nDiptych is ready at {plan.base_url}/v1 (model {plan.model_name})\n")
        self._console.print(CURL.format(**fields), markup=False)
        self._console.print("\nor in Python (pip install openai):\n")
        self._console.print(PYTHON.format(**fields), markup=False)
        if is_embedded:
            self._console.print(f"\n{NOISE}", style="bold yellow")
        self._console.print("\nCtrl-C stops everything.\n")


def show_status(status: dict[str, Any], console: Console | None = None) -> None:
    """The table of `diptych status`."""
    console = console or Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)  # a narrow terminal wraps; nothing is cut off
    ready = "ready" if status["ready"] else "NOT READY: " + "; ".join(status["reasons"])
    console.print(f"{status['base_url']}  model {status['model']}  {ready}")
    console.print(
        f"requests: {status['leases']} in flight, {status['queued']} of them queued   "
        f"supervisor pid {status['pid']}   data {status['data_dir']}"
    )
    console.print(_table(status))


def _table(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("process", "role", "pid", "address"):
        table.add_column(name, no_wrap=True)
    for name in ("restarts", "leases", "run", "wait", "blocks free", "slots free"):
        table.add_column(name, justify="right")
    for name in ("tickets", "reserved", "pulls", "streams"):
        table.add_column(name, justify="right")
    members = {member["join"]["member_id"]: member for member in status["members"]}
    for process in status["processes"]:
        pid = str(process["pid"]) if process["alive"] else "dead"
        row = [process["id"], process["role"], pid, process["address"], str(process["restarts"])]
        table.add_row(*row, *_numbers(members.pop(process["id"], None)))
    for name, member in members.items():  # joined from elsewhere
        join = member["join"]
        where = join["address"] or join["http_address"]
        table.add_row(name, join["role"], str(join["pid"]), where, "-", *_numbers(member))
    return table


def _numbers(member: dict[str, Any] | None) -> list[str]:
    if member is None:
        return []
    join, load = member["join"], member["load"]
    is_worker = join["num_slots"] > 0
    return [
        str(member["leases"]) if is_worker else "",
        str(load["running"]) if is_worker else "",
        str(load["waiting"]) if is_worker else "",
        f"{load['free_blocks']}/{join['num_blocks']}" if is_worker else "",
        f"{load['free_slots']}/{join['num_slots']}" if is_worker else "",
        str(load["tickets"]) if is_worker else "",
        str(load["reservations"]) if is_worker else "",
        str(load["pulls"]) if is_worker else "",
        "" if is_worker else str(load["streams"]),
    ]
