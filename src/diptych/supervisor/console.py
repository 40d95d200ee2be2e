"""What a person sees: prefixed log lines, the welcome, the status table."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from diptych.supervisor.plan import Plan

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan")

TABLE_WIDTH = 100

CURL = """curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "max_tokens": 64, "thinking": {{"type": "disabled"}},
       "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'"""

PYTHON = """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="unused")
reply = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Why is the sky blue?"}}],
    max_tokens=64,
    extra_body={{"thinking": {{"type": "disabled"}}}},
)
print(reply.choices[0].message.content)"""

BUNDLED = (
    "The bundled model is tiny: the full architecture with ten million parameters, trained in "
    "minutes. It chats a little and calls tools, and it errs. Serve your own with --checkpoint DIR."
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
        page = f"open {plan.base_url}/ in a browser, or " if plan.has_page else ""
        self._console.print(f"Talk to it: {page}run `diptych chat`. Or ask it:\n")
        self._console.print(CURL.format(**fields), markup=False)
        self._console.print("\nor in Python (pip install openai):\n")
        self._console.print(PYTHON.format(**fields), markup=False)
        if is_embedded:
            self._console.print(f"\n{BUNDLED}", style="bold yellow")
        page = f"open {plan.admin_url}/ in a browser, or " if plan.admin_url else ""
        self._console.print(f"\nWatch it: {page}run `diptych status --watch`.")
        self._console.print("\nCtrl-C stops everything.\n")


def show_status(status: dict[str, Any], console: Console | None = None) -> None:
    """The tables of `diptych status`: processes, then what their workers do."""
    console = console or Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)  # a narrow terminal wraps; nothing is cut off
    console.print(picture(status))


def picture(status: dict[str, Any], *, num_decisions: int = 0) -> Group:
    """The same as one thing to draw, and the newest decisions of the router."""
    ready = "ready" if status["ready"] else "NOT READY: " + "; ".join(status["reasons"])
    head = (
        f"{status['base_url']}  model {status['model']}  {ready}\n"
        f"requests: {status['leases']} in flight, {status['queued']} of them queued   "
        f"supervisor pid {status['pid']}   data {status['data_dir']}\n"
    )
    troubles = [Text(line, "yellow") for line in _routers(status["routers"])]
    workers = [member for member in status["members"] if member["join"]["num_slots"]]
    more = ("", _workers(workers), "", Text(_pools(status, workers))) if workers else ()
    idle = [
        Text(f"{worker['join']['member_id']}: {worker['not_ready_reason']}", "yellow")
        for worker in workers
        if not worker["ready"]
    ]
    if status.get("policy") == "own_ledger":
        idle.append(Text("no worker is heard: the router decides by its own ledger", "yellow"))
    decisions = status.get("decisions", [])[:num_decisions]
    newest = ("", _decisions(decisions)) if decisions else ()
    return Group(Text(head), _processes(status), *troubles, *more, *idle, *newest)


def _pools(status: dict[str, Any], workers: list[dict[str, Any]]) -> str:
    """How many workers there are and should be, and where prompts were found."""
    there = Counter(worker["join"]["role"] for worker in workers)
    desired = status.get("desired", {})
    wishes = [f"{role} {n} of {desired.get(role, '?')} desired" for role, n in there.items()]
    names = ("query_tokens_total", "hit_tokens_total", "brought_tokens_total")
    asked, hit, brought = (sum(worker["load"][name] for worker in workers) for name in names)
    found = f"{asked:,} prompt tokens, {_share(hit, asked)} of them cached"
    return f"{', '.join(wishes)}\n{found}, {_share(brought, asked)} in the cache tier"


def _decisions(decisions: list[dict[str, Any]]) -> Table:
    """Newest first; what does not fit is cut off."""
    table = Table(box=None, pad_edge=False, width=TABLE_WIDTH)
    for name in ("decided", "for", "worker", "request"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for each in decisions:
        age = f"{each['age_s']:.1f} s ago"
        why = "; ".join(each["reasons"])
        table.add_row(age, each["phase"], each["worker"], each["request_id"][:12], Text(why))
    return table


def _routers(routers: list[dict[str, Any]]) -> Iterator[str]:
    """What is wrong with one of them."""
    for router in routers:
        name = router["router_id"] or router["address"]
        if router["error"]:
            yield f"{name} does not answer: {router['error']}"
        elif router["stale_peers"]:
            yield f"{name} does not hear {router['stale_peers']} of {router['peers']} other routers"


def _processes(status: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("process", "role", "state", "pid", "address", "metrics"):
        table.add_column(name, no_wrap=True)
    for name in ("restarts", "requests"):
        table.add_column(name, justify="right")
    members = {member["join"]["member_id"]: member for member in status["members"]}
    routers = {router["address"]: router for router in status["routers"]}
    for process in status["processes"]:
        pid = str(process["pid"]) if process["alive"] else "dead"
        row = [process["id"], process["role"], process.get("state", ""), pid, process["address"]]
        row.append(process["metrics_address"])
        requests = _requests(members.pop(process["id"], None))
        if (router := routers.get(process["address"])) is not None:
            requests = "?" if router["error"] else str(router["leases"])
        table.add_row(*row, str(process["restarts"]), requests)
    for name, member in members.items():  # joined from elsewhere
        join = member["join"]
        where = join["address"] or join["http_address"]
        row = [name, join["role"], "", str(join["pid"]), where, join["metrics_address"]]
        table.add_row(*row, "-", _requests(member))
    return table


def _requests(member: dict[str, Any] | None) -> str:
    """Placed at a worker, by the router's ledger; under way at a gateway."""
    if member is None:
        return ""
    is_worker = member["join"]["num_slots"] > 0
    return str(member["leases"] if is_worker else member["load"]["streams"])


def _workers(members: list[dict[str, Any]]) -> Table:
    """Slots and blocks: used, of all; `cached` blocks are free, but still found by prefix."""
    table = Table(box=None, pad_edge=False)
    table.add_column("worker", no_wrap=True)
    for name in ("run", "wait", "swapped", "hand-offs", "slots", "blocks", "cached", "hit rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("preempted", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for member in members:
        join, load = member["join"], member["load"]
        slots, blocks = join["num_slots"], join["num_blocks"]
        table.add_row(
            join["member_id"],
            str(load["running"]),
            str(load["waiting"]),
            str(load["swapped"]),
            str(load["tickets"] + load["reservations"] + load["pulls"]),
            f"{slots - load['free_slots']}/{slots}",
            f"{blocks - load['free_blocks']}/{blocks}",
            str(load["cached_blocks"]),
            _share(load["hit_tokens_total"], load["query_tokens_total"]),
            str(load["preemptions_total"]),
            str(load["tokens_total"]),
        )
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
