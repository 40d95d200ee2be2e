"""The audit log."""

import asyncio
import sqlite3
from pathlib import Path

from diptych.gateway.tenancy.audit import FILE, PAGE, Act, AuditLog
from diptych.testing.clock import FakeClock


def a_log(folder: Path) -> tuple[AuditLog, FakeClock]:
    clock = FakeClock(2e9)
    return AuditLog(folder, b"secret", clock), clock


async def fill(log: AuditLog, clock: FakeClock, count: int) -> None:
    for number in range(count):
        await log.add(Act("a" if number % 2 else "b", "192.0.2.1", "key.create", f"k{number}"))
        clock.advance(1)


async def test_what_was_done_is_read_back_in_order(tmp_path: Path) -> None:
    log, clock = a_log(tmp_path)
    await fill(log, clock, 4)
    entries = await log.page()
    assert [entry.act.object for entry in entries] == ["k0", "k1", "k2", "k3"]
    assert [entry.seq for entry in entries] == [1, 2, 3, 4]
    assert [e.act.object for e in await log.page(actor="a", from_s=2e9 + 2)] == ["k3"]
    assert [e.act.object for e in await log.page(action="key.create", to_s=2e9)] == ["k0"]
    assert [e.seq for e in await log.page(after=3)] == [4]
    assert await log.page(action="key.revoke") == []


async def test_pages_go_on(tmp_path: Path) -> None:
    log, _ = a_log(tmp_path)
    await log.add(*(Act("a", "", "x") for _ in range(PAGE + 3)))
    first = await log.page()
    assert len(first) == PAGE
    assert len(await log.page(after=first[-1].seq)) == 3


async def test_writers_of_several_processes_make_one_chain(tmp_path: Path) -> None:
    logs = [a_log(tmp_path)[0] for _ in range(4)]
    await asyncio.gather(*(log.add(Act("a", "", "x")) for log in logs * 10))
    assert len(await logs[0].page()) == 40
    assert await logs[0].first_broken() is None


async def test_a_change_a_gap_and_a_forgery_show(tmp_path: Path) -> None:
    for statement, broken in (
        ("UPDATE entries SET entry = replace(entry, 'k3', 'k9') WHERE seq = 4", 4),
        ("UPDATE entries SET time_s = 1 WHERE seq = 2", 2),
        ("DELETE FROM entries WHERE seq = 3", 3),
        ("DELETE FROM entries WHERE seq < 3", 1),
        ("REPLACE INTO checkpoint VALUES (1, 2, '00', '00')", 0),
    ):
        folder = tmp_path / str(abs(hash(statement)))
        log, clock = a_log(folder)
        await fill(log, clock, 6)
        assert await log.first_broken() is None
        database = sqlite3.connect(folder / FILE)
        database.execute(statement)
        database.commit()
        database.close()
        assert await log.first_broken() == broken, statement


async def test_a_purge_leaves_a_chain_that_can_be_checked(tmp_path: Path) -> None:
    log, clock = a_log(tmp_path)
    await fill(log, clock, 6)
    assert await log.purge(2e9 + 3) == 3
    assert [entry.seq for entry in await log.page()] == [4, 5, 6]
    assert await log.first_broken() is None
    assert await log.purge(2e9 + 3) == 0
    assert await log.purge(2e9 + 99) == 3
    await log.add(Act("a", "", "x"))
    assert [entry.seq for entry in await log.page()] == [7]
    assert await log.first_broken() is None
