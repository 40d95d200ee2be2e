"""`diptych keys …`: the desk for a person at a terminal of the gateway's machine."""

import asyncio
import dataclasses
import getpass
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from diptych.config import KeysSettings, secrets_of
from diptych.core.errors import BadRequest
from diptych.gateway.tenancy.desk import Actor, Desk, Wish, public
from diptych.gateway.tenancy.keys import ApiKey, Limits, Scope
from diptych.gateway.tenancy.office import Plan, open_desk, open_store

LIMITS = tuple(field.name for field in dataclasses.fields(Limits))

Answer = TypeVar("Answer")


def wish(
    name: str,
    tenant: str,
    *,
    scopes: Sequence[str],
    models: Sequence[str],
    networks: Sequence[str],
    expires_days: float | None,
    priority_class: str,
    retention: str,
    limits: Mapping[str, int | None],
) -> Wish:
    """From the options of the command line."""
    try:
        known = tuple(Scope(scope) for scope in scopes)
    except ValueError:
        raise BadRequest(f"--scope: expected one of {', '.join(Scope)}") from None
    expires_s = None if expires_days is None else time.time() + expires_days * 86_400
    return Wish(
        name=name,
        tenant=tenant,
        scopes=known,
        models=tuple(models),
        limits=Limits(**limits),
        priority_class=priority_class,
        retention=retention,
        networks=tuple(networks),
        expires_s=expires_s,
    )


def create(settings: KeysSettings, wanted: Wish, as_json: bool) -> None:
    _tell_secret(*_at_desk(settings, lambda desk: desk.create(_actor(), wanted)), as_json)


def rotate(settings: KeysSettings, key_id: str, overlap_s: float, as_json: bool) -> None:
    made = _at_desk(settings, lambda desk: desk.rotate(_actor(), key_id, overlap_s))
    _tell_secret(*made, as_json)


def revoke(settings: KeysSettings, key_id: str, as_json: bool) -> None:
    key = _at_desk(settings, lambda desk: desk.revoke(_actor(), key_id))
    _say(json.dumps(_view(key)) if as_json else f"{key.id} ({key.name}) is revoked")


def show_all(settings: KeysSettings, as_json: bool) -> None:
    keys = _at_desk(settings, lambda desk: desk.store.all())
    if as_json:
        _say(json.dumps([_view(key) for key in keys], indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for title in ("id", "name", "tenant", "state", "scopes", "limits", "expires", "ends in"):
        table.add_column(title, no_wrap=title == "id")
    for key in keys:
        seen = _view(key)
        limits = " ".join(f"{name}={value}" for name, value in key.limits.given.items())
        scopes = " ".join(key.scopes)
        row = (key.id, key.name, key.tenant, seen["state"], scopes, limits or "none")
        table.add_row(*row, seen["expires_at"] or "never", f"…{seen['last_chars']}")
    Console(highlight=False, markup=False).print(table)


def _at_desk(settings: KeysSettings, work: Callable[[Desk], Awaitable[Answer]]) -> Answer:
    cluster_secret, _ = secrets_of(settings)
    redis, pepper = settings.redis_url, settings.key_pepper
    plan = Plan(
        data_dir=settings.data_dir,
        cluster_secret=cluster_secret,
        redis_url=redis.get_secret_value() if redis else None,
        key_pepper=pepper.get_secret_value() if pepper else None,
    )

    async def run() -> Answer:
        store = await open_store(plan.redis_url, plan.data_dir)
        try:
            return await work(open_desk(store, plan))
        finally:
            await store.close()

    return asyncio.run(run())


def _actor() -> Actor:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return Actor(f"cli:{user}", "local")


def _tell_secret(key: ApiKey, text: str, as_json: bool) -> None:
    """The secret alone on standard output, so that it can be piped; the rest beside it."""
    if as_json:
        _say(json.dumps({**_view(key), "key": text}))
        return
    _say(f"key {key.id} ({key.name}) of tenant {key.tenant}; it is not shown again:", sys.stderr)
    _say(text)


def _view(key: ApiKey) -> dict[str, Any]:
    return public(key, time.time())


def _say(text: str, to: Any = None) -> None:
    print(text, file=to or sys.stdout)
