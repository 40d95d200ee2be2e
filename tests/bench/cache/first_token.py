"""Time to first token of a prompt of 2,000 tokens, by where its KV is found; and for a stranger."""

import json
import random
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from asking import Answer, Asker
from traces import WORDS, Request

from diptych.testing.clock import settle
from diptych.testing.platform import CLI, Platform, environment, platform

PROMPT_TOKENS = 2000
FLAGS = ("--prefill", "1", "--decode", "1", "--num-blocks", "40")  # room for two prompts


@dataclass(frozen=True)
class Figure:
    """The median of some prompts."""

    found: str  # where
    first_token_ms: float
    cached_tokens: int
    sources: str  # as usage tells


def prompts(count: int) -> list[Request]:
    draw = random.Random(2000)
    words = [[draw.randrange(*WORDS) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
    return [Request(tokens=tuple(each)) for each in words]


def figure(found: str, answers: list[Answer]) -> Figure:
    ms = 1e3 * statistics.median(answer.first_token_s for answer in answers)
    cached = int(statistics.median(answer.cached for answer in answers))
    sources = sorted({answer.source for answer in answers})
    return Figure(found, ms, cached, ", ".join(sources))


async def measure(count: int, folder: Path, tell: Callable[[str], None]) -> list[Figure]:
    """Prompts computed, then found again at each place, on one platform and its successor."""
    asked = prompts(count)
    figures: list[Figure] = []
    with platform(folder, *FLAGS) as running:
        async with httpx.AsyncClient(base_url=running.base_url, timeout=120) as client:
            asker = Asker(client)
            await warm(asker)
            tell("cold and from a worker's own pages")
            cold, own = [], []
            for request in asked:  # again at once, before its pages are given to others
                cold.append(await asker.ask(request))
                own.append(await asker.ask(request))
            figures += [figure("nowhere", cold), figure("the worker's own pages", own)]
            tell("from the store's memory")
            memory = [await asker.ask(request) for request in asked]
            figures.append(figure("the store's memory", memory))
    with platform(folder, *FLAGS) as running:
        async with httpx.AsyncClient(base_url=running.base_url, timeout=120) as client:
            await warm(Asker(client))
            tell("from the store's disk, all processes new")
            disk = [await Asker(client).ask(request) for request in asked]
            figures.append(figure("the store's disk", disk))
            tell("by another tenant")
            keys = [key_of(running, tenant) for tenant in ("acme", "zenith")]
            await settle(lambda: is_locked(running.base_url), within_s=10)
            for key, whose in zip(
                keys, ("tenant acme, the same", "tenant zenith, the same"), strict=True
            ):
                other = Asker(client, key)
                figures.append(figure(whose, [await other.ask(request) for request in asked]))
    return figures


async def warm(asker: Asker) -> None:
    draw = random.Random(1)
    for _ in range(3):
        await asker.ask(Request(tokens=tuple(draw.randrange(*WORDS) for _ in range(300))))


def key_of(running: Platform, tenant: str) -> str:
    command = [*CLI, "keys", "create", "--name", tenant, "--tenant", tenant, "--json"]
    command += ["--data-dir", str(running.data_dir)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30, env=environment())
    key: str = json.loads(done.stdout)["key"]
    return key


def is_locked(base_url: str) -> bool:
    """Whether the gateway has seen the first key: without one nobody comes in any more."""
    return httpx.get(f"{base_url}/v1/models").status_code == 401
