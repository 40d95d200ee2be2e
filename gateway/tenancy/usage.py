"""Who used what: one record a request, and totals by day, key, tenant and model. No text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from diptych.gateway.tenancy.meters import Quota

GroupBy = Literal["key", "tenant", "model", "day"]


@dataclass(frozen=True, slots=True)
class Record:
    """One request that is over, however it ended."""

    request_id: str
    key_id: str
    tenant: str
    model: str  # "" if it was refused before that was known
    endpoint: str
    user_hash: str  # of the user_id, keyed; "" if none was given
    began_s: float
    first_byte_ms: int | None
    total_ms: int
    prompt: int
    cached: int
    completion: int
    reasoning: int
    finish: str  # stop, length, …; done (no tokens); aborted: the client left; error: it failed
    status: int  # HTTP; 499 when the client left before there was one

    @property
    def is_error(self) -> bool:
        return self.status >= 400 or self.finish in ("error", "aborted")

    @property
    def is_billed(self) -> bool:
        """What failed by our fault costs nothing; what the client gave up does."""
        return self.status < 500 and self.finish != "error"

    @property
    def day(self) -> str:
        return day_of(self.began_s)


@dataclass(frozen=True, slots=True)
class Total:
    """A sum. `group` is a key, tenant, model or day."""

    group: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    unbilled_tokens: int  # of requests that we failed


COUNTS = (
    "requests",
    "errors",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "unbilled_tokens",
)


def counts_of(record: Record) -> tuple[int, ...]:
    """What a record adds to a total, in the order of COUNTS."""
    tokens = (record.prompt, record.cached, record.completion, record.reasoning)
    if record.is_billed:
        return (1, int(record.is_error), *tokens, 0)
    return (1, 1, 0, 0, 0, 0, record.prompt + record.completion)


def day_of(time_s: float) -> str:
    """UTC, as 2026-11-30."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d")


class UsageStore(Protocol):
    """Where usage is kept."""

    async def add(self, records: Sequence[Record]) -> None:
        """Count each request once, however often it is added."""

    async def totals(self, first_day: str, last_day: str, group_by: GroupBy) -> list[Total]: ...

    async def spent(self, quota: Quota) -> int:
        """Tokens that the owner of a quota has used in its window."""

    async def last_used(self) -> dict[str, float]:
        """By key, to the minute."""

    async def forget(self, *, key_id: str = "", user_hash: str = "") -> int:
        """Delete the records of a key or a user; totals stay. How many there were."""

    async def expire(self, before_s: float) -> int:
        """Delete older records; totals stay."""

    async def close(self) -> None: ...
