"""Idempotency keys: a call that is repeated gets the first answer again, and acts once."""

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from diptych.gateway.errors import HttpError

KEPT_S = 600.0
MAX_KEPT = 1000
MAX_CHARS = 255


@dataclass(slots=True)
class _Reply:
    asked: bytes
    until_s: float
    answer: dict[str, Any] | None = None  # None: still being made


class Replies:
    """Kept in memory for ten minutes: an answer may hold a secret."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], _Reply] = {}

    async def once(
        self,
        actor: str,
        key: str | None,
        question: str,
        act: Callable[[], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """The answer to the question; 409 if the key stood for another, or is being answered."""
        if key is None:
            return await act()
        asked, now_s = hashlib.sha256(question.encode()).digest(), self._clock()
        self._kept = {k: r for k, r in self._kept.items() if now_s < r.until_s}
        found = self._kept.get((actor, key))
        if found is not None:
            if found.asked != asked or found.answer is None:
                text = "This Idempotency-Key stands for another call, or one that is not over."
                raise HttpError(409, "conflict", text)
            return found.answer
        if len(key) > MAX_CHARS or len(self._kept) >= MAX_KEPT:
            raise HttpError(
                409, "conflict", "This Idempotency-Key is too long, or there are too many."
            )
        reply = self._kept[actor, key] = _Reply(asked, now_s + KEPT_S)
        try:
            reply.answer = await act()
        except BaseException:
            del self._kept[actor, key]
            raise
        return reply.answer
