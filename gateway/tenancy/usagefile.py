"""Usage in SQLite, in the data folder. Everything runs in one thread of its own."""

import asyncio
import dataclasses
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy import privatefile
from diptych.gateway.tenancy.meters import Quota
from diptych.gateway.tenancy.usage import COUNTS, GroupBy, Record, Total, counts_of

FILE = "usage.sqlite3"
BUSY_S = 5.0
_COLUMNS = {"key": "key_id", "tenant": "tenant", "model": "model", "day": "day"}
_FIELDS = tuple(field.name for field in dataclasses.fields(Record))
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS records (
  request_id TEXT PRIMARY KEY, {", ".join(_FIELDS[1:])}
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS records_by_time ON records (began_s);
CREATE INDEX IF NOT EXISTS records_by_key ON records (key_id);
CREATE TABLE IF NOT EXISTS totals (
  day TEXT, key_id TEXT, tenant TEXT, model TEXT,
  {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS)},
  PRIMARY KEY (day, key_id, tenant, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS last_used (key_id TEXT PRIMARY KEY, time_s REAL) WITHOUT ROWID;
"""
_ADD = f"INSERT OR IGNORE INTO records VALUES ({', '.join('?' * len(_FIELDS))})"
_COUNT = f"""
INSERT INTO totals VALUES (?, ?, ?, ?, {", ".join("?" * len(COUNTS))})
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)}
"""
_USED = """
INSERT INTO last_used VALUES (?, ?)
ON CONFLICT DO UPDATE SET time_s = max(time_s, excluded.time_s)
"""

Answer = TypeVar("Answer")


class UsageFile:
    """A UsageStore for the gateways of one machine."""

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / FILE
        try:
            privatefile.make(path)
            privatefile.check(path)
            self._database = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
            self._database.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise Misconfigured(f"{path}: not a usable usage store: {error}") from None
        self._thread = ThreadPoolExecutor(1, "usage")

    async def add(self, records: Sequence[Record]) -> None:
        await self._run(lambda database: _add(database, records))

    async def totals(self, first_day: str, last_day: str, group_by: GroupBy) -> list[Total]:
        column = _COLUMNS[group_by]
        sums = ", ".join(f"sum({name})" for name in COUNTS)
        query = (
            f"SELECT {column}, {sums} FROM totals WHERE day BETWEEN ? AND ? "
            f"GROUP BY {column} ORDER BY {column}"
        )
        rows = await self._run(lambda d: d.execute(query, [first_day, last_day]).fetchall())
        return [Total(*row) for row in rows]

    async def spent(self, quota: Quota) -> int:
        kind, name = quota.owner
        query = (
            "SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM totals "
            f"WHERE {_COLUMNS[kind]} = ? AND day >= ?"
        )
        row = await self._run(lambda d: d.execute(query, [name, quota.first_day]).fetchone())
        return int(row[0])

    async def last_used(self) -> dict[str, float]:
        return dict(
            await self._run(lambda d: d.execute("SELECT key_id, time_s FROM last_used").fetchall())
        )

    async def forget(self, *, key_id: str = "", user_hash: str = "") -> int:
        column, name = ("key_id", key_id) if key_id else ("user_hash", user_hash)
        return await self._delete(f"{column} = ?", name)

    async def expire(self, before_s: float) -> int:
        return await self._delete("began_s < ?", before_s)

    async def close(self) -> None:
        await self._run(lambda database: database.close())
        self._thread.shutdown()

    async def _delete(self, condition: str, value: object) -> int:
        query = f"DELETE FROM records WHERE {condition}"

        def delete(database: sqlite3.Connection) -> int:
            with database:
                return database.execute(query, [value]).rowcount

        return await self._run(delete)

    async def _run(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, self._database)


def _add(database: sqlite3.Connection, records: Sequence[Record]) -> None:
    with database:
        for record in records:
            if database.execute(_ADD, dataclasses.astuple(record)).rowcount == 0:
                continue  # counted already
            group = (record.day, record.key_id, record.tenant, record.model)
            database.execute(_COUNT, (*group, *counts_of(record)))
            database.execute(_USED, (record.key_id, record.began_s // 60 * 60))
