"""What is written down, and what happens when it cannot be."""

import asyncio
import sqlite3
import time
from typing import Any

import pytest

from diptych.gateway.tenancy.admission import Spent, at_the_door, for_tokens, used_of
from diptych.gateway.tenancy.book import MemoryBook
from diptych.gateway.tenancy.clerk import Clerk
from diptych.gateway.tenancy.keys import ANONYMOUS, Limits, Principal, Scope
from diptych.gateway.tenancy.meters import Quota, Rate
from diptych.gateway.tenancy.office import Office
from diptych.gateway.tenancy.usage import Record
from diptych.gateway.tenancy.visit import Visit
from diptych.testing.clock import settle

DAY_S = 86_400
NOON_S = 1_796_040_000.0  # 2026-11-30, 12:00 UTC


def a_visit(office: Office, number: int, caller: Principal = ANONYMOUS) -> Visit:
    visit = Visit(caller, office.book, f"req_{number}", "/v1/models")
    visit.status = 200
    return visit


async def requests_of(office: Office) -> int:
    totals = await office.usage.totals("2000-01-01", "2999-12-31", "tenant")
    return sum(total.requests for total in totals)


async def test_a_disk_that_fails_delays_records_and_loses_none(office: Office) -> None:
    usage, clerk = office.usage, office.clerk
    add, failures = usage.add, [sqlite3.OperationalError("disk full"), OSError("gone")]

    async def flaky(records: list[Record]) -> None:
        if failures:
            raise failures.pop()
        await add(records)

    usage.add = flaky  # type: ignore[method-assign]
    for number in range(5):
        visit = a_visit(office, number)
        clerk.open(visit)
        clerk.close(visit)
    await clerk.settled()  # gives up at the first failure
    await settle(lambda: not failures, within_s=5)
    await clerk.settled()
    assert await requests_of(office) == 5
    assert clerk.num_dropped == 0


async def test_what_is_left_is_written_when_the_gateway_leaves(open_office_here: Any) -> None:
    office = await open_office_here()
    for number in range(3):
        office.clerk.close(a_visit(office, number))
    await office.clerk.finish()
    assert await requests_of(office) == 3


async def test_memory_is_bounded_when_nothing_can_be_written(
    office: Office, monkeypatch: Any
) -> None:
    monkeypatch.setattr("diptych.gateway.tenancy.clerk.MAX_WAITING", 10)
    idle = Clerk(office.book, office.usage, office.audit)
    for number in range(25):
        idle.close(a_visit(office, number))
    assert idle.num_dropped == 15
    await idle.settled()
    assert await requests_of(office) == 10


async def test_the_platforms_own_questions_are_not_accounted(office: Office) -> None:
    canary = Principal("canary", "p", frozenset({Scope.INFERENCE}), is_accounted=False)
    office.clerk.close(a_visit(office, 1, canary))
    await office.clerk.settled()
    assert await requests_of(office) == 0


async def test_leases_are_renewed_while_requests_run(office: Office, monkeypatch: Any) -> None:
    monkeypatch.setattr("diptych.gateway.tenancy.clerk.RENEW_S", 0.01)
    renewed: list[dict[str, Any]] = []
    caller = Principal("k", "t", ANONYMOUS.scopes, limits=Limits(concurrency=1))

    class Watched(MemoryBook):
        async def renew(self, leases: dict[str, Any]) -> None:
            renewed.append(leases)

    clerk = Clerk(Watched(), office.usage, office.audit)
    visit = a_visit(office, 1, caller)
    clerk.open(visit)
    await visit.enter()
    working = asyncio.create_task(clerk.run())
    await settle(lambda: len(renewed) > 1)
    working.cancel()
    await asyncio.wait([working])
    assert renewed[0] == {"req_1": visit.holds}
    clerk.close(visit)
    await clerk.settled()


async def test_retention_deletes_what_is_old_and_says_so(open_office_here: Any) -> None:
    office = await open_office_here(usage_days=1, audit_days=1)
    visit = a_visit(office, 1)
    visit.began_s -= 2 * DAY_S
    office.clerk.close(visit)
    await office.clerk.settled()
    await office.clerk.expire()  # it did at the start, too; either may have been the one
    assert await office.usage.forget(key_id="anonymous") == 0
    assert await requests_of(office) == 1  # totals stay


async def test_a_quota_is_not_forgotten_by_a_restart(office: Office) -> None:
    visit = a_visit(office, 1, Principal("k", "t", ANONYMOUS.scopes))
    visit._count = lambda: Spent(prompt=40, completion=5)
    office.clerk.close(visit)
    await office.clerk.settled()
    caller = Principal("k", "t", ANONYMOUS.scopes, limits=Limits(tokens_per_day=50))
    for prompt, is_refused in ((6, True), (4, False)):
        restarted = MemoryBook(office.usage.spent)
        taken = await restarted.take("r", for_tokens(caller, prompt, 1, visit.began_s))
        assert (taken.refused is not None) == is_refused


def test_what_a_caller_holds_follows_from_its_limits() -> None:
    limits = Limits(requests_per_min=1, concurrency=2, tokens_per_min=3, tokens_per_month=4)
    caller = Principal("k", "t", frozenset(), limits=limits, tenant_limits=Limits(tokens_per_day=9))
    assert [hold.meter.name for hold in at_the_door(caller)] == [
        "diptych:{t}:key:k:rpm",
        "diptych:{t}:key:k:places",
    ]
    holds = for_tokens(caller, 100, 1_000_000, NOON_S)
    assert {hold.meter.name: hold.units for hold in holds} == {
        "diptych:{t}:key:k:tpm": 8292,
        "diptych:{t}:key:k:month:2026-11-01": 8292,
        "diptych:{t}:tenant:t:day:2026-11-30": 8292,
    }
    ends = {hold.meter.name: hold.meter.ends_s for hold in holds if isinstance(hold.meter, Quota)}
    assert set(ends.values()) == {1_796_083_200}  # both end at midnight: it is the 30th
    spent = Spent(prompt=100, cached=55, completion=10)
    for hold in holds:
        assert used_of(hold, spent) == (61 if isinstance(hold.meter, Rate) else 110)
    assert at_the_door(ANONYMOUS) == for_tokens(ANONYMOUS, 1, 1, NOON_S) == []


async def test_f23_a_clock_that_is_set_back_makes_no_duration_negative(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit, then_s = a_visit(office, 1), time.time()
    monkeypatch.setattr(time, "time", lambda: then_s - 3600)
    assert 0 <= visit.record().total_ms < 60_000
    assert abs(visit.record().began_s - then_s) < 60
