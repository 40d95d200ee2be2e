"""`diptych cache`: what the KV cache holds, for whom, for how long; and how to delete it.

Asks the store that uses the folder; if none does, opens the folder itself.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from diptych.config import CacheSettings, StoreSettings
from diptych.core.errors import NotFound
from diptych.kvcache_store.report import Operator

Answer = TypeVar("Answer")

cache = typer.Typer(
    name="cache",
    help="The KV cache: what it holds, for whom, for how long, and how to delete it.\n\nKV of "
    "chats is kept on disk for days (see docs/cache-tier.md).",
    no_args_is_help=True,
)

DataDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help=CacheSettings.model_fields["data_dir"].description),
]
CacheDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help=CacheSettings.model_fields["cache_dir"].description),
]
StoreAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help=CacheSettings.model_fields["store_address"].description),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings")
]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]


@cache.command()
def stats(
    as_json: AsJson = False,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    config_file: ConfigFile = None,
) -> None:
    """Show bytes by class, tenant and age, what is free, what was read from where."""
    from diptych.kvcache_store import tables

    found = _ask(lambda o: o.stats(), data_dir, cache_dir, store_address, config_file)
    if as_json:
        balance = asdict(found.disk) | {"free": found.disk.free} if found.disk else None
        typer.echo(json.dumps(asdict(found) | {"disk": balance}, indent=1))
    else:
        tables.show_stats(found)


@cache.command("ls")
def list_segments(
    as_json: AsJson = False,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    config_file: ConfigFile = None,
) -> None:
    """List the segment files."""
    from diptych.kvcache_store import tables

    rows = _ask(lambda o: o.segments(), data_dir, cache_dir, store_address, config_file)
    if as_json:
        listed = [asdict(row) | {"namespace": row.namespace.hex()} for row in rows]
        typer.echo(json.dumps(listed, indent=1))
    else:
        tables.show_segments(rows)


@cache.command()
def verify(
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    config_file: ConfigFile = None,
) -> None:
    """Read everything on disk and drop what is damaged; exit code 1 if anything was."""
    done = _ask(lambda o: o.verify(), data_dir, cache_dir, store_address, config_file)
    typer.echo(f"read {done.read_bytes:,} bytes; dropped {done.corrupt} damaged parts")
    if done.corrupt:
        raise typer.Exit(1)


@cache.command()
def gc(
    foreign: Annotated[
        bool,
        typer.Option("--foreign", help="drop what no worker's model can read any more, as well"),
    ] = False,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    config_file: ConfigFile = None,
) -> None:
    """Expire and compact now."""
    done = _ask(
        lambda o: o.collect(foreign=foreign), data_dir, cache_dir, store_address, config_file
    )
    typer.echo(f"freed {done.freed_bytes:,} bytes; moved {done.moved_bytes:,}")


@cache.command()
def rm(
    tenant: Annotated[str, typer.Option(help="whose blocks go, from every tier, with their key")],
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    config_file: ConfigFile = None,
) -> None:
    """Delete everything of a tenant and print the receipt."""
    typer.echo(_ask(lambda o: o.remove(tenant), data_dir, cache_dir, store_address, config_file))


def _ask(
    question: Callable[[Operator], Awaitable[Answer]],
    data_dir: str | None,
    cache_dir: str | None,
    store_address: str | None,
    config_file: Path | None,
) -> Answer:
    from diptych.kvcache_store.house import address_in

    flags = {"data_dir": data_dir, "cache_dir": cache_dir}
    settings = CacheSettings.load(flags | {"store_address": store_address}, config_file)
    address = settings.store_address or address_in(settings.cache_folder)
    if address is not None:
        return asyncio.run(_ask_far(question, address))
    if not settings.cache_folder.is_dir():
        raise NotFound(f"there is no KV cache at {settings.cache_folder}")
    return asyncio.run(_ask_near(question, StoreSettings.load(flags, config_file)))


async def _ask_far(question: Callable[[Operator], Awaitable[Answer]], address: str) -> Answer:
    from diptych.kvcache_store.remote_desk import RemoteDesk
    from diptych.transport.channel import connect

    channel = connect(address)
    try:
        return await question(RemoteDesk(channel))
    finally:
        await channel.close()


async def _ask_near(
    question: Callable[[Operator], Awaitable[Answer]], settings: StoreSettings
) -> Answer:
    from diptych.kvcache_store.build import build
    from diptych.kvcache_store.caretaker import Caretaker
    from diptych.kvcache_store.desk import Desk
    from diptych.kvcache_store.house import House

    with House(settings.cache_folder) as house:
        # Its store may have been given more room than we know of: a look evicts nothing.
        tiers = build(settings, house, least_disk_bytes=2 * house.size_bytes)
        await tiers.open()
        try:
            desk: Any = Desk("folder", tiers, Caretaker(tiers, clock=time.time), time.time)
            return await question(desk)
        finally:
            await tiers.close()
