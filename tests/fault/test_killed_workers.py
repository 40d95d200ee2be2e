"""kill -9 and SIGSTOP of a worker under load: every client gets its next token or a clear error."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from diptych.testing.platform import MODEL, Platform, platform

NUM_REQUESTS = 20
MAX_TOKENS = 96
PROMISED_S = 10.0  # next token or a clear error; asserted at twice


@dataclass
class Heard:
    """What one client saw, and when."""

    token_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish: str | None = None
    error: dict[str, Any] | None = None
    done: bool = False


async def listen(client: httpx.AsyncClient, seed: int) -> Heard:
    heard = Heard()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tell me " * (1 + seed * 7 % 60)}],
        "max_tokens": MAX_TOKENS,
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
        tasks = [asyncio.create_task(listen(client, seed)) for seed in range(NUM_REQUESTS)]
        await asyncio.sleep(random.Random(role).uniform(0.3, 1.0))
        victim = running.pids(role)[0]
        os.kill(victim, sign)
        struck_s = time.monotonic()
        try:
            return list(await asyncio.wait_for(asyncio.gather(*tasks), 100)), struck_s
        finally:
            if sign is signal.SIGSTOP:
                os.kill(victim, signal.SIGCONT)


def check_outcomes(all_heard: list[Heard], struck_s: float, expected: list[list[int]]) -> None:
    """Ends are clear, silences bounded; what was heard begins the undisturbed answer."""
    for heard, undisturbed in zip(all_heard, expected, strict=True):
        if heard.error is not None:
            assert heard.error["code"] and heard.error["message"]
            assert heard.token_ids == undisturbed[: len(heard.token_ids)]
        else:
            assert heard.done and heard.finish == "length"
            assert heard.token_ids == undisturbed
        after = [t for t in heard.times_s if t >= struck_s]
        if after:
            assert after[0] - struck_s < 2 * PROMISED_S


@dataclass(frozen=True)
class Fleet:
    """Two workers of each role, and what they answer when nobody disturbs them."""

    running: Platform
    expected: list[list[int]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with platform(tmp_path_factory.mktemp("fleet"), "--prefill", "2", "--decode", "2") as running:
        expected = [heard.token_ids for heard in asyncio.run(run_undisturbed(running))]
        assert all(len(ids) == MAX_TOKENS for ids in expected)
        yield Fleet(running, expected)


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
def test_f1_f4_f7_a_struck_worker_costs_a_pause_or_a_clear_error(
    fleet: Fleet, role: str, sign: signal.Signals
) -> None:
    all_heard, struck_s = asyncio.run(run_load(fleet.running, role, sign))
    check_outcomes(all_heard, struck_s, fleet.expected)
    fleet.running.wait_for_baseline()


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
