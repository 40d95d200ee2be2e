"""kill -9 and SIGSTOP of a worker under load: every client gets its next token or a clear error."""

import asyncio
import os
import random
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from diptych.router.client import status
from diptych.testing.clock import settle
from diptych.testing.platform import MODEL, Platform
from diptych.testing.wall import Wall

NUM_REQUESTS = 20
MAX_TOKENS = 64
IN_FLIGHT = 200
SHORT = 16  # tokens of an answer
PROMISED_S = 10.0  # next token or a clear error; asserted at twice


@dataclass
class Heard:
    """What one client saw, and when."""

    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish: str | None = None
    error: dict[str, Any] | None = None
    done: bool = False

    def check(self, undisturbed: list[int]) -> None:
        """It ended as it would have ended if nothing had happened."""
        assert self.error is None
        assert self.done and self.finish == "length"
        assert self.token_ids == undisturbed


async def listen(
    client: httpx.AsyncClient, seed: int, max_tokens: int = MAX_TOKENS, into: Heard | None = None
) -> Heard:
    heard = into or Heard()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tell me " * (1 + seed * 7 % 60)}],
        "max_tokens": max_tokens,
        "seed": seed,
        "ignore_eos": True,
        "stream": True,
        "thinking": {"type": "disabled"},
        "return_token_ids": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            heard.error = orjson.loads(await reply.aread())["error"]
            heard.times_s.append(time.monotonic())
            return heard
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            heard.times_s.append(time.monotonic())
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                heard.done = True
                break
            chunk = orjson.loads(data)
            if "error" in chunk:
                heard.error = chunk["error"]
                break
            for choice in chunk["choices"]:
                heard.token_ids += choice.get("token_ids") or []
                heard.finish = choice["finish_reason"] or heard.finish
    return heard


async def run_load(running: Platform, role: str, sign: signal.Signals) -> tuple[list[Heard], float]:
    """Twenty streams; when half of them have tokens, one worker of the role gets the signal."""
    async with httpx.AsyncClient(base_url=running.base_url, timeout=100) as client:
        all_heard = [Heard() for _ in range(NUM_REQUESTS)]
        tasks = [
            asyncio.create_task(listen(client, seed, into=heard))
            for seed, heard in enumerate(all_heard)
        ]
        await settle(lambda: sum(bool(heard.token_ids) for heard in all_heard) >= 10, within_s=20)
        victim = running.pids(role)[0]
        os.kill(victim, sign)
        struck_s = time.monotonic()
        try:
            return list(await asyncio.wait_for(asyncio.gather(*tasks), 100)), struck_s
        finally:
            if sign is signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)


def check_outcomes(all_heard: list[Heard], struck_s: float, expected: list[list[int]]) -> None:
    """Nobody fails, silences are bounded, and what was heard is the undisturbed answer."""
    for heard, undisturbed in zip(all_heard, expected, strict=True):
        heard.check(undisturbed)
        after = [t for t in heard.times_s if t >= struck_s]
        if after:
            assert after[0] - struck_s < 2 * PROMISED_S


@dataclass(frozen=True)
class Fleet:
    """Workers, and what they answer when nobody disturbs them."""

    running: Platform
    expected: list[list[int]]


@pytest.fixture(scope="module")
def fleet(workers: Platform) -> Fleet:
    expected = [heard.token_ids for heard in asyncio.run(run_undisturbed(workers))]
    assert all(len(ids) == MAX_TOKENS for ids in expected)
    return Fleet(workers, expected)


async def run_undisturbed(running: Platform) -> list[Heard]:
    async with httpx.AsyncClient(base_url=running.base_url, timeout=100) as client:
        return list(await asyncio.gather(*(listen(client, s) for s in range(NUM_REQUESTS))))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("role", "sign"),
    [
        ("prefill", signal.SIGKILL),
        ("decode", signal.SIGKILL),
        ("prefill", signal.SIGSTOP),
        ("decode", signal.SIGSTOP),
    ],
)
def test_f1_f4_f7_a_struck_worker_costs_a_pause_and_nothing_else(
    fleet: Fleet, role: str, sign: signal.Signals
) -> None:
    all_heard, struck_s = asyncio.run(run_load(fleet.running, role, sign))
    check_outcomes(all_heard, struck_s, fleet.expected)
    fleet.running.wait_for_baseline()


@pytest.mark.timeout(120)
def test_f10_a_router_that_is_killed_costs_nobody_a_token_or_its_turn(fleet: Fleet) -> None:
    """Streams go on without it; who waited in its queue is offered to the next one."""
    running = fleet.running
    [old] = running.pids("router")

    async def strike() -> list[Heard]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=running.base_url, timeout=100, limits=limits
        ) as client:
            tasks = [
                asyncio.create_task(listen(client, number % NUM_REQUESTS, SHORT))
                for number in range(IN_FLIGHT)
            ]
            async with asyncio.timeout(30):
                seen = await status(running.state["router"], 5.0)
                while seen.queued < 20 or seen.leases - seen.queued < 20:
                    seen = await status(running.state["router"], 5.0)
            os.kill(old, signal.SIGKILL)
            return list(await asyncio.wait_for(asyncio.gather(*tasks), 100))

    for number, heard in enumerate(asyncio.run(strike())):
        heard.check(fleet.expected[number % NUM_REQUESTS][:SHORT])
    running.wait_for_baseline()
    assert running.pids("router") != [old]


@pytest.mark.timeout(120)
def test_f12_clients_that_leave_free_everything_on_every_station(fleet: Fleet) -> None:
    async def leave_early() -> None:
        async with httpx.AsyncClient(base_url=fleet.running.base_url, timeout=100) as client:
            tasks = [asyncio.create_task(listen(client, s)) for s in range(2 * NUM_REQUESTS)]
            dice = random.Random("leaving")
            for task in dice.sample(tasks, len(tasks)):
                await asyncio.sleep(dice.uniform(0, 0.1))
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(leave_early())
    fleet.running.wait_for_baseline()


@pytest.mark.timeout(120)
def test_f23_clocks_that_jump_an_hour_either_way_touch_no_request(fleet: Fleet, wall: Wall) -> None:
    """Leases, queues and deadlines run on another clock; the tier tolerates it."""
    before = {p["id"]: p["pid"] for p in fleet.running.state["processes"]}

    async def jump_under_streams() -> list[Heard]:
        async with httpx.AsyncClient(base_url=fleet.running.base_url, timeout=100) as client:
            all_heard = [Heard() for _ in range(10)]
            tasks = [
                asyncio.create_task(listen(client, seed, 32, heard))
                for seed, heard in enumerate(all_heard)
            ]
            for number, ahead_s in enumerate((3600.0, -3600.0, 0.0, -3600.0, 3600.0), 1):
                await settle(lambda n=number: len(all_heard[0].token_ids) >= 4 * n, within_s=20)
                wall.set(ahead_s)
            await asyncio.gather(*tasks)
            wall.set(-3600.0)
            return [*all_heard, *await asyncio.gather(*(listen(client, s, 8) for s in range(5)))]

    try:
        for number, heard in enumerate(asyncio.run(jump_under_streams())):
            heard.check(fleet.expected[number % 10][: 32 if number < 10 else 8])
        fleet.running.wait_for_baseline()
    finally:
        wall.set(0.0)
    assert {p["id"]: p["pid"] for p in fleet.running.state["processes"]} == before
    assert "lease lapsed" not in fleet.running.log()
