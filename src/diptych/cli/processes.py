"""Commands that run one process of a platform."""

from pathlib import Path
from typing import Annotated

import typer

from diptych import config
from diptych.cli.options import (
    FAILED_EXIT,
    AdminListen,
    AllowAnonymous,
    AsyncStepping,
    BlockTokens,
    Checkpoint,
    Config,
    DataDir,
    Deterministic,
    Host,
    Listen,
    LogFormat,
    LogLevel,
    MaxBatchTokens,
    MaxModelLen,
    MaxNumSeqs,
    MetricsAlias,
    MetricsListen,
    ModelName,
    NumAnchors,
    NumBlocks,
    Numerics,
    OtlpEndpoint,
    Playground,
    Port,
    RedisUrl,
    Replay,
    Router,
    SnapshotTokens,
    StationCa,
    StationCertificate,
    StationKey,
    Stores,
    SwapBytes,
    TlsCertificate,
    TlsClientCa,
    TlsKey,
    WorkerId,
    load,
    option,
    switch,
    title,
)
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role

commands = typer.Typer()


@commands.command()
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
        str | None, option("--gateway-id", "NAME", config.GatewaySettings)
    ] = None,
    metrics_listen: MetricsListen = None,
    metrics_alias: MetricsAlias = None,
    otlp_endpoint: OtlpEndpoint = None,
    trusted_proxies: Annotated[
        str | None, option("--trusted-proxies", "CIDR,…", config.GatewaySettings)
    ] = None,
    supervisor: Annotated[
        str | None, option("--supervisor", "HOST:PORT", config.GatewaySettings)
    ] = None,
    stores: Annotated[
        str | None, option("--stores", "HOST:PORT,...", config.GatewaySettings)
    ] = None,
    route_retention: Annotated[
        str | None, option("--route-retention", "PATH=CLASS,…", config.GatewaySettings)
    ] = None,
    usage_days: Annotated[
        str | None, option("--usage-days", "DAYS", config.GatewaySettings)
    ] = None,
    audit_days: Annotated[
        str | None, option("--audit-days", "DAYS", config.GatewaySettings)
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
    settings = load(config.GatewaySettings, ctx)
    title(settings.gateway_id)
    from diptych.gateway.__main__ import main as serve

    serve(settings)


routers = typer.Typer(name="router", invoke_without_command=True)
commands.add_typer(routers)


@routers.callback()
def router(
    ctx: typer.Context,
    listen: Annotated[str | None, option("--listen", "HOST:PORT", config.RouterSettings)] = None,
    router_id: Annotated[str | None, option("--router-id", "NAME", config.RouterSettings)] = None,
    peers: Annotated[str | None, option("--peers", "HOST:PORT,...", config.RouterSettings)] = None,
    redis_url: RedisUrl = None,
    stores: Annotated[
        str | None, option("--stores", "HOST:PORT,...", config.RouterSettings)
    ] = None,
    decisions_file: Annotated[
        str | None, option("--decisions-file", "FILE", config.RouterSettings)
    ] = None,
    canary: Annotated[str | None, option("--canary", "on|off", config.RouterSettings)] = None,
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
    settings = load(config.RouterSettings, ctx)
    title(settings.router_id)
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


@commands.command()
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
    settings = load(config.WorkerSettings, ctx, role=Role.PREFILL)
    title(settings.worker_id)
    from diptych.prefill_service.__main__ import main as serve

    serve(settings)


@commands.command()
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
    settings = load(config.WorkerSettings, ctx)
    if settings.role is Role.PREFILL:
        raise Misconfigured("--role prefill: that is `diptych prefill`; expected decode or hybrid")
    title(settings.worker_id)
    from diptych.decode_service.__main__ import main as serve

    serve(settings)


@commands.command()
def store(
    ctx: typer.Context,
    listen: Annotated[str | None, option("--listen", "HOST:PORT", config.StoreSettings)] = None,
    store_id: Annotated[str | None, option("--store-id", "NAME", config.StoreSettings)] = None,
    redis_url: RedisUrl = None,
    cache_dir: Annotated[str | None, option("--cache-dir", "DIR", config.StoreSettings)] = None,
    cache_disk_bytes: Annotated[
        str | None, option("--cache-disk-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_memory_bytes: Annotated[
        str | None, option("--cache-memory-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_fsync_s: Annotated[
        str | None, option("--cache-fsync-s", "SECONDS", config.StoreSettings)
    ] = None,
    cache_encrypt: Annotated[bool | None, switch("--cache-encrypt", config.StoreSettings)] = None,
    cache_tenant_bytes: Annotated[
        str | None, option("--cache-tenant-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_agent_bytes: Annotated[
        str | None, option("--cache-agent-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_chat_bytes: Annotated[
        str | None, option("--cache-chat-bytes", "BYTES", config.StoreSettings)
    ] = None,
    cache_pinned_bytes: Annotated[
        str | None, option("--cache-pinned-bytes", "BYTES", config.StoreSettings)
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
    settings = load(config.StoreSettings, ctx)
    title(settings.store_id)
    from diptych.kvcache_store.__main__ import main as serve

    serve(settings)
