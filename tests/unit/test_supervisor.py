"""The supervisor over little programs that only pretend to serve."""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from diptych.config import UpSettings
from diptych.core.errors import BadRequest, Broken, Lost, Misconfigured
from diptych.core.phases import Role
from diptych.model.spec import ModelSpec
from diptych.router import client as router
from diptych.router.client import Join, Load, Member
from diptych.supervisor.checkpoint import embedded_folder
from diptych.supervisor.child import Child, describe_exit
from diptych.supervisor.console import Screen, picture
from diptych.supervisor.fleet import Fleet, MisconfiguredChild
from diptych.supervisor.folder import Lock, LogFile, Running, State, is_locked
from diptych.supervisor.plan import Plan, Process, make_plan
from diptych.supervisor.ports import FreePorts, claim
from diptych.supervisor.restarts import Pace, Restarts
from diptych.supervisor.status import describe
from diptych.supervisor.traces import collect
from diptych.supervisor.up import child_environment
from diptych.testing.platform import environment

SOON_S = 30.0
QUICK = Pace(first_s=0.02, max_s=0.05, healthy_s=30)

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS
ANSWERS = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Gateway(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

HTTPServer(("127.0.0.1", int(sys.argv[1])), Gateway).serve_forever()
"""


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


class Heard:
    """What a child said, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._news = asyncio.Event()

    def say(self, who: str, what: str) -> None:
        self.lines.append(what)
        self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not is_so():
                await self._news.wait()
                self._news.clear()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    file = LogFile(tmp_path / "logs" / "decode-1.log")
    yield file
    file.close()


def a_child(log: LogFile, code: str, heard: Heard, pace: Pace = QUICK) -> Child:
    return Child(
        Process("decode", "decode-1", "127.0.0.1:1", python(code)),
        environment=child_environment(os.environ),
        log=log,
        say=heard.say,
        changed=lambda: None,
        pace=pace,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "Z"  # nobody reaps orphans in a container


def wait_gone(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([handle], [], [], SOON_S)
        return bool(readable)
    finally:
        os.close(handle)


def test_delays_double_to_a_limit_and_start_anew_after_a_healthy_life() -> None:
    restarts = Restarts(Pace())
    delays = [restarts.died(lived_s=1) for _ in range(7)]
    assert delays == [0.5, 1, 2, 4, 8, 10, 10]
    assert restarts.died(lived_s=30) == 0.5
    assert restarts.count == 8


async def test_a_child_that_dies_is_started_again_and_we_say_so(
    log: LogFile, tmp_path: Path
) -> None:
    heard = Heard()
    child = a_child(log, "print('hello'); raise SystemExit(3)", heard)
    running = asyncio.create_task(child.run())
    await heard.until(lambda: child.running.restarts >= 3)
    child.stop()
    await running
    remarks = [line for line in heard.lines if "ended with exit code 3" in line]
    assert "starting it again in 0.02 s (restart 1)" in remarks[0]
    assert "0.05 s (restart 3)" in remarks[2]
    written = (tmp_path / "logs" / "decode-1.log").read_text()
    assert written.count("\nhello\n") >= 3


async def test_a_killed_child_comes_back_under_a_new_pid(log: LogFile) -> None:
    heard = Heard()
    child = a_child(log, SLEEPS, heard)
    running = asyncio.create_task(child.run())
    await heard.until(lambda: "up" in heard.lines)
    first = child.running.pid
    os.kill(first, signal.SIGKILL)
    await heard.until(lambda: heard.lines.count("up") == 2)
    assert child.running.pid not in (0, first)
    assert any("was killed by SIGKILL" in line for line in heard.lines)
    child.stop()
    async with asyncio.timeout(SOON_S):
        await running
    assert child.running.pid == 0


async def test_stopping_does_not_wait_for_a_delay(log: LogFile) -> None:
    heard = Heard()
    child = a_child(log, "raise SystemExit(1)", heard, Pace(60, 60, 60))
    running = asyncio.create_task(child.run())
    await heard.until(lambda: child.running.restarts == 1)
    child.stop()
    async with asyncio.timeout(SOON_S):
        await running


async def test_a_child_whose_own_children_hold_its_output_is_still_seen_to_die(
    log: LogFile,
) -> None:
    heard = Heard()
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPS!r}])"
    child = a_child(log, code, heard)
    running = asyncio.create_task(child.run())
    await heard.until(lambda: child.running.restarts >= 1)
    child.stop()
    async with asyncio.timeout(SOON_S):
        await running


def fleet_of(tmp_path: Path, *codes: str, base_url: str = "http://127.0.0.1:1") -> Fleet:
    processes = tuple(
        Process("decode", f"decode-{i}", "", python(code)) for i, code in enumerate(codes)
    )
    plan = Plan(processes, base_url, "127.0.0.1:1", "m")
    return Fleet(plan, tmp_path, child_environment(os.environ), lambda *_: None, QUICK)


async def test_who_ignores_the_request_to_end_is_killed_after_the_grace(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, STUBBORN, SLEEPS)
    fleet.start()
    heard = asyncio.get_running_loop().time() + SOON_S
    while any("up" not in child.last_line for child in fleet.children):
        assert asyncio.get_running_loop().time() < heard
        await asyncio.sleep(0.02)
    pids = [child.running.pid for child in fleet.children]
    async with asyncio.timeout(SOON_S):
        await fleet.stop(0.3, hurry=asyncio.Event())
    assert not any(is_alive(pid) for pid in pids)
    assert [child.exit_code for child in fleet.children] == [-signal.SIGKILL, -signal.SIGTERM]


async def test_a_second_interrupt_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, STUBBORN)
    fleet.start()
    hurry = asyncio.Event()
    hurry.set()
    async with asyncio.timeout(SOON_S):
        await fleet.stop(60, hurry=hurry)


async def test_a_child_that_refuses_its_settings_ends_the_start(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, "print('diptych: --listen is odd'); raise SystemExit(2)")
    fleet.start()
    with pytest.raises(MisconfiguredChild, match="decode-0 does not start: --listen"):
        await fleet.wait_until_answering(SOON_S)
    await fleet.stop(SOON_S, hurry=asyncio.Event())


async def test_a_platform_that_never_answers_ends_the_start_by_its_deadline(
    tmp_path: Path,
) -> None:
    fleet = fleet_of(tmp_path, SLEEPS)
    fleet.start()
    with pytest.raises(Exception, match=r"not ready within 0\.3 s.*logs are in"):
        await fleet.wait_until_answering(0.3)
    await fleet.stop(SOON_S, hurry=asyncio.Event())


async def test_an_answer_that_is_refused_is_our_bug(tmp_path: Path) -> None:
    port = FreePorts()()
    refusing = ANSWERS.replace("self.do_GET()", "self.send_error(404)")
    base_url = f"http://127.0.0.1:{port}"
    plan = Plan((Process("gateway", "g", "", python(refusing, str(port))),), base_url, "", "m")
    fleet = Fleet(plan, tmp_path, child_environment(os.environ), lambda *_: None, QUICK)
    fleet.start()
    with pytest.raises(Broken, match="canary request was answered with 404"):
        await fleet.wait_until_answering(SOON_S)
    await fleet.stop(SOON_S, hurry=asyncio.Event())


SUPERVISE = textwrap.dedent(
    """
    import asyncio, os, sys
    from pathlib import Path
    from diptych.supervisor.fleet import Fleet
    from diptych.supervisor.folder import Lock
    from diptych.supervisor.plan import Plan, Process
    from diptych.supervisor.up import Interrupts, child_environment, keep

    data_dir, port, answers, sleeps = Path(sys.argv[1]), *sys.argv[2:]

    async def run():
        plan = Plan(
            (
                Process("gateway", "gateway-1", "", (sys.executable, "-c", answers, port)),
                Process("decode", "decode-1", "", (sys.executable, "-c", sleeps)),
            ),
            f"http://127.0.0.1:{port}", "127.0.0.1:1", "m",
        )
        with Interrupts() as interrupts:
            fleet = Fleet(plan, data_dir, child_environment(os.environ), lambda *_: None)
            ready = lambda: print("ready", flush=True)
            await keep(fleet, interrupts, ready=ready, ready_timeout_s=30, grace_s=5)

    with Lock(data_dir):
        asyncio.run(run())
    print("stopped", flush=True)
    """
)


def start_supervisor(data_dir: Path) -> subprocess.Popen[str]:
    command = python(SUPERVISE, str(data_dir), str(FreePorts()()), ANSWERS, SLEEPS)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_with_exit_code_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start_supervisor(tmp_path)
    state = State.read(tmp_path)
    assert state is not None
    assert state.pid == process.pid
    assert [child.role for child in state.processes] == ["gateway", "decode"]
    assert all(is_alive(child.pid) for child in state.processes)
    process.send_signal(number)
    output, _ = process.communicate(timeout=SOON_S)
    assert (process.returncode, output) == (0, "stopped\n")
    assert not any(is_alive(child.pid) for child in state.processes)
    assert not (tmp_path / "state.json").exists()
    assert State.read(tmp_path) is None


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    process = start_supervisor(tmp_path)
    state = State.read(tmp_path)
    assert state is not None
    process.kill()
    process.communicate(timeout=SOON_S)
    assert all(wait_gone(child.pid) for child in state.processes)
    assert (tmp_path / "state.json").exists()  # nobody was left to remove it,
    assert State.read(tmp_path) is None  # and it deceives nobody


def test_a_second_supervisor_on_a_folder_is_told_folder_and_pid(tmp_path: Path) -> None:
    with Lock(tmp_path):
        with pytest.raises(Misconfigured) as error:
            Lock(tmp_path).__enter__()
        assert str(tmp_path) in error.value.message
        assert f"pid {os.getpid()}" in error.value.message
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    with Lock(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="expected a writable folder"):
        Lock(tmp_path / "file" / "data").__enter__()


def test_a_taken_port_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "diptych.cli", "up", "--port", str(port)]
        done = subprocess.run(
            [*command, "--data-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=30,
            env=environment(),
            check=False,
        )
    assert done.returncode == 2
    assert (
        done.stderr == f"diptych: port {port} on 127.0.0.1 is taken; choose another with --port\n"
    )
    assert not (tmp_path / "logs").exists()


def test_port_0_is_any_free_one() -> None:
    assert claim("127.0.0.1", 0) > 0
    ports = FreePorts()
    assert len({ports() for _ in range(20)}) == 20


def plan_for(tmp_path: Path, **flags: object) -> Plan:
    ports = iter(range(7001, 8000))
    settings = UpSettings.load({"data_dir": str(tmp_path), **flags})
    return make_plan(
        settings, checkpoint=tmp_path / "noise-1", port=8123, free_port=lambda: next(ports)
    )


def flag(process: Process, name: str) -> str:
    return process.command[process.command.index(name) + 1]


def test_a_plan_has_every_role_and_one_address_each(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, prefill="2", decode="3")
    ids = [process.id for process in plan.processes]
    workers = ["prefill-1", "prefill-2", "decode-1", "decode-2", "decode-3"]
    assert ids == ["router-1", "store-1", *workers, "gateway-1"]
    assert len({process.address for process in plan.processes}) == 8
    metrics = {process.metrics_address for process in plan.processes}
    assert len(metrics) == 8 and not metrics & {process.address for process in plan.processes}
    for process in plan.processes:
        assert flag(process, "--metrics-listen") == process.metrics_address
    assert plan.model_name == "diptych-tiny"
    assert plan.base_url == "http://127.0.0.1:8123"
    for process in plan.processes[2:]:
        assert flag(process, "--router") == plan.router
        assert flag(process, "--checkpoint") == str(tmp_path / "noise-1")


def test_a_plan_has_a_store_that_router_and_workers_use_unless_none_is_wanted(
    tmp_path: Path,
) -> None:
    without = plan_for(tmp_path, store="0").processes
    assert "store" not in {process.role for process in without}
    assert not any("--stores" in process.command for process in without)
    processes = plan_for(tmp_path).processes
    (store,) = [p for p in processes if p.role == "store"]
    for process in processes:
        if process.role in ("router", "prefill", "decode"):
            assert flag(process, "--stores") == store.address
    assert store.command[3] == "store"
    assert flag(store, "--store-id") == store.id == "store-1"
    assert flag(store, "--listen") == store.address
    assert flag(store, "--data-dir") == str(tmp_path)


def test_several_routers_know_each_other_and_everybody_knows_all_of_them(tmp_path: Path) -> None:
    assert "--peers" not in plan_for(tmp_path).processes[0].command
    plan = plan_for(tmp_path, routers="3")
    routers = [process for process in plan.processes if process.role == "router"]
    addresses = [process.address for process in routers]
    assert [process.id for process in routers] == ["router-1", "router-2", "router-3"]
    assert plan.router == ",".join(addresses)
    for process in routers:
        others = [address for address in addresses if address != process.address]
        assert flag(process, "--peers") == ",".join(others)
        assert flag(process, "--router-id") == process.id
        assert flag(process, "--listen") == process.address
    for process in plan.processes[4:]:
        assert flag(process, "--router") == plan.router
    with pytest.raises(Misconfigured, match="--routers '5'"):
        plan_for(tmp_path, routers="5")


def test_a_hybrid_plan_has_no_prefill(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, hybrid=True, decode="2", max_model_len="64", host="0.0.0.0")
    roles = [process.role for process in plan.processes]
    assert roles == ["router", "store", "hybrid", "hybrid", "gateway"]
    hybrid = plan.processes[2]
    assert hybrid.command[3] == "decode"
    assert flag(hybrid, "--role") == "hybrid"
    assert flag(hybrid, "--max-model-len") == "64"
    assert plan.base_url == "http://127.0.0.1:8123"  # 0.0.0.0 is no place to connect to


def test_the_gateway_is_told_about_its_ports(tmp_path: Path) -> None:
    plan = plan_for(tmp_path)
    gateway = plan.processes[-1]
    assert flag(gateway, "--admin-listen") == plan.admin_url.removeprefix("http://")
    assert plan.admin_url.startswith("http://127.0.0.1:7")
    assert "--allow-anonymous" not in gateway.command
    assert plan_for(tmp_path, admin_listen="off").admin_url == ""
    assert plan_for(tmp_path, admin_listen="127.0.0.1:9").admin_url == "http://127.0.0.1:9"
    assert "--allow-anonymous" in plan_for(tmp_path, allow_anonymous=True).processes[-1].command
    without_page = plan_for(tmp_path, playground="off")
    assert flag(without_page.processes[-1], "--playground") == "off"
    for name in ("a.crt", "a.key"):
        (tmp_path / name).touch()
    files = {"tls_certificate": tmp_path / "a.crt", "tls_key": tmp_path / "a.key"}
    plan = plan_for(tmp_path, **files)
    assert plan.base_url == "https://127.0.0.1:8123"
    assert plan.admin_url.startswith("http://")
    assert flag(plan.processes[-1], "--tls-key") == str(tmp_path / "a.key")


def test_how_processes_are_watched_is_passed_on(tmp_path: Path) -> None:
    url = "http://127.0.0.1:4318"
    watched = {"log_format": "json", "metrics_alias": "vllm", "otlp_endpoint": url}
    plan = plan_for(tmp_path, **watched)
    assert plan.log_format == "json"
    for process in plan.processes:
        assert flag(process, "--log-format") == "json"
        assert flag(process, "--metrics-alias") == "vllm"
        assert ("--otlp-endpoint" in process.command) == (process.role not in ("router", "store"))
    assert {flag(process, "--otlp-endpoint") for process in plan.processes[2:]} == {url}
    quiet = plan_for(tmp_path)
    assert flag(quiet.processes[0], "--log-format") == "text"
    assert not any("--otlp-endpoint" in process.command for process in quiet.processes)


def test_a_log_says_of_a_process_what_happens_to_it_in_the_form_that_it_logs_in(
    tmp_path: Path,
) -> None:
    for log_format in ("text", "json"):
        log = LogFile(tmp_path / f"decode-1-{log_format}.log", log_format=log_format)
        log.mark("started pid=7")
        log.close()
    text = (tmp_path / "decode-1-text.log").read_text()
    assert text.startswith("--- ") and text.endswith(" started pid=7\n")
    line = json.loads((tmp_path / "decode-1-json.log").read_text())
    assert (line["message"], line["role"]) == ("started pid=7", "supervisor")
    assert line["process"] == "decode-1-json"


def test_no_command_line_carries_a_secret(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, cluster_secret="s" * 20, master_key="k" * 20)
    for process in plan.processes:
        assert not any("sss" in part or "kkk" in part for part in process.command)


def test_the_bundled_model_lies_in_the_package() -> None:
    assert ModelSpec.load(embedded_folder()).num_layers > 0
    assert (embedded_folder() / "model.safetensors").stat().st_size < 12_000_000


def test_a_log_turns_its_page(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", limit_bytes=100)
    for i in range(30):
        log.write(f"line {i}".encode())
    log.close()
    assert (tmp_path / "a.log").stat().st_size <= 100
    assert (tmp_path / "a.log").read_text().endswith("line 29\n")
    assert (tmp_path / "a.log.1").stat().st_size <= 100


def test_ends_are_described_for_people() -> None:
    assert describe_exit(0) == "ended with exit code 0"
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-77) == "was killed by signal 77"


def test_the_welcome_holds_what_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    Screen().ready(plan_for(tmp_path), is_embedded=True)
    shown = capsys.readouterr().err
    curl = shown[shown.index("curl") : shown.index("or in Python")]
    body = json.loads(curl[curl.index("-d '") + 4 : curl.rindex("'")])
    assert body["max_tokens"] == 64
    assert body["thinking"] == {"type": "disabled"}
    snippet = shown[shown.index("from openai") : shown.index("The bundled")]
    compile(snippet, "snippet", "exec")
    assert "http://127.0.0.1:8123/v1" in snippet
    assert "The bundled model is tiny" in shown
    assert "open http://127.0.0.1:8123/ in a browser, or run `diptych chat`" in shown
    assert f"Watch it: open {plan_for(tmp_path).admin_url}/ in a browser, or run" in shown
    Screen().ready(plan_for(tmp_path, playground="off", admin_listen="off"), is_embedded=True)
    assert "browser" not in capsys.readouterr().err


def test_the_status_table_shows_everybody(capsys: pytest.CaptureFixture) -> None:
    load = asdict(
        Load(
            running=12, waiting=3, swapped=2, free_blocks=100, cached_blocks=77, free_slots=52,
            tickets=14, reservations=2, pulls=1, tokens_total=123456, query_tokens_total=1000,
            hit_tokens_total=712, brought_tokens_total=60, preemptions_total=17,
        )
    )  # fmt: skip
    join = asdict(
        Join(
            "decode-1", Role.DECODE, "127.0.0.1:45678", pid=12345, num_blocks=512, num_slots=64,
            metrics_address="127.0.0.1:45679",
        )
    )  # fmt: skip
    stranger = join | {"member_id": "decode-9"}
    gateway = asdict(Join("gateway-1", Role.GATEWAY, http_address="127.0.0.1:8000", pid=12345))
    process = asdict(
        Running("decode", "decode-1", 12345, "127.0.0.1:45678", "127.0.0.1:45679", 2, 0.0)
    ) | {"alive": True}
    decided = {
        "request_id": "req_b6c664e8676831a5", "phase": "decode", "worker": "decode-1",
        "age_s": 1.25, "reasons": ["[14] ms a token expected beside 3 rows", "only one had room"],
    }  # fmt: skip
    console = Console(highlight=False, width=100)
    router = process | {"role": "router", "id": "router-1", "address": "127.0.0.1:45000"}
    shown_status = (
        {
            "base_url": "http://x", "model": "m", "ready": False, "reasons": ["no prefill worker"],
            "leases": 5, "queued": 3, "pid": 1, "data_dir": "/d",
            "processes": [process, process | {"id": "prefill-1", "alive": False}, router],
            "routers": [
                {"router_id": "router-1", "leases": 3, "peers": 1, "stale_peers": 1,
                 "address": "127.0.0.1:45000", "error": ""},
                {"router_id": "", "leases": 0, "peers": 0, "stale_peers": 0,
                 "address": "127.0.0.1:45001", "error": "gone"},
            ],
            "members": [
                {"join": join, "load": load, "leases": 2, "ready": True},
                {
                    "join": stranger, "load": load | {"query_tokens_total": 0}, "leases": 2,
                    "ready": False, "not_ready_reason": "draining",
                },
                {"join": gateway, "load": asdict(Load(streams=6)), "leases": 0},
            ],
            "policy": "own_ledger", "desired": {"decode": 3}, "decisions": [decided],
        }
    )  # fmt: skip
    console.print(picture(shown_status, num_decisions=8))
    shown = capsys.readouterr().out
    assert "decode 2 of 3 desired" in shown
    assert "1,000 prompt tokens, 142% of them cached, 12% in the cache tier" in shown
    assert "decides by its own ledger" in shown
    assert "1.2 s ago  decode  decode-1  req_b6c664e8  [14] ms a token expected" in shown
    assert "NOT READY: no prefill worker" in shown
    assert "5 in flight, 3 of them queued" in shown
    assert "dead" in shown
    assert max(map(len, shown.splitlines())) <= 100
    rows = [line.split() for line in shown.splitlines()]
    assert ["gateway-1", "gateway", "12345", "127.0.0.1:8000", "-", "6"] in rows
    router_1 = ["router-1", "router", "12345", "127.0.0.1:45000", "127.0.0.1:45679", "2", "3"]
    assert router_1 in rows
    assert "router-1 does not hear 1 of 1 other routers" in shown
    assert "127.0.0.1:45001 does not answer: gone" in shown
    counted = ["12", "3", "2", "17", "12/64", "412/512", "77"]
    assert ["decode-1", *counted, "71%", "17", "123456"] in rows
    assert ["decode-9", *counted, "-", "17", "123456"] in rows
    assert ["decode-9:", "draining"] in rows


def test_a_process_is_starting_until_a_router_has_heard_of_it(tmp_path: Path) -> None:
    def process(role: str, pid: int = os.getpid()) -> Running:
        return Running(role, f"{role}-1", pid, "", "", 0, 0.0)

    roles = ("router", "store", "prefill", "decode")
    state = State(1, "http://x", "127.0.0.1:1", "m", (*map(process, roles), process("hybrid", 0)))
    warming = Member(Join("decode-1", Role.DECODE), not_ready_reason="canary: untried")
    shown = describe(state, tmp_path, router.Fleet((warming,)))
    states = {each["id"]: each["state"] for each in shown["processes"]}
    assert states == {
        "router-1": "", "store-1": "", "prefill-1": "starting", "decode-1": "warming",
        "hybrid-1": "",
    }  # fmt: skip


def test_a_trace_joins_the_workers_that_have_one() -> None:
    served: list[str] = []

    class Traced(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.append(self.path)
            body = json.dumps({"traceEvents": [{"name": self.path}]}).encode()
            self.send_response(200 if "?" not in self.path or "5" in self.path else 400)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def joined(name: str, address: str, slots: int = 4) -> dict[str, object]:
        join = Join(name, Role.DECODE, metrics_address=address, num_slots=slots)
        return {"join": asdict(join)}

    with HTTPServer(("127.0.0.1", 0), Traced) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        members = [joined("d-1", address), joined("d-2", address), joined("d-3", "")]
        status = {"members": [*members, joined("gateway-1", address, slots=0)]}
        assert len(collect(status, (), None)["traceEvents"]) == 2
        assert collect(status, ["d-2"], 5.0)["traceEvents"] == [{"name": "/trace?seconds=5"}]
        with pytest.raises(BadRequest, match="d-3: no such worker; there are d-1, d-2"):
            collect(status, ["d-3"], None)
        with pytest.raises(Lost, match=r"d-1 at .* answers 400"):
            collect(status, ["d-1"], 1.0)
        server.shutdown()
    with pytest.raises(Lost, match=r"d-1 at .* does not answer"):
        collect(status, ["d-1"], None)
    assert served == ["/trace", "/trace", "/trace?seconds=5", "/trace?seconds=1"]
