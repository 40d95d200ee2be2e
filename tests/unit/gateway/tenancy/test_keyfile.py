"""Keys in SQLite."""

import asyncio
import dataclasses
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.gateway.tenancy.credential import issue
from diptych.gateway.tenancy.keyfile import FILE, KeyFile
from diptych.gateway.tenancy.keys import ApiKey, Limits, Scope, stored
from diptych.gateway.tenancy.peppers import Peppers

PEPPERS = Peppers((b"pepper",))


def a_key(name: str = "n", created_s: float = 1.0) -> ApiKey:
    credential = issue()
    return ApiKey(
        credential.key_id,
        name,
        "tenant",
        (Scope.INFERENCE, Scope.DEBUG),
        created_s,
        (stored(credential, PEPPERS),),
        models=("m",),
        limits=Limits(requests_per_min=3),
        networks=("10.0.0.0/8",),
        expires_s=5.5,
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[KeyFile]:
    store = KeyFile(tmp_path)
    yield store
    await store.close()


async def test_what_is_kept_is_found_as_it_was(store: KeyFile) -> None:
    first, second = a_key("a", 1.0), a_key("b", 2.0)
    assert not await store.has_any()
    await store.add(second)
    await store.add(first)
    assert await store.has_any()
    assert await store.find(first.id) == first
    assert await store.find("missing") is None
    assert await store.all() == [first, second]


async def test_the_file_is_the_owners_only(store: KeyFile, tmp_path: Path) -> None:
    await store.add(a_key())
    assert modes_in(tmp_path) == {0o600}


async def test_another_process_is_heard_at_once(store: KeyFile, tmp_path: Path) -> None:
    other = KeyFile(tmp_path)
    key = a_key()
    await other.add(key)
    assert await store.find(key.id) == key
    await other.update(key.id, lambda key: dataclasses.replace(key, revoked_s=9.0))
    found = await store.find(key.id)
    assert found is not None
    assert found.revoked_s == 9.0
    await other.set_tenant_limits("tenant", Limits(concurrency=2))
    assert await store.tenant_limits("tenant") == Limits(concurrency=2)
    assert await store.tenants() == {"tenant": Limits(concurrency=2)}
    await other.set_tenant_limits("tenant", Limits())
    assert await store.tenant_limits("tenant") == Limits()
    assert await store.tenant_limits("another") == Limits()
    await other.close()


async def test_changes_do_not_undo_each_other(store: KeyFile) -> None:
    key = a_key()
    await store.add(key)

    def rename(key: ApiKey) -> ApiKey:
        return dataclasses.replace(key, name=key.name + "x")

    await asyncio.gather(*(store.update(key.id, rename) for _ in range(20)))
    found = await store.find(key.id)
    assert found is not None
    assert found.name == "n" + "x" * 20
    assert await store.update("missing", rename) is None


async def test_a_change_that_fails_changes_nothing(store: KeyFile) -> None:
    key = a_key()
    await store.add(key)

    def fail(key: ApiKey) -> ApiKey:
        raise Misconfigured("no")

    with pytest.raises(Misconfigured):
        await store.update(key.id, fail)
    assert await store.find(key.id) == key
    await store.add(a_key())  # and nothing is locked


async def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    store, credential = KeyFile(tmp_path), issue()
    key = dataclasses.replace(a_key(), secrets=(stored(credential, PEPPERS),))
    await store.add(key)
    await store.close()
    everything = contents_of(tmp_path)
    assert key.id.encode() in everything
    assert credential.secret.encode() not in everything


@pytest.mark.parametrize("content", [b"this is not a database, it is far too much text" * 30])
def test_a_file_that_is_no_store_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(Misconfigured, match=FILE):
        KeyFile(tmp_path)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / FILE).close()
    (tmp_path / FILE).touch(0o644)
    (tmp_path / FILE).chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600"):
        KeyFile(tmp_path)


def modes_in(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def contents_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())
