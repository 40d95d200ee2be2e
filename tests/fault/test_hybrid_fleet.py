"""Three hybrid workers as processes, of which one is always stopped, killed or starting."""

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from diptych.router.client import status
from diptych.testing.clock import settle
from diptych.testing.platform import MODEL, Platform, platform

NUM_PROMPTS = 10
MAX_TOKENS = 24
SILENCE_S = 10.0  # promised to a client whose worker is gone; asserted at twice
DEADLINE_S = 60.0
BASELINE_S = 5.0


@dataclass
class Heard:
    """What one client saw."""

    token_ids: list[int] = field(default_factory=list)
    is_done: bool = False
    error: dict[str, Any] | None = None
    longest_s: float = 0.0  # without a word


async def ask(http: httpx.AsyncClient, seed: int, into: Heard | None = None) -> Heard:
    heard = into or Heard()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tell me " * (1 + seed % NUM_PROMPTS * 7)}],
        "max_tokens": MAX_TOKENS,
        "seed": seed % NUM_PROMPTS,
        "ignore_eos": True,
        "stream": True,
        "thinking": {"type": "disabled"},
        "return_token_ids": True,
    }
    last_s = time.monotonic()
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            heard.error = orjson.loads(await reply.aread())["error"]
            return heard
        async for line in reply.aiter_lines():
            data = line.removeprefix("data: ")
            if not line.startswith("data: "):
                continue
            heard.longest_s = max(heard.longest_s, time.monotonic() - last_s)
            last_s = time.monotonic()
            if data == "[DONE]":
                heard.is_done = True
                break
            chunk = orjson.loads(data)
            heard.error = chunk.get("error", heard.error)
            for choice in chunk.get("choices", ()):
                heard.token_ids += choice.get("token_ids") or []
    return heard


@dataclass(frozen=True)
class Fleet:
    """Workers, and what they answer to each prompt when nobody disturbs them."""

    running: Platform
    expected: list[list[int]]

    def http(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(base_url=self.running.base_url, timeout=100, limits=limits)

    def pids(self) -> dict[str, int]:
        """Of the workers that run now."""
        processes = self.running.state["processes"]
        return {p["id"]: p["pid"] for p in processes if p["role"] == "hybrid" and p["pid"]}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    flags = ("--hybrid", "--decode", "3", "--store", "0")
    with platform(tmp_path_factory.mktemp("hybrid"), *flags) as running:
        made = Fleet(running, [])

        async def ask_all() -> list[Heard]:
            async with made.http() as http:
                return list(await asyncio.gather(*(ask(http, n) for n in range(NUM_PROMPTS))))

        for heard in asyncio.run(ask_all()):
            assert heard.is_done and len(heard.token_ids) == MAX_TOKENS
            made.expected.append(heard.token_ids)
        yield made


@pytest.mark.timeout(120)
def test_r2_a_worker_that_is_stopped_fails_no_request_and_holds_none_up(fleet: Fleet) -> None:
    """Half of fifty requests run when it stops; the others come before anybody knows."""
    victim = fleet.pids()["hybrid-1"]

    async def strike() -> list[Heard]:
        async with fleet.http() as http:
            all_heard = [Heard() for _ in range(50)]
            tasks = [
                asyncio.create_task(ask(http, number, heard))
                for number, heard in enumerate(all_heard[:25])
            ]
            await settle(lambda: sum(bool(h.token_ids) for h in all_heard) > 12, within_s=20)
            os.kill(victim, signal.SIGSTOP)
            try:
                tasks += [
                    asyncio.create_task(ask(http, number, all_heard[number]))
                    for number in range(25, 50)
                ]
                return list(await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S))
            finally:
                os.kill(victim, signal.SIGCONT)

    for number, heard in enumerate(asyncio.run(strike())):  # all ended while it stood still
        assert heard.error is None
        assert heard.is_done and heard.token_ids == fleet.expected[number % NUM_PROMPTS]
        assert heard.longest_s < 2 * SILENCE_S
    fleet.running.wait_for_baseline()
    assert fleet.pids()["hybrid-1"] == victim


async def kill_as_they_start(fleet: Fleet, draw: random.Random) -> None:
    """As soon as the one that was killed has joined again, the next one dies."""
    while True:
        await joined(fleet, set(fleet.pids().values()))
        os.kill(pid := draw.choice(sorted(fleet.pids().values())), signal.SIGKILL)
        await settle(lambda pid=pid: pid not in fleet.pids().values(), within_s=20)
        await settle(lambda: len(fleet.pids()) == 3, within_s=60)


async def joined(fleet: Fleet, pids: set[int]) -> None:
    """Until the router has all of them as members."""
    async with asyncio.timeout(60):
        for _ in itertools.count():
            seen = await status(fleet.running.state["router"], 5.0)
            if pids <= {member.join.pid for member in seen.members}:
                return
            await asyncio.sleep(0.05)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_r10_two_hundred_requests_while_workers_die_as_fast_as_they_start(fleet: Fleet) -> None:
    async def live_through() -> Counter[str]:
        ends: Counter[str] = Counter()
        killing = asyncio.create_task(kill_as_they_start(fleet, random.Random("r10")))
        async with fleet.http() as http:

            async def one(number: int) -> None:
                async with asyncio.timeout(DEADLINE_S):
                    heard = await ask(http, number)
                expected = fleet.expected[number % NUM_PROMPTS]
                assert heard.token_ids == expected[: len(heard.token_ids)]
                assert heard.error is not None or heard.token_ids == expected
                ends["right" if heard.error is None else heard.error["code"]] += 1

            async with asyncio.TaskGroup() as requests:
                for number in range(200):
                    requests.create_task(one(number))
                    await asyncio.sleep(0.5)
        assert not killing.done(), killing
        killing.cancel()
        with suppress(asyncio.CancelledError):
            await killing
        return ends

    ends = asyncio.run(live_through())
    restarts = sum(p["restarts"] for p in fleet.running.state["processes"])
    assert ends.total() == 200 and ends["right"] > 180, ends
    assert restarts > 5
    fleet.running.wait_for_baseline(60)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_f12_p6_four_hundred_clients_that_leave_at_any_moment_leave_nothing(fleet: Fleet) -> None:
    async def leave() -> int:
        draw, left = random.Random("leave"), itertools.count()
        async with fleet.http() as http:

            async def one(number: int) -> None:
                try:
                    async with asyncio.timeout(draw.uniform(0.0, 20.0)):
                        heard = await ask(http, number)
                    assert heard.token_ids == fleet.expected[number % NUM_PROMPTS]
                except TimeoutError:
                    next(left)

            async with asyncio.TaskGroup() as requests:
                for number in range(400):
                    requests.create_task(one(number))
        return next(left)

    assert 50 < asyncio.run(leave()) < 400
    fleet.running.wait_for_baseline(2 * BASELINE_S)
