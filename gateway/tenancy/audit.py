"""The audit log: who did what to whom, when, from where. Appended, chained by hashes, no contents.

An entry's hash covers the one before it, so that a change or a gap shows (`first_broken`). Purging
removes what has expired and leaves a signed checkpoint, from which the chain goes on.
"""

import asyncio
import hashlib
import hmac
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy import privatefile

FILE = "audit.sqlite3"
BUSY_S = 5.0
PAGE = 100
CHECKPOINT = "audit.checkpoint"
_ROOT = "0" * 64
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
  seq INTEGER PRIMARY KEY, time_s REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
  entry TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS checkpoint (
  id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL,
  signature TEXT NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Act:
    """What happened. `before` and `after` hold settings, never secrets."""

    actor: str  # key id, "cli:USER" or "" for a stranger
    origin: str  # address
    action: str  # key.create, key.revoke, auth.failed, …
    object: str = ""
    result: str = "ok"
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """An act in the log."""

    seq: int
    time_s: float
    act: Act
    hash: str


class AuditLog:
    """One file a data folder; gateways and the command line append to it."""

    def __init__(
        self, data_dir: Path, secret: bytes, now_s: Callable[[], float] = time.time
    ) -> None:
        self._path = data_dir / FILE
        self._secret = secret
        self._now_s = now_s
        try:
            privatefile.make(self._path)
            privatefile.check(self._path)
            with self._open() as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise Misconfigured(f"{self._path}: not a usable audit log: {error}") from None

    async def add(self, *acts: Act) -> None:
        """Append; durable when it returns."""
        await asyncio.to_thread(self._add, acts)

    async def page(
        self,
        *,
        from_s: float = 0,
        to_s: float = float("inf"),
        actor: str = "",
        action: str = "",
        after: int = 0,
    ) -> list[Entry]:
        """Up to PAGE entries after the one numbered `after`, oldest first."""
        return await asyncio.to_thread(self._page, from_s, to_s, actor, action, after)

    async def first_broken(self) -> int | None:
        """Number of the first entry that was tampered with or is missing; None: all is well."""
        return await asyncio.to_thread(self._first_broken)

    async def purge(self, before_s: float) -> int:
        """Remove older entries; how many."""
        return await asyncio.to_thread(self._purge, before_s)

    def _add(self, acts: Sequence[Act]) -> None:
        with self._writing() as database:
            seq, last = self._end(database)
            for act in acts:
                seq, time_s = seq + 1, self._now_s()
                text = json.dumps(asdict(act), sort_keys=True)
                last = _hash(last, seq, time_s, text)
                row = [seq, time_s, act.actor, act.action, text, last]
                database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", row)

    def _page(self, from_s: float, to_s: float, actor: str, action: str, after: int) -> list[Entry]:
        query = (
            "SELECT seq, time_s, entry, hash FROM entries WHERE seq > ? AND time_s BETWEEN ? AND ? "
            "AND (? = '' OR actor = ?) AND (? = '' OR action = ?) ORDER BY seq LIMIT ?"
        )
        values = [after, from_s, to_s, actor, actor, action, action, PAGE]
        with self._open() as database:
            rows = database.execute(query, values).fetchall()
        return [Entry(seq, at_s, Act(**json.loads(text)), mark) for seq, at_s, text, mark in rows]

    def _first_broken(self) -> int | None:
        with self._open() as database:
            database.execute("BEGIN")  # one state of the file
            seq, last = self._start(database)
            for row in database.execute(
                "SELECT seq, time_s, entry, hash FROM entries ORDER BY seq"
            ):
                seq += 1
                if row[0] != seq or row[3] != _hash(last, seq, row[1], row[2]):
                    return seq
                last = row[3]
        return None

    def _purge(self, before_s: float) -> int:
        with self._writing() as database:
            query = "SELECT seq, hash FROM entries WHERE time_s < ? ORDER BY seq DESC LIMIT 1"
            last = database.execute(query, [before_s]).fetchone()
            if last is None:
                return 0
            gone = database.execute("DELETE FROM entries WHERE seq <= ?", [last[0]]).rowcount
            row = [*last, self._sign(*last)]
            database.execute("REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", row)
        return gone

    def _start(self, database: sqlite3.Connection) -> tuple[int, str]:
        """Where the chain begins: at nothing, or at a checkpoint that we signed."""
        row = database.execute("SELECT seq, hash, signature FROM checkpoint").fetchone()
        if row is None:
            return 0, _ROOT
        is_ours = hmac.compare_digest(row[2], self._sign(row[0], row[1]))
        return (row[0], row[1]) if is_ours else (-1, "")  # what follows cannot match

    def _end(self, database: sqlite3.Connection) -> tuple[int, str]:
        row = database.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        return (row[0], row[1]) if row else self._start(database)

    def _sign(self, seq: int, last: str) -> str:
        text = f"{CHECKPOINT} {seq} {last}".encode()
        return hmac.digest(self._secret, text, "sha256").hex()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)) as database:
            yield database

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            with database:
                yield database


def _hash(before: str, seq: int, time_s: float, text: str) -> str:
    return hashlib.sha256(f"{before}\n{seq}\n{time_s!r}\n{text}".encode()).hexdigest()
