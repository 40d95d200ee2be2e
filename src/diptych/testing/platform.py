"""A running platform for tests: `diptych up` on a free port and a fresh data folder."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from diptych.core.errors import DiptychError
from diptych.model import noise
from diptych.router import client as router
from diptych.router.client import Fleet

START_LIMIT_S = 90.0
STOP_LIMIT_S = 30.0


@dataclass(frozen=True)
class Platform:
    """Where it answers, and what its supervisor says about it."""

    base_url: str
    data_dir: Path
    process: subprocess.Popen[bytes]

    @property
    def state(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.data_dir / "state.json").read_text())
        return loaded

    def pids(self, role: str) -> list[int]:
        return [p["pid"] for p in self.state["processes"] if p["role"] == role]

    def fleet(self) -> Fleet:
        """What the router says; Lost or Expired without an answer. Not from within a loop."""
        return asyncio.run(router.status(self.state["router"], timeout_s=3.0))

    def status(self) -> dict[str, Any]:
        """What `diptych status --json` prints."""
        done = subprocess.run(
            [*CLI, "status", "--json", "--data-dir", str(self.data_dir)],
            capture_output=True,
            timeout=20,
            env=environment(),
            check=False,
        )
        loaded: dict[str, Any] = json.loads(done.stdout or b"{}")
        return loaded

    def wait_for_baseline(self, limit_s: float = 20.0) -> dict[str, Any]:
        """Wait until every member reports and nothing is held anywhere; return that status."""
        deadline = time.monotonic() + limit_s
        while (leaks := leaks_of(status := self._seen())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not leaks, f"{leaks}\n{self.log()[-3000:]}"
        return status

    def _seen(self) -> dict[str, Any]:
        """As `status`, but where no loop runs and no secret is needed it takes no process."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            return self.status()
        try:
            return asdict(self.fleet()) | {"processes": self.state["processes"]}
        except DiptychError:
            return self.status()

    def wait_until_idle(self, limit_s: float) -> None:
        """Wait until no worker holds anything of a request, whoever else is away."""
        deadline = time.monotonic() + limit_s
        while busy := [m for m in self.fleet().members if not m.is_idle]:
            assert time.monotonic() < deadline, [(m.join.member_id, m.load) for m in busy]
            time.sleep(0.05)

    def log(self) -> str:
        return (self.data_dir / "up.log").read_text(errors="replace")


MODEL = "tiny-noise"  # what tests are answered by, if they do not ask for the bundled model
CLI = [sys.executable, "-m", "diptych.cli"]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DIPTYCH_")}
    return {**kept, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", **(more or {})}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def platform(
    data_dir: Path,
    *flags: str,
    bundled: bool = False,
    verify: ssl.SSLContext | bool = True,
    env: Mapping[str, str] | None = None,
) -> Iterator[Platform]:
    """Start, wait until a request can be answered, hand out, stop by SIGINT, expect exit code 0.

    Serves the noise checkpoint, or the `bundled` one. `verify` is whom an HTTPS gateway (flag
    --tls-certificate) is checked against; `env` are settings of any process.
    """
    port = free_port()
    if not bundled:
        served = str(noise.write(checkpoint_of(data_dir)))
        flags = ("--checkpoint", served, "--model-name", MODEL, *flags)
    log = (data_dir / "up.log").open("wb")
    command = [*CLI, "up", "--data-dir", str(data_dir), "--port", str(port), *flags]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment(env))
    scheme = "https" if "--tls-certificate" in flags else "http"
    running = Platform(f"{scheme}://127.0.0.1:{port}", data_dir, process)
    try:
        wait_until_ready(running, verify)
        yield running
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=STOP_LIMIT_S)
        assert code == 0, f"diptych up ended with {code}\n{running.log()[-3000:]}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        log.close()


def wait_until_ready(running: Platform, verify: ssl.SSLContext | bool = True) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if running.process.poll() is not None:
            break
        try:
            if httpx.get(f"{running.base_url}/readyz", timeout=2, verify=verify).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"the platform did not become ready\n{running.log()[-3000:]}")


def leaks_of(status: dict[str, Any]) -> list[str]:
    """What is not at its baseline, in words; empty when all is well."""
    if not status.get("ready"):
        return [f"not ready: {status.get('reasons', 'nothing runs')}"]
    leaks = [f"{name}={status[name]}" for name in ("leases", "queued") if status[name]]
    reporting = [p for p in status["processes"] if p["role"] not in ("router", "store")]
    if len(status["members"]) != len(reporting):
        leaks.append(f"{len(status['members'])} members of {len(reporting)} processes")
    for member in status["members"]:
        load, join = member["load"], member["join"]
        held = (
            "running", "waiting", "preparing", "swapped",
            "tickets", "reservations", "pulls", "streams",
        )  # fmt: skip
        leaks += [f"{join['member_id']}: {name}={load[name]}" for name in held if load[name]]
        for free, total in (("free_blocks", "num_blocks"), ("free_slots", "num_slots")):
            if load[free] != join[total]:
                leaks.append(f"{join['member_id']}: {free}={load[free]} of {join[total]}")
    return leaks


def checkpoint_of(data_dir: Path) -> Path:
    """Where the noise checkpoint of a platform lies."""
    return data_dir / "checkpoints" / MODEL
