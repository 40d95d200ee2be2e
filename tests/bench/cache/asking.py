"""Prompts through a platform's HTTP, and where it says that it found them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from traces import Request

from diptych.testing.platform import MODEL

TIERS = ("device", "memory", "disk")


@dataclass(frozen=True)
class Answer:
    """Of one token."""

    first_token_s: float
    prompt_tokens: int
    cached: int
    tiers: dict[str, int]

    @property
    def source(self) -> str:
        """Where most of what was found came from."""
        return max(self.tiers, key=lambda tier: self.tiers[tier]) if self.cached else "computed"


class Asker:
    """Asks for one token behind each prompt."""

    def __init__(self, client: httpx.AsyncClient, key: str = "") -> None:
        self._client = client
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def ask(self, request: Request) -> Answer:
        path, body = "/v1/completions", {"prompt": list(request.tokens)}
        if request.messages:
            path, body = "/v1/chat/completions", chat(request)
        body |= {"model": MODEL, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        began_s, first_s, usage = time.perf_counter(), 0.0, dict[str, Any]()
        async with self._client.stream("POST", path, json=body, headers=self._headers) as reply:
            if reply.status_code != 200:
                raise SystemExit(f"{path}: {reply.status_code} {(await reply.aread()).decode()}")
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    event = orjson.loads(line.removeprefix("data: "))
                    said = any(choice.get("finish_reason") for choice in event["choices"])
                    first_s = first_s or (time.perf_counter() - began_s if said else 0.0)
                    usage = event.get("usage") or usage
        return answer_of(usage, first_s)

    async def tokens_of(self, request: Request) -> Sequence[int]:
        """Those of a prompt, as the gateway makes them."""
        if not request.messages:
            return request.tokens
        body = {"model": MODEL, **chat(request)}
        reply = await self._client.post("/tokenize", json=body, headers=self._headers)
        reply.raise_for_status()
        tokens: list[int] = reply.json()["tokens"]
        return tokens


def chat(request: Request) -> dict[str, Any]:
    return {"messages": list(request.messages), "thinking": {"type": "disabled"}}


def answer_of(usage: dict[str, Any], first_s: float) -> Answer:
    details = usage["prompt_tokens_details"]
    cached = details["cached_tokens"]
    tiers = details.get("cached_tokens_by_tier") or {"device": cached}
    return Answer(first_s, usage["prompt_tokens"], cached, {t: tiers.get(t, 0) for t in TIERS})
