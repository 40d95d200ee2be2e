"""Keys in SQLite, in the data folder.

Read on the event loop: a look-up is a few microseconds out of memory, after asking SQLite whether
another process changed the file. So a key made or revoked on the command line counts at once.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy import privatefile
from diptych.gateway.tenancy.keys import ApiKey, Change, Limits

FILE = "keys.sqlite3"
BUSY_S = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
  id TEXT PRIMARY KEY, created_s REAL NOT NULL, record TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS tenants (name TEXT PRIMARY KEY, limits TEXT NOT NULL);
"""


class KeyFile:
    """A KeyStore for the gateways of one machine."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE
        try:
            privatefile.make(self._path)
            privatefile.check(self._path)
            with self._writing() as database:
                database.executescript(_SCHEMA)
            self._reader = _open(self._path)
            self._reader.execute("SELECT count(*) FROM keys").fetchone()
        except (sqlite3.Error, OSError) as error:
            raise Misconfigured(f"{self._path}: not a usable key store: {error}") from None
        self._version = -1
        self._keys: dict[str, ApiKey | None] = {}
        self._tenants: dict[str, Limits] = {}
        self._has_any = False

    async def find(self, key_id: str) -> ApiKey | None:
        self._refresh()
        if key_id not in self._keys:
            row = self._reader.execute("SELECT record FROM keys WHERE id = ?", [key_id]).fetchone()
            if row is None:
                return None  # not remembered: a stranger must not fill our memory
            self._keys[key_id] = _key(row[0])
        return self._keys[key_id]

    async def has_any(self) -> bool:
        if not self._has_any:
            self._refresh()
            self._has_any = bool(self._reader.execute("SELECT 1 FROM keys LIMIT 1").fetchone())
        return self._has_any

    async def all(self) -> list[ApiKey]:
        rows = self._reader.execute("SELECT record FROM keys ORDER BY created_s, id").fetchall()
        return [_key(record) for (record,) in rows]

    async def add(self, key: ApiKey) -> None:
        await asyncio.to_thread(self._add, key)

    async def update(self, key_id: str, change: Change) -> ApiKey | None:
        return await asyncio.to_thread(self._update, key_id, change)

    async def tenant_limits(self, tenant: str) -> Limits:
        return (await self.tenants()).get(tenant, Limits())

    async def tenants(self) -> dict[str, Limits]:
        self._refresh()
        if not self._tenants:
            rows = self._reader.execute("SELECT name, limits FROM tenants ORDER BY name")
            self._tenants = {name: Limits(**json.loads(limits)) for name, limits in rows}
            self._tenants.setdefault("", Limits())  # known to be read, even if there is none
        return {name: limits for name, limits in self._tenants.items() if name}

    async def set_tenant_limits(self, tenant: str, limits: Limits) -> None:
        await asyncio.to_thread(self._set_tenant_limits, tenant, limits)

    async def close(self) -> None:
        self._reader.close()

    def _refresh(self) -> None:
        (version,) = self._reader.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._keys.clear()
            self._tenants.clear()

    def _add(self, key: ApiKey) -> None:
        with self._writing() as database:
            database.execute("INSERT INTO keys VALUES (?, ?, ?)", _row(key))

    def _update(self, key_id: str, change: Change) -> ApiKey | None:
        with self._writing() as database:
            found = database.execute("SELECT record FROM keys WHERE id = ?", [key_id]).fetchone()
            if found is None:
                return None
            changed = change(_key(found[0]))
            database.execute("REPLACE INTO keys VALUES (?, ?, ?)", _row(changed))
        return changed

    def _set_tenant_limits(self, tenant: str, limits: Limits) -> None:
        with self._writing() as database:
            row = [tenant, json.dumps(asdict(limits))]
            database.execute("REPLACE INTO tenants VALUES (?, ?)", row)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of a connection of its own: the reader notices it as another's."""
        with closing(_open(self._path)) as database:
            database.execute("BEGIN IMMEDIATE")
            with database:
                yield database


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    return database


def _row(key: ApiKey) -> tuple[str, float, str]:
    return key.id, key.created_s, json.dumps(key.to_json())


def _key(record: str) -> ApiKey:
    return ApiKey.from_json(json.loads(record))
