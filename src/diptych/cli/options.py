"""Options of commands, and the settings that they become.

Values stay text: the settings check them, and say in one line what is wrong with which.
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from diptych import config

FAILED_EXIT = 1

Settings = TypeVar("Settings", bound=config.Common)


def option(flag: str, metavar: str, settings: type[config.Common], name: str = "") -> Any:
    field = settings.model_fields[name or flag.strip("-").replace("-", "_")]
    has_default = not field.is_required() and field.default_factory is None
    default = f" (default: {field.default})" if has_default and field.default is not None else ""
    return typer.Option(
        flag, metavar=metavar, help=f"{field.description}{default}", show_default=False
    )


def switch(flag: str, settings: type[config.Common]) -> Any:
    field = settings.model_fields[flag.strip("-").replace("-", "_")]
    negative = flag.replace("--", "--no-")
    default = flag if field.default else negative
    return typer.Option(
        f"{flag}/{negative}",
        help=f"{field.description} (default: {default})",
        show_default=False,
    )


Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings")
]
DataDir = Annotated[str | None, option("--data-dir", "DIR", config.Common)]
LogLevel = Annotated[str | None, option("--log-level", "LEVEL", config.Common)]
LogFormat = Annotated[str | None, option("--log-format", "text|json", config.Common)]
MetricsAlias = Annotated[str | None, option("--metrics-alias", "off|vllm", config.Observed)]
StationCa = Annotated[str | None, option("--station-ca", "FILE", config.Stationed)]
StationCertificate = Annotated[
    str | None, option("--station-certificate", "FILE", config.Stationed)
]
StationKey = Annotated[str | None, option("--station-key", "FILE", config.Stationed)]
OtlpEndpoint = Annotated[str | None, option("--otlp-endpoint", "URL", config.Traced)]
Host = Annotated[str | None, option("--host", "HOST", config.GatewaySettings)]
Port = Annotated[str | None, option("--port", "PORT", config.GatewaySettings)]
Router = Annotated[str | None, option("--router", "HOST:PORT,...", config.WorkerSettings)]
RedisUrl = Annotated[str | None, option("--redis-url", "URL", config.WorkerSettings)]
Checkpoint = Annotated[str | None, option("--checkpoint", "DIR", config.WorkerSettings)]
ModelName = Annotated[str | None, option("--model-name", "NAME", config.WorkerSettings)]
WorkerId = Annotated[str | None, option("--worker-id", "NAME", config.WorkerSettings)]
Listen = Annotated[str | None, option("--listen", "HOST:PORT", config.WorkerSettings)]
MetricsListen = Annotated[
    str | None, option("--metrics-listen", "HOST:PORT", config.ServingSettings)
]
Numerics = Annotated[
    str | None, option("--numerics", "served|cache|exact|exact64", config.WorkerSettings)
]
BlockTokens = Annotated[str | None, option("--block-tokens", "N", config.WorkerSettings)]
MaxModelLen = Annotated[str | None, option("--max-model-len", "N", config.WorkerSettings)]
NumBlocks = Annotated[str | None, option("--num-blocks", "N", config.WorkerSettings)]
MaxNumSeqs = Annotated[str | None, option("--max-num-seqs", "N", config.WorkerSettings)]
MaxBatchTokens = Annotated[str | None, option("--max-batch-tokens", "N", config.WorkerSettings)]
NumAnchors = Annotated[str | None, option("--num-anchors", "N", config.WorkerSettings)]
SwapBytes = Annotated[str | None, option("--swap-bytes", "BYTES", config.WorkerSettings)]
SnapshotTokens = Annotated[str | None, option("--snapshot-tokens", "N", config.WorkerSettings)]
Replay = Annotated[str | None, option("--replay", "off|mask|compact", config.WorkerSettings)]
Deterministic = Annotated[bool | None, switch("--deterministic", config.WorkerSettings)]
Stores = Annotated[str | None, option("--stores", "HOST:PORT,...", config.WorkerSettings)]
AsyncStepping = Annotated[bool | None, switch("--async-stepping", config.WorkerSettings)]
AllowAnonymous = Annotated[
    bool | None,
    typer.Option(
        "--allow-anonymous", help=config.Public.model_fields["allow_anonymous"].description
    ),
]
TlsCertificate = Annotated[str | None, option("--tls-certificate", "FILE", config.Public)]
TlsKey = Annotated[str | None, option("--tls-key", "FILE", config.Public)]
TlsClientCa = Annotated[str | None, option("--tls-client-ca", "FILE", config.Public)]
AdminListen = Annotated[str | None, option("--admin-listen", "HOST:PORT|off", config.Public)]
Playground = Annotated[str | None, option("--playground", "on|off", config.Public)]


def load(settings: type[Settings], ctx: typer.Context, **more: object) -> Settings:
    """The settings of a command from its options, which carry the settings' names."""
    names = settings.model_fields
    flags = {name: value for name, value in ctx.params.items() if name in names}
    return settings.load(flags | more, config_path(ctx))


def config_path(ctx: typer.Context) -> Path | None:
    file: Path | None = ctx.params["config_file"]
    return file


def title(name: str) -> None:
    """`diptych decode 1` in ps and top."""
    import setproctitle

    setproctitle.setproctitle(f"diptych {name.replace('-', ' ')}")
