"""kill -9 of a decode worker at a random token: what clients read is what they would have read."""

import asyncio
import itertools
import os
import random
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest

from diptych.core.phases import Role
from diptych.router.client import status
from diptych.testing.platform import MODEL, Platform

ANSWER = {"thinking": {"type": "disabled"}}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "greet", "parameters": SCHEMA, "strict": True}}
COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")  # hits depend on what was before
MAX_TOKENS = 32
NUM_STREAMS = 120
FREED_S = 5.0  # after a gateway's death; asserted at twice
RUNNING = re.compile(r'^llm_requests{[^}]*state="running"[^}]*} (\S+)', re.MULTILINE)


@dataclass
class Read:
    """All that a client can tell from one stream, but ids and times."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)  # name and arguments by index
    logprobs: list[Any] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    attempts: int = 0
    until: int = 0  # tokens; then it is
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, chunk: dict[str, Any]) -> None:
        self.error = chunk.get("error", self.error)
        self.attempts = chunk.get("timings", {}).get("attempts", self.attempts)
        usage = chunk.get("usage") or {}
        self.usage |= {key: usage[key] for key in COUNTED if usage}
        for choice in chunk.get("choices", ()):
            delta = choice["delta"]
            self.text += delta.get("content") or ""
            self.token_ids += choice.get("token_ids") or []
            if len(self.token_ids) >= self.until:
                self.reached.set()
            self.finish = choice["finish_reason"] or self.finish
            self.logprobs += (choice.get("logprobs") or {}).get("content") or []
            for call in delta.get("tool_calls") or ():
                made = self.calls.setdefault(call["index"], ["", ""])
                made[0] += call["function"].get("name") or ""
                made[1] += call["function"].get("arguments") or ""

    def seen(self) -> tuple[Any, ...]:
        """What must be the same however often a worker died."""
        return self.text, self.token_ids, self.calls, self.logprobs, self.finish, self.usage


def wish(seed: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tell me " * (2 + 3 * seed)}],
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **ANSWER,
        **fields,
    }


def wishes(stop: str) -> list[dict[str, Any]]:
    """Half of them keep to a grammar; of these, half are calls of a tool."""
    as_json = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    greet = {"type": "function", "function": {"name": "greet"}}
    calls = {"tools": [TOOL], "tool_choice": greet, "parallel_tool_calls": False}
    free = {"ignore_eos": True}
    return [
        wish(0, **free),
        wish(1, **free, logprobs=True, top_logprobs=2),
        wish(2, **free, stop=[stop]),
        wish(3, response_format=as_json),
        wish(4, **calls),
        wish(5, **calls, logprobs=True),
    ]


class Client:
    """Reads streams, and knows how many tokens have come so far."""

    def __init__(self, running: Platform, http: httpx.AsyncClient) -> None:
        self._running = running
        self._http = http

    async def read(self, body: dict[str, Any], into: Read) -> Read:
        headers = {"x-diptych-timings": "1"}
        reading = self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers)
        async with reading as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                data = line.removeprefix("data: ")
                if line.startswith("data: ") and data != "[DONE]":
                    into.take(orjson.loads(data))
        return into

    async def read_all(self, bodies: list[dict[str, Any]]) -> list[Read]:
        return list(await asyncio.gather(*(self.read(body, Read()) for body in bodies)))

    async def busiest(self) -> int:
        """The process id of the decode worker with most sequences."""
        loads: Counter[int] = Counter()
        for process in self._running.state["processes"]:
            if process["role"] != "decode" or not process["pid"]:
                continue
            try:
                page = await self._http.get(f"http://{process['metrics_address']}/metrics")
            except httpx.TransportError:
                continue  # it is starting
            running = RUNNING.search(page.text)
            loads[process["pid"]] = int(float(running[1])) if running else 0
        [(pid, _)] = loads.most_common(1)
        return pid


@dataclass(frozen=True)
class Fleet:
    """Workers, what they are asked, and what they answer when nobody disturbs them."""

    running: Platform
    bodies: list[dict[str, Any]]
    expected: list[Read]


@pytest.fixture(scope="module")
def fleet(workers: Platform) -> Fleet:
    return asyncio.run(undisturbed(workers))


async def undisturbed(running: Platform) -> Fleet:
    async with httpx.AsyncClient(base_url=running.base_url, timeout=60) as http:
        client = Client(running, http)
        [plain] = await client.read_all([wish(2, ignore_eos=True)])
        bodies = wishes(stop=plain.text[len(plain.text) * 3 // 4 :][:4])
        expected = await client.read_all(bodies)
    assert all(read.error is None and read.finish for read in expected)
    assert expected[2].finish == "stop" and expected[4].calls and expected[1].logprobs
    return Fleet(running, bodies, expected)


async def until_another_is_left(running: Platform) -> None:
    """Workers may start more slowly than they are killed; without any, nothing is promised."""
    async with asyncio.timeout(90):
        while True:
            seen = await status(running.state["router"], 5.0)
            if sum(member.join.role is Role.DECODE for member in seen.members) > 1:
                return
            await asyncio.sleep(0.1)


async def strike(fleet: Fleet, times: int) -> int:
    """So many kills, each under all streams; how many streams were struck."""
    struck = 0
    async with httpx.AsyncClient(base_url=fleet.running.base_url, timeout=60) as http:
        client = Client(fleet.running, http)
        for number in range(times):
            await until_another_is_left(fleet.running)
            dice = random.Random(f"kill {number}")
            at = dice.randrange(1, MAX_TOKENS - 4)
            reads = [Read(until=at) for _ in fleet.bodies]
            tasks = [
                asyncio.create_task(client.read(body, read))
                for body, read in zip(fleet.bodies, reads, strict=True)
            ]
            async with asyncio.timeout(30):
                await dice.choice(reads[:2]).reached.wait()
                os.kill(await client.busiest(), signal.SIGKILL)
                await asyncio.gather(*tasks)
            for read, undisturbed in zip(reads, fleet.expected, strict=True):
                assert read.error is None, f"kill {number}: {read.error}"
                assert read.seen() == undisturbed.seen(), f"kill {number} at token {at}"
                struck += read.attempts > 1
    return struck


@pytest.mark.timeout(480)
def test_f7_a_decode_worker_that_dies_at_any_token_costs_a_pause_and_nothing_else(
    fleet: Fleet,
) -> None:
    assert asyncio.run(strike(fleet, 20)) >= 20
    fleet.running.wait_for_baseline()
    assert " resuming key=" in fleet.running.log()  # from a snapshot, not from the prompt


@pytest.mark.timeout(120)
def test_f11_a_gateway_that_dies_leaves_nothing_behind_at_any_station(fleet: Fleet) -> None:
    async def die_under_streams() -> None:
        limits = httpx.Limits(max_connections=None)
        base_url = fleet.running.base_url
        async with httpx.AsyncClient(base_url=base_url, timeout=60, limits=limits) as http:
            client = Client(fleet.running, http)
            reads = [Read(until=3) for _ in range(NUM_STREAMS)]
            tasks = [
                asyncio.create_task(client.read(body, read))
                for body, read in zip(itertools.cycle(fleet.bodies), reads, strict=False)
            ]
            async with asyncio.timeout(30):
                await reads[0].reached.wait()
            [gateway] = fleet.running.pids("gateway")
            os.kill(gateway, signal.SIGKILL)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(end, httpx.TransportError) for end in ends) > NUM_STREAMS // 2

    asyncio.run(die_under_streams())
    fleet.running.wait_until_idle(2 * FREED_S)
    fleet.running.wait_for_baseline()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_f7_two_hundred_times_in_a_row(fleet: Fleet) -> None:
    assert asyncio.run(strike(fleet, 200)) >= 200
    fleet.running.wait_for_baseline()
