"""Commands that start a platform and look after it."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych import __version__, config
from diptych.cli.options import (
    FAILED_EXIT,
    AdminListen,
    AllowAnonymous,
    Config,
    DataDir,
    Host,
    LogFormat,
    LogLevel,
    MaxModelLen,
    MaxNumSeqs,
    MetricsAlias,
    NumBlocks,
    Numerics,
    OtlpEndpoint,
    Playground,
    Port,
    StationCa,
    StationCertificate,
    StationKey,
    TlsCertificate,
    TlsClientCa,
    TlsKey,
    config_path,
    load,
    option,
    title,
)

commands = typer.Typer()


@commands.command()
def up(
    ctx: typer.Context,
    prefill: Annotated[str | None, option("--prefill", "N", config.UpSettings)] = None,
    decode: Annotated[str | None, option("--decode", "N", config.UpSettings)] = None,
    store: Annotated[str | None, option("--store", "N", config.UpSettings)] = None,
    routers: Annotated[str | None, option("--routers", "N", config.UpSettings)] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option("--hybrid", help="decode workers compute prompts too; no prefill workers"),
    ] = None,
    checkpoint: Annotated[str | None, option("--checkpoint", "DIR", config.UpSettings)] = None,
    model_name: Annotated[str | None, option("--model-name", "NAME", config.UpSettings)] = None,
    max_model_len: MaxModelLen = None,
    host: Host = None,
    port: Port = None,
    allow_anonymous: AllowAnonymous = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    admin_listen: AdminListen = None,
    playground: Playground = None,
    numerics: Numerics = None,
    max_num_seqs: MaxNumSeqs = None,
    num_blocks: NumBlocks = None,
    ready_timeout_s: Annotated[
        str | None, option("--ready-timeout-s", "SECONDS", config.UpSettings)
    ] = None,
    station_tls: Annotated[
        bool | None,
        typer.Option(
            "--station-tls", help=config.UpSettings.model_fields["station_tls"].description
        ),
    ] = None,
    metrics_alias: MetricsAlias = None,
    otlp_endpoint: OtlpEndpoint = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config_file: Config = None,
) -> None:
    """Start a whole platform on this machine and keep it running until Ctrl-C."""
    from diptych.supervisor import console, up

    settings = load(config.UpSettings, ctx)
    title("up")
    screen = console.Screen()
    up.run(settings, config=config_path(ctx), say=screen.say, ready=screen.ready)


@commands.command()
def status(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="live, until Ctrl-C")] = False,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Show processes, requests in flight, and what each worker has running, waiting, cached."""
    from diptych.supervisor import console, live

    if watch:
        from diptych.transport import tls

        settings = load(config.Stationed, ctx)
        live.run(settings.data_dir, tls.load(settings), as_json=as_json)
        return
    found = _status(ctx)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        console.show_status(found)


@commands.command()
def doctor(
    ctx: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Look for what is wrong with this machine and the platform on it; exit code 1 if anything is.

    A real request goes through a running platform, and its KV from prefill to decode. Redis is
    asked if DIPTYCH_REDIS_URL names one.
    """
    from diptych.supervisor import doctor

    raise typer.Exit(doctor.run(load(config.DoctorSettings, ctx), as_json=as_json))


@commands.command()
def drain(
    ctx: typer.Context,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="its name in `diptych status`")],
    undo: Annotated[bool, typer.Option("--undo", help="give it requests again")] = False,
    wait: Annotated[bool, typer.Option(help="until it holds nothing any more")] = True,
    limit_s: Annotated[str | None, option("--limit-s", "SECONDS", config.DrainSettings)] = None,
    router: Annotated[str | None, option("--router", "HOST:PORT,...", config.DrainSettings)] = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Give a worker nothing new; it finishes what it has."""
    from diptych.supervisor import orders

    settings = load(config.DrainSettings, ctx)
    orders.drain(settings, worker, undo=undo, waits=wait, tell=print)


@commands.command()
def scale(
    ctx: typer.Context,
    pools: Annotated[list[str], typer.Argument(metavar="ROLE=N...", help="as prefill=2 decode=3")],
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Change how many workers the running platform has; no request fails for it."""
    from diptych.supervisor import orders

    done = orders.scale(load(config.Common, ctx), pools)
    if as_json:
        print(json.dumps(done, indent=1))
        return
    for what in ("added", "removed"):
        print(f"{what}: {', '.join(done[what]) or 'nothing'}")
    print("now: " + ", ".join(f"{count} {role}" for role, count in done["pools"].items()))


@commands.command()
def trace(
    ctx: typer.Context,
    workers: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKER]...", help="default: all of them")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="the last so many; default: all that is kept")
    ] = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Print the newest engine steps as JSON for chrome://tracing or https://ui.perfetto.dev."""
    from diptych.supervisor import traces

    print(json.dumps(traces.collect(_status(ctx), workers or (), seconds)))


@commands.command()
def certs(
    ctx: typer.Context,
    stations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE/NAME...",
            help="whom they are for, as prefill/prefill-1; roles: gateway, router, prefill, decode "
            "(hybrid workers, too), store, vision, operator",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="a name or address that others call it by; repeatable (default: NAME, localhost, "
            "127.0.0.1, ::1; when renewed: as before)",
            show_default=False,
        ),
    ] = None,
    days: Annotated[float, typer.Option(metavar="N", help="how long they are valid")] = 365,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="replace what is there; without ROLE/NAME, all in the folder"),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="the folder (default: certificates in the data folder)",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Make certificates by which stations know each other (mutual TLS).

    The CA (ca.crt, ca.key) is made once; each station gets NAME.crt and NAME.key.
    Give it those two and ca.crt: --station-ca, --station-certificate, --station-key.
    A running station takes renewed files over by itself.
    """
    from diptych.supervisor import certificates
    from diptych.transport.authority import FOLDER

    folder = out or load(config.Common, ctx).data_dir / FOLDER
    certificates.make(folder, stations or (), hosts=host or (), days=days, renews=renew, tell=print)


@commands.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _status(ctx: typer.Context) -> dict[str, Any]:
    """The platform on the data folder; exit if there is none."""
    from diptych.supervisor import status as platform
    from diptych.transport import tls

    settings = load(config.Stationed, ctx)
    found = platform.gather(settings.data_dir, tls.load(settings))
    if found is None:
        print(f"nothing is running on {settings.data_dir}", file=sys.stderr)
        raise typer.Exit(FAILED_EXIT)
    return found
