"""Conversations over the cache tier: wherever their KV is found, the tokens are the same."""

import asyncio
import logging
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.testing.clock import settle
from diptych.testing.platform import MODEL, Platform, platform

log = logging.getLogger(__name__)

NUM_CONVERSATIONS = 20
MAX_TOKENS = 12
AT_ONCE = 4
FLAGS = ("--prefill", "2", "--decode", "1")
WORDS = ("stone", "river", "count", "twice", "wide", "nobody", "seven", "blue", "lamp", "paper")


@dataclass(frozen=True)
class Answer:
    """What one request gave, and where its prompt was found."""

    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached: int
    tiers: dict[str, int]


@dataclass
class Conversation:
    """Messages, and how its answers are drawn."""

    number: int
    messages: list[dict[str, str]]

    @classmethod
    def begun(cls, number: int) -> "Conversation":
        draw = random.Random(number)
        text = " ".join(draw.choice(WORDS) for _ in range(draw.randrange(60, 260)))
        return cls(number, [{"role": "user", "content": text}])

    def gone_on(self, answer: Answer) -> "Conversation":
        draw = random.Random(-self.number - 1)
        more = " ".join(draw.choice(WORDS) for _ in range(draw.randrange(5, 60)))
        said = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": more}]
        return Conversation(self.number, [*self.messages, *said])


class Asker:
    """Asks a platform, a few at a time."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def all(self, conversations: list[Conversation], salt: str = "") -> list[Answer]:
        return await asyncio.gather(*(self.one(c, salt) for c in conversations))

    async def one(self, conversation: Conversation, salt: str = "") -> Answer:
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": conversation.messages,
            "max_tokens": MAX_TOKENS,
            "seed": conversation.number,
            "ignore_eos": True,
            "return_token_ids": True,
            "thinking": {"type": "disabled"},
        }
        if salt:
            body["cache_salt"] = salt
        async with self._turn:
            reply = await self._client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        (choice,), usage = found["choices"], found["usage"]
        details = usage["prompt_tokens_details"]
        return Answer(
            tuple(choice["token_ids"]),
            choice["message"]["content"],
            usage["prompt_tokens"],
            details["cached_tokens"],
            details.get("cached_tokens_by_tier", {}),
        )


def share_found(answers: list[Answer], tier: str) -> float:
    """Answers of which some of the prompt came from there."""
    return sum(answer.tiers.get(tier, 0) > 0 for answer in answers) / len(answers)


def note(place: str, answers: list[Answer]) -> None:
    """What was found, for whoever runs this with --log-cli-level=INFO."""
    memory, disk = (sum(a.tiers.get(tier, 0) for a in answers) for tier in ("memory", "disk"))
    log.info(
        "%s: prompts=%d tokens=%d device=%d memory=%d disk=%d",
        place,
        len(answers),
        sum(answer.prompt_tokens for answer in answers),
        sum(answer.cached for answer in answers) - memory - disk,
        memory,
        disk,
    )


def ids(answers: list[Answer]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


def blocks_known(running: Platform, tier: str) -> float:
    """How many blocks of a tier the router knows."""
    router = next(p for p in running.state["processes"] if p["role"] == "router")
    shown = httpx.get(f"http://{router['metrics_address']}/metrics").text
    (line,) = [
        n for n in shown.splitlines() if n.startswith("llm_index_tier_blocks{") and tier in n
    ]
    return float(line.rpartition(" ")[2])


async def kill_prefill(running: Platform) -> None:
    """All prefill workers lose their pages; the store keeps its memory."""
    old = running.pids("prefill")
    for pid in old:
        os.kill(pid, signal.SIGKILL)
    await settle(
        lambda: not set(running.pids("prefill")) & set(old) and bool(running.status().get("ready")),
        within_s=40,
    )


@pytest.mark.timeout(400)
async def test_a_hit_of_any_tier_gives_the_tokens_of_a_cold_run(tmp_path: Path) -> None:
    await compare_all_places(tmp_path, NUM_CONVERSATIONS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_hits_of_many_conversations_give_the_tokens_of_a_cold_run(tmp_path: Path) -> None:
    await compare_all_places(tmp_path, 10 * NUM_CONVERSATIONS)


async def compare_all_places(tmp_path: Path, count: int) -> None:
    """Two turns of so many conversations: computed, and found at each place where KV can be."""
    first = [Conversation.begun(number) for number in range(count)]
    with platform(tmp_path, *FLAGS) as running:
        async with httpx.AsyncClient(base_url=running.base_url, timeout=120) as client:
            asker = Asker(client)
            cold = await asker.all(first)
            assert not any(answer.cached for answer in cold)
            note("cold", cold)
            await settle(lambda: blocks_known(running, "memory") > count, within_s=10)
            again = await asker.all(first)  # on the same worker, or another one by the tier
            note("again", again)
            assert ids(again) == ids(cold)
            assert all(a.cached > 0 for a in again if a.prompt_tokens > 300)
            second = [c.gone_on(answer) for c, answer in zip(first, cold, strict=True)]
            apart = await asker.all(second, salt="apart")
            assert not any(answer.cached for answer in apart)
            gone_on = await asker.all(second)
            note("second turn", gone_on)
            assert ids(gone_on) == ids(apart)
            await kill_prefill(running)
            brought = await asker.all(second)
            note("new prefill workers", brought)
            assert ids(brought) == ids(apart)
            assert share_found(brought, "memory") > 0.5
            running.wait_for_baseline()
    with platform(tmp_path, *FLAGS) as running:  # every process is new
        async with httpx.AsyncClient(base_url=running.base_url, timeout=120) as client:
            asker = Asker(client)
            await settle(lambda: blocks_known(running, "disk") > count, within_s=10)
            stored = await asker.all(second)
            note("all processes new", stored)
            assert ids(stored) == ids(apart)
            assert share_found(stored, "disk") > 0.5
            for answer in stored:
                assert answer.cached <= answer.prompt_tokens
                assert sum(answer.tiers.values()) in (0, answer.cached)
            running.wait_for_baseline()


@pytest.mark.timeout(200)
async def test_a_tier_that_dies_is_missed_by_nobody(tmp_path: Path) -> None:
    """F13: reads miss, writes are dropped, answers stay; when it is back, it is used again."""
    talks = [Conversation.begun(number) for number in range(6)]
    with platform(tmp_path, *FLAGS) as running:
        async with httpx.AsyncClient(base_url=running.base_url, timeout=60) as client:
            asker = Asker(client)
            cold = await asker.all(talks)
            (store,) = running.pids("store")
            os.kill(store, signal.SIGSTOP)
            try:
                await kill_prefill(running)
                assert ids(await asker.all(talks)) == ids(cold)
            finally:
                os.kill(store, signal.SIGCONT)
            os.kill(store, signal.SIGKILL)
            assert ids(await asker.all(talks, salt="other")) == ids(cold)
            running.wait_for_baseline()
