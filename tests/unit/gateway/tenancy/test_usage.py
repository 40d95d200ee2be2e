"""Who used what."""

import dataclasses
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from diptych.gateway.tenancy.meters import Quota
from diptych.gateway.tenancy.usage import Record, Total
from diptych.gateway.tenancy.usagefile import UsageFile

MONDAY, TUESDAY = 1_796_000_000.0, 1_796_086_400.0  # 2026-11-30, 2026-12-01


def a_record(request_id: str, **fields: Any) -> Record:
    plain = Record(
        request_id=request_id,
        key_id="k",
        tenant="t",
        model="m",
        endpoint="/v1/chat/completions",
        user_hash="",
        began_s=MONDAY,
        first_byte_ms=5,
        total_ms=9,
        prompt=10,
        cached=4,
        completion=3,
        reasoning=1,
        finish="stop",
        status=200,
    )
    return dataclasses.replace(plain, **fields)


@pytest.fixture
async def usage(tmp_path: Path) -> AsyncIterator[UsageFile]:
    usage = UsageFile(tmp_path)
    yield usage
    await usage.close()


async def test_totals_add_up_by_key_tenant_model_and_day(usage: UsageFile) -> None:
    await usage.add([a_record("1"), a_record("2", key_id="l"), a_record("3", began_s=TUESDAY)])
    both = ("2026-11-30", "2026-12-01")
    assert await usage.totals(*both, "tenant") == [Total("t", 3, 0, 30, 12, 9, 3, 0)]
    assert await usage.totals(*both, "key") == [
        Total("k", 2, 0, 20, 8, 6, 2, 0),
        Total("l", 1, 0, 10, 4, 3, 1, 0),
    ]
    assert [(t.group, t.requests) for t in await usage.totals(*both, "day")] == [
        ("2026-11-30", 2),
        ("2026-12-01", 1),
    ]
    assert await usage.totals("2026-12-01", "2026-12-31", "model") == [
        Total("m", 1, 0, 10, 4, 3, 1, 0)
    ]
    assert await usage.totals("2027-01-01", "2027-01-31", "key") == []


async def test_a_request_counts_once_however_often_it_is_told(usage: UsageFile) -> None:
    for _ in range(3):
        await usage.add([a_record("1"), a_record("1")])
    assert (await usage.totals("2026-11-30", "2026-11-30", "key"))[0].requests == 1


@pytest.mark.parametrize(
    ("status", "finish", "total"),
    [
        (200, "stop", Total("k", 1, 0, 10, 4, 3, 1, 0)),
        (200, "aborted", Total("k", 1, 1, 10, 4, 3, 1, 0)),  # the client's own wish is billed
        (499, "aborted", Total("k", 1, 1, 10, 4, 3, 1, 0)),
        (400, "error", Total("k", 1, 1, 0, 0, 0, 0, 13)),
        (503, "error", Total("k", 1, 1, 0, 0, 0, 0, 13)),
        (200, "error", Total("k", 1, 1, 0, 0, 0, 0, 13)),  # it broke after the status line
    ],
)
async def test_what_we_failed_is_not_billed(
    usage: UsageFile, status: int, finish: str, total: Total
) -> None:
    await usage.add([a_record("1", status=status, finish=finish)])
    assert await usage.totals("2026-11-30", "2026-11-30", "key") == [total]


async def test_records_are_deleted_by_key_user_and_age_and_totals_stay(usage: UsageFile) -> None:
    await usage.add(
        [
            a_record("1", key_id="l"),
            a_record("2", user_hash="u"),
            a_record("3", user_hash="u"),
            a_record("4", began_s=TUESDAY),
        ]
    )
    assert await usage.forget(user_hash="u") == 2
    assert await usage.forget(key_id="l") == 1
    assert await usage.forget(key_id="l") == 0
    assert await usage.expire(TUESDAY) == 0
    assert await usage.expire(TUESDAY + 1) == 1
    assert (await usage.totals("2026-11-30", "2026-12-01", "tenant"))[0].requests == 4


async def test_a_quota_knows_what_its_owner_spent(usage: UsageFile) -> None:
    await usage.add([a_record("1"), a_record("2", key_id="l"), a_record("3", began_s=TUESDAY)])
    for owner, first_day, spent in (
        (("key", "k"), "2026-11-01", 26),
        (("key", "k"), "2026-12-01", 13),
        (("tenant", "t"), "2026-11-01", 39),
        (("tenant", "other"), "2026-11-01", 0),
    ):
        assert await usage.spent(Quota("q", 1, 1, owner, first_day)) == spent


async def test_the_last_use_is_known_to_the_minute(usage: UsageFile) -> None:
    await usage.add([a_record("1", began_s=MONDAY + 125), a_record("2", began_s=MONDAY)])
    assert await usage.last_used() == {"k": (MONDAY + 125) // 60 * 60}


async def test_the_files_are_the_owners_only(usage: UsageFile, tmp_path: Path) -> None:
    await usage.add([a_record("1")])
    assert modes_in(tmp_path) == {0o600}


def modes_in(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
