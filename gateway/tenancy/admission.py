"""Which meters a caller has, and what a request takes of them. Pure.

A meter is named `diptych:{tenant}:key|tenant:id:kind[:window]`; the braces keep a tenant's meters
together in a Redis cluster.
"""

from calendar import timegm
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from diptych.gateway.tenancy.keys import Limits, Principal
from diptych.gateway.tenancy.meters import Hold, Places, Quota, Rate

RESERVE_CAP = 8192  # of output: or a default limit of 128k would starve a key
CACHED_DIVISOR = 10  # a cached prompt token counts a tenth of a token


@dataclass(frozen=True, slots=True)
class Spent:
    """What a request has used."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0

    @property
    def weighted(self) -> int:
        """For tokens a minute."""
        cached = min(self.cached, self.prompt)
        return self.prompt - cached + -(-cached // CACHED_DIVISOR) + self.completion

    @property
    def total(self) -> int:
        """For quotas."""
        return self.prompt + self.completion


def at_the_door(caller: Principal) -> list[Hold]:
    """Before the body is read: one request, one place."""
    holds = []
    for kind, owner, limits in _owners(caller):
        name = f"diptych:{{{caller.tenant}}}:{kind}:{owner}"
        if limits.requests_per_min:
            holds.append(Hold(Rate(f"{name}:rpm", limits.requests_per_min), 1))
        if limits.concurrency:
            holds.append(Hold(Places(f"{name}:places", limits.concurrency), 1))
    return holds


def for_tokens(caller: Principal, prompt: int, max_new: int, now_s: float) -> list[Hold]:
    """Once it is known how long the prompt is: all of it, and some of the output."""
    tokens = prompt + min(max_new, RESERVE_CAP)
    holds: list[Hold] = []
    for kind, owner, limits in _owners(caller):
        name = f"diptych:{{{caller.tenant}}}:{kind}:{owner}"
        if limits.tokens_per_min:
            holds.append(Hold(Rate(f"{name}:tpm", limits.tokens_per_min), tokens))
        day, first_of_month = _windows(now_s)
        if limits.tokens_per_day:
            quota = _quota(f"{name}:day", limits.tokens_per_day, (kind, owner), day, 1)
            holds.append(Hold(quota, tokens))
        if limits.tokens_per_month:
            quota = _quota(
                f"{name}:month", limits.tokens_per_month, (kind, owner), first_of_month, 32
            )
            holds.append(Hold(quota, tokens))
    return holds


def used_of(hold: Hold, spent: Spent) -> int:
    """What is charged to a meter in the end."""
    match hold.meter:
        case Rate(name) if name.endswith(":tpm"):
            return spent.weighted
        case Quota():
            return spent.total
        case _:
            return hold.units


def _owners(caller: Principal) -> list[tuple[str, str, Limits]]:
    return [
        ("key", caller.key_id, caller.limits),
        ("tenant", caller.tenant, caller.tenant_limits),
    ]


def _windows(now_s: float) -> tuple[datetime, datetime]:
    day = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day, day.replace(day=1)


def _quota(name: str, limit: int, owner: tuple[str, str], start: datetime, days: int) -> Quota:
    end = start + timedelta(days=days)
    if days > 1:
        end = end.replace(day=1)
    first_day = start.strftime("%Y-%m-%d")
    return Quota(f"{name}:{first_day}", limit, timegm(end.timetuple()), owner, first_day)
