"""`diptych cache`: what the KV cache holds, for whom, for how long; and how to delete it.

Asks the store that uses the folder; if none does, opens the folder itself.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from diptych.config import CacheSettings, StoreSettings, addresses_of
from diptych.core.errors import DiptychError, NotFound
from diptych.kvcache_store.report import Operator, Stats

if TYPE_CHECKING:  # gRPC is imported when it is needed
    from diptych.transport.channel import Dial

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
    typer.Option(
        metavar="HOST:PORT,…", help=CacheSettings.model_fields["store_address"].description
    ),
]
StationCa = Annotated[
    str | None,
    typer.Option(metavar="FILE", help=CacheSettings.model_fields["station_ca"].description),
]
StationCertificate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help=CacheSettings.model_fields["station_certificate"].description
    ),
]
StationKey = Annotated[
    str | None,
    typer.Option(metavar="FILE", help=CacheSettings.model_fields["station_key"].description),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings")
]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]


@cache.command()
def stats(
    ctx: typer.Context,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    config_file: ConfigFile = None,
) -> None:
    """Show bytes by class, tenant and age, what is free, what was read from where."""
    from diptych.kvcache_store import tables

    def plain(found: Stats) -> dict[str, Any]:
        balance = asdict(found.disk) | {"free": found.disk.free} if found.disk else None
        return asdict(found) | {"disk": balance}

    with _asked(ctx, lambda o: o.stats()) as answers:
        if as_json:
            typer.echo(_json([plain(found) for found in answers]))
        else:
            for found in answers:
                tables.show_stats(found)


@cache.command("ls")
def list_segments(
    ctx: typer.Context,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    config_file: ConfigFile = None,
) -> None:
    """List the segment files."""
    from diptych.kvcache_store import tables

    with _asked(ctx, lambda o: o.segments()) as answers:
        if as_json:
            shown = [
                [asdict(row) | {"namespace": row.namespace.hex()} for row in rows]
                for rows in answers
            ]
            typer.echo(_json(shown))
        else:
            for rows in answers:
                tables.show_segments(rows)


@cache.command()
def verify(
    ctx: typer.Context,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    config_file: ConfigFile = None,
) -> None:
    """Read everything on disk and drop what is damaged; exit code 1 if anything was."""
    with _asked(ctx, lambda o: o.verify()) as answers:
        for done in answers:
            typer.echo(f"read {done.read_bytes:,} bytes; dropped {done.corrupt} damaged parts")
    if any(done.corrupt for done in answers):
        raise typer.Exit(1)


@cache.command()
def gc(
    ctx: typer.Context,
    foreign: Annotated[
        bool,
        typer.Option("--foreign", help="drop what no worker's model can read any more, as well"),
    ] = False,
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    config_file: ConfigFile = None,
) -> None:
    """Expire and compact now."""
    with _asked(ctx, lambda o: o.collect(foreign=foreign)) as answers:
        for done in answers:
            typer.echo(f"freed {done.freed_bytes:,} bytes; moved {done.moved_bytes:,}")


@cache.command()
def rm(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Option(help="whose blocks go, from every tier, with their key")],
    data_dir: DataDir = None,
    cache_dir: CacheDir = None,
    store_address: StoreAddress = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    config_file: ConfigFile = None,
) -> None:
    """Delete everything of a tenant and print the receipt."""
    with _asked(ctx, lambda o: o.remove(tenant)) as answers:
        for receipt in answers:
            typer.echo(receipt)


def _json(answers: Sequence[object]) -> str:
    """One node's answer as it is, those of several as a list."""
    return json.dumps(answers[0] if len(answers) == 1 else answers, indent=1)


@contextmanager
def _asked(
    ctx: typer.Context, question: Callable[[Operator], Awaitable[Answer]]
) -> Iterator[Sequence[Answer]]:
    """What the nodes say, to be shown; then who said nothing, and exit code 1."""
    answers, failures = _ask(ctx, question)
    if not answers:
        raise next(iter(failures.values()))
    yield answers
    for address, error in failures.items():
        typer.echo(f"diptych: {address}: {error.message}", err=True)
    if not all(isinstance(error, NotFound) for error in failures.values()):
        raise typer.Exit(1)


def _ask(
    ctx: typer.Context, question: Callable[[Operator], Awaitable[Answer]]
) -> tuple[list[Answer], dict[str, DiptychError]]:
    """Answers, and errors by address."""
    from diptych.kvcache_store.house import address_in, is_secure_in
    from diptych.transport import tls
    from diptych.transport.authority import FOLDER

    config_file: Path | None = ctx.params["config_file"]
    flags = {name: ctx.params[name] for name in CacheSettings.model_fields if name in ctx.params}
    settings = CacheSettings.load(flags, config_file)
    folder = settings.cache_folder
    addresses, certificates = addresses_of(settings.store_address), None
    if not addresses and (own_store := address_in(folder)) is not None:
        addresses = [own_store]
        if is_secure_in(folder):
            certificates = settings.data_dir / FOLDER
    if addresses:
        dial = tls.operator_dial(tls.load(settings), certificates)
        return asyncio.run(_ask_far(question, addresses, dial))
    if not folder.is_dir():
        raise NotFound(f"there is no KV cache at {folder}")
    own = {name: flags[name] for name in ("data_dir", "cache_dir")}
    return [asyncio.run(_ask_near(question, StoreSettings.load(own, config_file)))], {}


async def _ask_far(
    question: Callable[[Operator], Awaitable[Answer]], addresses: Sequence[str], dial: "Dial"
) -> tuple[list[Answer], dict[str, DiptychError]]:
    """A node that fails keeps nobody from asking the others."""
    from diptych.kvcache_store.remote_desk import RemoteDesk

    answers: list[Answer] = []
    failures: dict[str, DiptychError] = {}
    for address in addresses:
        channel = dial(address)
        try:
            answers.append(await question(RemoteDesk(channel)))
        except DiptychError as error:
            failures[address] = error
        finally:
            await channel.close()
    return answers, failures


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
