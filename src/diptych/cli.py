"""The command line. Roles are imported when they are run: help must not wait for torch."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from diptych import __version__, config
from diptych.core.errors import DiptychError, Misconfigured
from diptych.core.phases import Role
from diptych.kvcache_store.commands import cache

MISCONFIGURED_EXIT = 2
FAILED_EXIT = 1

Settings = TypeVar("Settings", bound=config.Common)

app = typer.Typer(
    name="diptych",
    help="Serve DeepSeek-V4.1 online: gateway, router, prefill, decode.\n\n"
    "Every option is also a variable (--max-model-len: DIPTYCH_MAX_MODEL_LEN) and a key of the "
    "TOML file given by --config (max_model_len). Flag over variable over file.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _option(flag: str, metavar: str, settings: type[config.Common], name: str = "") -> Any:
    field = settings.model_fields[name or flag.strip("-").replace("-", "_")]
    has_default = not field.is_required() and field.default_factory is None
    default = f" (default: {field.default})" if has_default and field.default is not None else ""
    return typer.Option(
        flag, metavar=metavar, help=f"{field.description}{default}", show_default=False
    )


def _switch(flag: str, settings: type[config.Common]) -> Any:
    field = settings.model_fields[flag.strip("-").replace("-", "_")]
    negative = flag.replace("--", "--no-")
    default = flag if field.default else negative
    return typer.Option(
        f"{flag}/{negative}",
        help=f"{field.description} (default: {default})",
        show_default=False,
    )


# Values stay text here: the settings check them, and say in one line what is wrong with which.
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings")
]
DataDir = Annotated[str | None, _option("--data-dir", "DIR", config.Common)]
LogLevel = Annotated[str | None, _option("--log-level", "LEVEL", config.Common)]
LogFormat = Annotated[str | None, _option("--log-format", "text|json", config.Common)]
MetricsAlias = Annotated[str | None, _option("--metrics-alias", "off|vllm", config.Observed)]
StationCa = Annotated[str | None, _option("--station-ca", "FILE", config.Stationed)]
StationCertificate = Annotated[
    str | None, _option("--station-certificate", "FILE", config.Stationed)
]
StationKey = Annotated[str | None, _option("--station-key", "FILE", config.Stationed)]
OtlpEndpoint = Annotated[str | None, _option("--otlp-endpoint", "URL", config.Traced)]
Host = Annotated[str | None, _option("--host", "HOST", config.GatewaySettings)]
Port = Annotated[str | None, _option("--port", "PORT", config.GatewaySettings)]
Router = Annotated[str | None, _option("--router", "HOST:PORT,...", config.WorkerSettings)]
RedisUrl = Annotated[str | None, _option("--redis-url", "URL", config.WorkerSettings)]
Checkpoint = Annotated[str | None, _option("--checkpoint", "DIR", config.WorkerSettings)]
ModelName = Annotated[str | None, _option("--model-name", "NAME", config.WorkerSettings)]
WorkerId = Annotated[str | None, _option("--worker-id", "NAME", config.WorkerSettings)]
Listen = Annotated[str | None, _option("--listen", "HOST:PORT", config.WorkerSettings)]
MetricsListen = Annotated[
    str | None, _option("--metrics-listen", "HOST:PORT", config.ServingSettings)
]
Numerics = Annotated[
    str | None, _option("--numerics", "served|cache|exact|exact64", config.WorkerSettings)
]
BlockTokens = Annotated[str | None, _option("--block-tokens", "N", config.WorkerSettings)]
MaxModelLen = Annotated[str | None, _option("--max-model-len", "N", config.WorkerSettings)]
NumBlocks = Annotated[str | None, _option("--num-blocks", "N", config.WorkerSettings)]
MaxNumSeqs = Annotated[str | None, _option("--max-num-seqs", "N", config.WorkerSettings)]
MaxBatchTokens = Annotated[str | None, _option("--max-batch-tokens", "N", config.WorkerSettings)]
NumAnchors = Annotated[str | None, _option("--num-anchors", "N", config.WorkerSettings)]
SwapBytes = Annotated[str | None, _option("--swap-bytes", "BYTES", config.WorkerSettings)]
SnapshotTokens = Annotated[str | None, _option("--snapshot-tokens", "N", config.WorkerSettings)]
Replay = Annotated[str | None, _option("--replay", "off|mask|compact", config.WorkerSettings)]
Deterministic = Annotated[bool | None, _switch("--deterministic", config.WorkerSettings)]
Stores = Annotated[str | None, _option("--stores", "HOST:PORT,...", config.WorkerSettings)]
AsyncStepping = Annotated[bool | None, _switch("--async-stepping", config.WorkerSettings)]
AllowAnonymous = Annotated[
    bool | None,
    typer.Option(
        "--allow-anonymous", help=config.Public.model_fields["allow_anonymous"].description
    ),
]
TlsCertificate = Annotated[str | None, _option("--tls-certificate", "FILE", config.Public)]
TlsKey = Annotated[str | None, _option("--tls-key", "FILE", config.Public)]
TlsClientCa = Annotated[str | None, _option("--tls-client-ca", "FILE", config.Public)]
AdminListen = Annotated[str | None, _option("--admin-listen", "HOST:PORT|off", config.Public)]
Playground = Annotated[str | None, _option("--playground", "on|off", config.Public)]


@app.command()
def up(
    ctx: typer.Context,
    prefill: Annotated[str | None, _option("--prefill", "N", config.UpSettings)] = None,
    decode: Annotated[str | None, _option("--decode", "N", config.UpSettings)] = None,
    store: Annotated[str | None, _option("--store", "N", config.UpSettings)] = None,
    routers: Annotated[str | None, _option("--routers", "N", config.UpSettings)] = None,
    hybrid: Annotated[
        bool | None,
        typer.Option("--hybrid", help="decode workers compute prompts too; no prefill workers"),
    ] = None,
    checkpoint: Annotated[str | None, _option("--checkpoint", "DIR", config.UpSettings)] = None,
    model_name: Annotated[str | None, _option("--model-name", "NAME", config.UpSettings)] = None,
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
        str | None, _option("--ready-timeout-s", "SECONDS", config.UpSettings)
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

    settings = _load(config.UpSettings, ctx)
    _title("up")
    screen = console.Screen()
    up.run(settings, config=_file(ctx), say=screen.say, ready=screen.ready)


@app.command()
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

        settings = _load(config.Stationed, ctx)
        live.run(settings.data_dir, tls.load(settings), as_json=as_json)
        return
    found = _status(ctx)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        console.show_status(found)


@app.command()
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

    raise typer.Exit(doctor.run(_load(config.DoctorSettings, ctx), as_json=as_json))


@app.command()
def drain(
    ctx: typer.Context,
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="its name in `diptych status`")],
    undo: Annotated[bool, typer.Option("--undo", help="give it requests again")] = False,
    wait: Annotated[bool, typer.Option(help="until it holds nothing any more")] = True,
    limit_s: Annotated[str | None, _option("--limit-s", "SECONDS", config.DrainSettings)] = None,
    router: Annotated[
        str | None, _option("--router", "HOST:PORT,...", config.DrainSettings)
    ] = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Give a worker nothing new; it finishes what it has."""
    from diptych.supervisor import orders

    settings = _load(config.DrainSettings, ctx)
    orders.drain(settings, worker, undo=undo, waits=wait, tell=print)


@app.command()
def scale(
    ctx: typer.Context,
    pools: Annotated[list[str], typer.Argument(metavar="ROLE=N...", help="as prefill=2 decode=3")],
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Change how many workers the running platform has; no request fails for it."""
    from diptych.supervisor import orders

    done = orders.scale(_load(config.Common, ctx), pools)
    if as_json:
        print(json.dumps(done, indent=1))
        return
    for what in ("added", "removed"):
        print(f"{what}: {', '.join(done[what]) or 'nothing'}")
    print("now: " + ", ".join(f"{count} {role}" for role, count in done["pools"].items()))


@app.command()
def chat(
    ctx: typer.Context,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE",
            help="what to say; without it a conversation begins, or standard input is the message",
        ),
    ] = None,
    url: Annotated[str | None, _option("--url", "URL", config.ChatSettings)] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="default: the one that is served")
    ] = "",
    thinking: Annotated[bool | None, typer.Option(help="reason before answering")] = None,
    effort: Annotated[
        str | None, typer.Option(metavar="1-100|low|high|max", help="how hard to think")
    ] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T")] = None,
    top_p: Annotated[float | None, typer.Option(metavar="P")] = None,
    max_tokens: Annotated[int | None, typer.Option(metavar="N")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N")] = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="system prompt")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="the whole answer, for programs")] = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Talk to the model of the running platform, or of any gateway.

    DIPTYCH_API_KEY is the key, where one is needed. In a pipe only the answer's text is printed.
    """
    from diptych.terminal import command
    from diptych.terminal.gateway import Wish

    wish = Wish(
        model=model,
        thinking=thinking,
        effort=int(effort) if effort and effort.isdecimal() else effort,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        seed=seed,
    )
    options = command.Options(wish, message, system, as_json)
    raise typer.Exit(command.run(_load(config.ChatSettings, ctx), options))


@app.command()
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


@app.command()
def gateway(
    ctx: typer.Context,
    host: Host = None,
    port: Port = None,
    allow_anonymous: AllowAnonymous = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    admin_listen: AdminListen = None,
    playground: Playground = None,
    router: Router = None,
    checkpoint: Checkpoint = None,
    model_name: ModelName = None,
    gateway_id: Annotated[
        str | None, _option("--gateway-id", "NAME", config.GatewaySettings)
    ] = None,
    metrics_listen: MetricsListen = None,
    metrics_alias: MetricsAlias = None,
    otlp_endpoint: OtlpEndpoint = None,
    trusted_proxies: Annotated[
        str | None, _option("--trusted-proxies", "CIDR,…", config.GatewaySettings)
    ] = None,
    supervisor: Annotated[
        str | None, _option("--supervisor", "HOST:PORT", config.GatewaySettings)
    ] = None,
    stores: Annotated[
        str | None, _option("--stores", "HOST:PORT,...", config.GatewaySettings)
    ] = None,
    route_retention: Annotated[
        str | None, _option("--route-retention", "PATH=CLASS,…", config.GatewaySettings)
    ] = None,
    usage_days: Annotated[
        str | None, _option("--usage-days", "DAYS", config.GatewaySettings)
    ] = None,
    audit_days: Annotated[
        str | None, _option("--audit-days", "DAYS", config.GatewaySettings)
    ] = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config_file: Config = None,
) -> None:
    """HTTP in, server-sent events out."""
    settings = _load(config.GatewaySettings, ctx)
    _title(settings.gateway_id)
    from diptych.gateway.__main__ import main as serve

    serve(settings)


routers = typer.Typer(name="router", invoke_without_command=True)
app.add_typer(routers)


@routers.callback()
def router(
    ctx: typer.Context,
    listen: Annotated[str | None, _option("--listen", "HOST:PORT", config.RouterSettings)] = None,
    router_id: Annotated[str | None, _option("--router-id", "NAME", config.RouterSettings)] = None,
    peers: Annotated[str | None, _option("--peers", "HOST:PORT,...", config.RouterSettings)] = None,
    redis_url: RedisUrl = None,
    stores: Annotated[
        str | None, _option("--stores", "HOST:PORT,...", config.RouterSettings)
    ] = None,
    decisions_file: Annotated[
        str | None, _option("--decisions-file", "FILE", config.RouterSettings)
    ] = None,
    canary: Annotated[str | None, _option("--canary", "on|off", config.RouterSettings)] = None,
    metrics_listen: MetricsListen = None,
    metrics_alias: MetricsAlias = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config_file: Config = None,
) -> None:
    """Decide who serves which request."""
    if ctx.invoked_subcommand is not None:
        return
    settings = _load(config.RouterSettings, ctx)
    _title(settings.router_id)
    from diptych.router.__main__ import main as serve

    serve(settings)


@routers.command()
def replay(
    file: Annotated[Path, typer.Argument(help="what `--decisions-file` recorded")],
) -> None:
    """Decide again what a router recorded; every decision must come out the same."""
    from diptych.router.__main__ import replay as decide_again

    count, differences = decide_again(file)
    for difference in differences[:10]:
        print(f"line {difference.line}: {difference.recorded} is now {difference.decided}")
    print(f"{count} decisions, {len(differences)} came out otherwise")
    if differences:
        raise typer.Exit(FAILED_EXIT)


@routers.command()
def plan(
    trace: Annotated[Path, typer.Option("--trace", help="in Mooncake's form, or Azure's (.csv)")],
    limit: Annotated[int, typer.Option(min=1, help="requests, from its beginning")] = 4000,
) -> None:
    """How many workers recorded traffic needs, by the router's formulas in virtual time."""
    from diptych.router.simulation import sizes, traces

    found = sizes.needed(traces.load(trace, limit))
    for role, count in found.sizes.items():
        print(f"{role}: {count} workers, {found.most[role]} at the most")
    print(f"first tokens: p90 {found.p90_ms:.0f} ms; {found.refused} requests refused")


@app.command()
def prefill(
    ctx: typer.Context,
    worker_id: WorkerId = None,
    listen: Listen = None,
    router: Router = None,
    redis_url: RedisUrl = None,
    checkpoint: Checkpoint = None,
    model_name: ModelName = None,
    numerics: Numerics = None,
    block_tokens: BlockTokens = None,
    max_model_len: MaxModelLen = None,
    num_blocks: NumBlocks = None,
    max_num_seqs: MaxNumSeqs = None,
    max_batch_tokens: MaxBatchTokens = None,
    num_anchors: NumAnchors = None,
    swap_bytes: SwapBytes = None,
    snapshot_tokens: SnapshotTokens = None,
    replay: Replay = None,
    deterministic: Deterministic = None,
    async_stepping: AsyncStepping = None,
    stores: Stores = None,
    metrics_listen: MetricsListen = None,
    metrics_alias: MetricsAlias = None,
    otlp_endpoint: OtlpEndpoint = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config_file: Config = None,
) -> None:
    """Compute prompts, keep their KV until a decode worker has fetched it."""
    settings = _load(config.WorkerSettings, ctx, role=Role.PREFILL)
    _title(settings.worker_id)
    from diptych.prefill_service.__main__ import main as serve

    serve(settings)


@app.command()
def decode(
    ctx: typer.Context,
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            metavar="decode|hybrid",
            help="hybrid: computes prompts, too (default: decode)",
        ),
    ] = None,
    worker_id: WorkerId = None,
    listen: Listen = None,
    router: Router = None,
    redis_url: RedisUrl = None,
    checkpoint: Checkpoint = None,
    model_name: ModelName = None,
    numerics: Numerics = None,
    block_tokens: BlockTokens = None,
    max_model_len: MaxModelLen = None,
    num_blocks: NumBlocks = None,
    max_num_seqs: MaxNumSeqs = None,
    max_batch_tokens: MaxBatchTokens = None,
    num_anchors: NumAnchors = None,
    swap_bytes: SwapBytes = None,
    snapshot_tokens: SnapshotTokens = None,
    replay: Replay = None,
    deterministic: Deterministic = None,
    async_stepping: AsyncStepping = None,
    stores: Stores = None,
    metrics_listen: MetricsListen = None,
    metrics_alias: MetricsAlias = None,
    otlp_endpoint: OtlpEndpoint = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config_file: Config = None,
) -> None:
    """Fetch a prompt's KV and generate; as hybrid, compute the prompt here as well."""
    settings = _load(config.WorkerSettings, ctx)
    if settings.role is Role.PREFILL:
        raise Misconfigured("--role prefill: that is `diptych prefill`; expected decode or hybrid")
    _title(settings.worker_id)
    from diptych.decode_service.__main__ import main as serve

    serve(settings)


@app.command()
def store(
    ctx: typer.Context,
    listen: Annotated[str | None, _option("--listen", "HOST:PORT", config.StoreSettings)] = None,
    store_id: Annotated[str | None, _option("--store-id", "NAME", config.StoreSettings)] = None,
    redis_url: RedisUrl = None,
    cache_dir: Annotated[str | None, _option("--cache-dir", "DIR", config.StoreSettings)] = None,
    cache_disk_bytes: Annotated[
        str | None, _option("--cache-disk-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_memory_bytes: Annotated[
        str | None, _option("--cache-memory-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_fsync_s: Annotated[
        str | None, _option("--cache-fsync-s", "SECONDS", config.StoreSettings)
    ] = None,
    cache_encrypt: Annotated[bool | None, _switch("--cache-encrypt", config.StoreSettings)] = None,
    cache_tenant_bytes: Annotated[
        str | None, _option("--cache-tenant-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_agent_bytes: Annotated[
        str | None, _option("--cache-agent-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_chat_bytes: Annotated[
        str | None, _option("--cache-chat-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_pinned_bytes: Annotated[
        str | None, _option("--cache-pinned-bytes", "BYTES", config.StoreSettings)
    ] = None,
    metrics_listen: MetricsListen = None,
    metrics_alias: MetricsAlias = None,
    station_ca: StationCa = None,
    station_certificate: StationCertificate = None,
    station_key: StationKey = None,
    data_dir: DataDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    config_file: Config = None,
) -> None:
    """Keep KV blocks for all workers: in memory, and on disk for days."""
    settings = _load(config.StoreSettings, ctx)
    _title(settings.store_id)
    from diptych.kvcache_store.__main__ import main as serve

    serve(settings)


@app.command()
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

    folder = out or _load(config.Common, ctx).data_dir / FOLDER
    certificates.make(folder, stations or (), hosts=host or (), days=days, renews=renew, tell=print)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def _status(ctx: typer.Context) -> dict[str, Any]:
    """The platform on the data folder; exit if there is none."""
    from diptych.supervisor import status as platform
    from diptych.transport import tls

    settings = _load(config.Stationed, ctx)
    found = platform.gather(settings.data_dir, tls.load(settings))
    if found is None:
        print(f"nothing is running on {settings.data_dir}", file=sys.stderr)
        raise typer.Exit(FAILED_EXIT)
    return found


keys = typer.Typer(
    name="keys",
    help="API keys: who may use the gateways, and how much.\n\nThe first key closes the gateways "
    "of this data folder to everybody without one.",
    no_args_is_help=True,
)
app.add_typer(keys)
app.add_typer(cache)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="the 12 characters after sk-")]
AsJson = Annotated[bool, typer.Option("--json", help="for programs")]
KeyLimit = Annotated[int | None, typer.Option(metavar="N", show_default=False)]


@keys.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="whose key it is")],
    tenant: Annotated[str, typer.Option(help="keys of one tenant share cache and limits")] = (
        "default"
    ),
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="inference, debug, usage:read, admin:read or admin:write; repeatable "
            "(default: inference)",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="may use this one; repeatable (default: all)")
    ] = None,
    network: Annotated[
        list[str] | None, typer.Option(help="may call from here; repeatable (default: anywhere)")
    ] = None,
    expires_days: Annotated[float | None, typer.Option(help="default: never")] = None,
    priority_class: Annotated[str, typer.Option("--class", help="scheduling class")] = "",
    retention: Annotated[
        str, typer.Option(help="of cached KV: chat (7 days), agent (3 days), pinned or none")
    ] = "chat",
    requests_per_min: KeyLimit = None,
    tokens_per_min: KeyLimit = None,
    concurrency: KeyLimit = None,
    max_input_tokens: KeyLimit = None,
    max_output_tokens: KeyLimit = None,
    tokens_per_day: KeyLimit = None,
    tokens_per_month: KeyLimit = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Make a key and print its secret, once."""
    from diptych.gateway.tenancy import counter

    fields = {name: ctx.params[name] for name in counter.LIMITS}
    wish = counter.wish(
        name,
        tenant,
        scopes=scope or ["inference"],
        models=model or [],
        networks=network or [],
        expires_days=expires_days,
        priority_class=priority_class,
        retention=retention,
        limits=fields,
    )
    counter.create(_load(config.KeysSettings, ctx), wish, as_json)


@keys.command("list")
def list_keys(
    ctx: typer.Context,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Show all keys, without their secrets."""
    from diptych.gateway.tenancy import counter

    counter.show_all(_load(config.KeysSettings, ctx), as_json)


@keys.command()
def rotate(
    ctx: typer.Context,
    key_id: KeyId,
    overlap_s: Annotated[
        float, typer.Option(metavar="SECONDS", help="how long the old secret stays valid")
    ] = 86_400.0,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Give a key a new secret and print it, once."""
    from diptych.gateway.tenancy import counter

    counter.rotate(_load(config.KeysSettings, ctx), key_id, overlap_s, as_json)


@keys.command()
def revoke(
    ctx: typer.Context,
    key_id: KeyId,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config_file: Config = None,
) -> None:
    """Refuse a key from now on."""
    from diptych.gateway.tenancy import counter

    counter.revoke(_load(config.KeysSettings, ctx), key_id, as_json)


def _load(settings: type[Settings], ctx: typer.Context, **more: object) -> Settings:
    """The settings of a command from its options, which carry the settings' names."""
    names = settings.model_fields
    flags = {name: value for name, value in ctx.params.items() if name in names}
    return settings.load(flags | more, _file(ctx))


def _file(ctx: typer.Context) -> Path | None:
    file: Path | None = ctx.params["config_file"]
    return file


def _title(name: str) -> None:
    """`diptych decode 1` in ps and top."""
    import setproctitle

    setproctitle.setproctitle(f"diptych {name.replace('-', ' ')}")


def main() -> None:
    """Run a command; a DiptychError becomes one line on standard error."""
    try:
        app()
    except Misconfigured as error:
        sys.exit(_complain(error, MISCONFIGURED_EXIT))
    except DiptychError as error:
        sys.exit(_complain(error, FAILED_EXIT))


def _complain(error: DiptychError, code: int) -> int:
    print(f"diptych: {error.message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
