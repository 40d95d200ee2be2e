"""A running platform that is scaled, drained, watched and looked at, while requests run.

Its stations talk mutual TLS, and so do the commands.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from diptych.core.phases import Role
from diptych.testing.platform import CLI, Platform, environment, platform

COMMAND_S = 240.0
NUM_CLIENTS = 3
MODEL = "tiny-noise"

pytestmark = pytest.mark.timeout(400)  # processes start and stop, on whatever machine


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    flags = ("--model-name", MODEL, "--routers", "2", "--station-tls")
    with platform(tmp_path_factory.mktemp("data"), *flags) as started:
        yield started


def command(running: Platform, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLI, *arguments, "--data-dir", str(running.data_dir)],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        env=environment(),
        check=False,
    )


async def order(running: Platform, *arguments: str) -> str:
    done = await asyncio.to_thread(command, running, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Clients:
    """Ask the same few questions over and over; every answer must be the first one's."""

    def __init__(self, base_url: str) -> None:
        self.answers = 0
        self._http = httpx.AsyncClient(base_url=base_url, timeout=120)
        self._expected: dict[int, str] = {}
        self._is_over = False

    async def ask(self, seed: int) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "word " * 40 + str(seed)}],
            "max_tokens": 24,
            "ignore_eos": True,
            "seed": seed,
            "thinking": {"type": "disabled"},
        }
        reply = await self._http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        said = reply.json()
        assert said["usage"]["completion_tokens"] == 24
        text = said["choices"][0]["message"]["content"]
        assert self._expected.setdefault(seed, text) == text
        self.answers += 1

    async def run(self, seed: int) -> None:
        while not self._is_over:
            await self.ask(seed)

    def stop(self) -> None:
        self._is_over = True

    async def close(self) -> None:
        await self._http.aclose()


async def test_pools_grow_and_shrink_under_load_and_no_request_fails(running: Platform) -> None:
    clients = Clients(running.base_url)
    asking = [asyncio.create_task(clients.run(seed)) for seed in range(NUM_CLIENTS)]
    grown = json.loads(await order(running, "scale", "prefill=2", "decode=2", "--json"))
    assert sorted(grown["added"]) == ["decode-2", "prefill-2"]
    assert grown["pools"] == {"prefill": 2, "decode": 2}
    roles = [p["role"] for p in running.state["processes"]]
    assert (roles.count(Role.PREFILL), roles.count(Role.DECODE)) == (2, 2)
    # What a worker cannot end in time goes on elsewhere: the answers are still the same.
    said = await order(running, "drain", "decode-1", "--limit-s", "0.3")
    assert said.endswith("decode-1 is drained\n")
    await order(running, "drain", "decode-1", "--undo")
    before = clients.answers
    shrunk = json.loads(await order(running, "scale", "prefill=1", "decode=1", "--json"))
    assert sorted(shrunk["removed"]) == ["decode-2", "prefill-2"]
    clients.stop()
    await asyncio.gather(*asking)
    assert clients.answers > before > 0
    await clients.close()
    status = running.wait_for_baseline()
    assert {p["id"] for p in status["processes"]} == {
        "router-1", "router-2", "store-1", "prefill-1", "decode-1", "gateway-1",
    }  # fmt: skip
    assert not any(p["restarts"] for p in status["processes"])


async def test_the_only_worker_of_a_pool_is_not_removed(running: Platform) -> None:
    for wish in ("decode=0", "hybrid=1", "decode=100"):
        done = await asyncio.to_thread(command, running, "scale", wish)
        assert done.returncode == 1
        assert wish.partition("=")[0] in done.stderr


async def test_a_drained_worker_is_seen_and_comes_back(running: Platform) -> None:
    said = await order(running, "drain", "decode-1")
    assert said.splitlines() == ["decode-1 is given nothing new", "decode-1 is drained"]
    async with httpx.AsyncClient(base_url=running.state["admin_url"]) as admin:
        worker = (await admin.get("/admin/v1/workers/decode-1")).json()
        assert (worker["state"], worker["why"]) == ("drained", "draining")
    assert " drained " in (await order(running, "status"))
    await order(running, "drain", "decode-1", "--undo")
    clients = Clients(running.base_url)
    await clients.ask(1)
    await clients.close()


def test_the_doctor_finds_a_healthy_platform_healthy_and_moves_real_bytes(
    running: Platform,
) -> None:
    done = command(running, "doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    wrong = [f for f in findings.values() if f["state"] == "bad"]
    assert not [f for f in wrong if f["what"] not in ("disk", "memory", "open files")], wrong
    for what in (
        "processes",
        "ports",
        "router",
        "routers",
        "pairing",
        "store",
        "certificates",
        "clock",
        "canary",
    ):
        assert findings[what]["state"] == "ok", findings[what]
    assert "bytes of KV moved" in findings["canary"]["said"]
    assert done.returncode == int(bool(wrong))


def test_the_store_shows_an_operator_what_the_workers_put_there_and_others_nothing(
    running: Platform,
) -> None:
    held = json.loads(command(running, "cache", "stats", "--json").stdout)
    assert held["memory_parts"] > 0
    [store] = [p["address"] for p in running.state["processes"] if p["role"] == "store"]
    refused = command(running, "cache", "stats", "--store-address", store)
    assert refused.returncode == 1
    assert "does it ask for a certificate (--station-ca)" in refused.stderr


def test_status_is_told_again_and_again(running: Platform) -> None:
    watching = [*CLI, "status", "--watch", "--json", "--data-dir", str(running.data_dir)]
    with subprocess.Popen(
        watching, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            assert process.stdout is not None
            first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        finally:
            process.terminate()
    assert first["ready"] is second["ready"] is True
    assert len(second["members"]) == 3
    heard = [(r["router_id"], r["error"], r["peers"]) for r in second["routers"]]
    assert heard == [("router-1", "", 1), ("router-2", "", 1)]


def test_nothing_is_watched_where_nothing_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "diptych.cli", "status", "--watch", "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"diptych: nothing is running on {tmp_path}\n")
