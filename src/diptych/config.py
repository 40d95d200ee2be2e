"""Settings of every process: flag over environment over file, read once, frozen.

The only reader of the environment. A setting `max_model_len` is the flag `--max-model-len`, the
variable `DIPTYCH_MAX_MODEL_LEN` and the key `max_model_len` of the TOML file given by `--config`.
"""

import difflib
import ipaddress
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.core.request import RETENTIONS

PREFIX = "DIPTYCH_"
CONFIG_VARIABLE = "DIPTYCH_CONFIG"  # the file, when no --config names it
SECRET_BYTES = 32
MIN_SECRET_CHARS = 16
SMALLEST_CACHE_BYTES = 4 << 20
ROUTERS = "the routers' addresses, comma-separated"
MEMBERSHIP = "Redis by which routers and stores are found; default: by flags alone"

_ALIAS = re.compile(r"[A-Za-z0-9._:/*-]{1,128}(=(plain|thinking))?")


def default_data_dir() -> Path:
    """${XDG_CACHE_HOME:-~/.cache}/diptych."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "diptych"


def _host_port(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ValueError("expected host:port, with a port from 0 to 65535")
    return value


def _checkpoint(value: Path) -> Path:
    if not (value / "config.json").is_file():
        raise ValueError("expected a folder with a config.json, a tokenizer.json and safetensors")
    return value.resolve()


def _long_enough(value: SecretStr | None) -> SecretStr | None:
    if value is not None and len(value.get_secret_value()) < MIN_SECRET_CHARS:
        raise ValueError(f"expected at least {MIN_SECRET_CHARS} characters")
    return value


def _networks(value: str) -> str:
    for network in filter(None, value.split(",")):
        ipaddress.ip_network(network.strip())  # its ValueError says what is wrong
    return value


def _aliases(value: str) -> str:
    for alias in filter(None, map(str.strip, value.split(","))):
        if not _ALIAS.fullmatch(alias):
            raise ValueError("expected names, each alone or with =plain or =thinking behind it")
    return value


def _redis_url(value: SecretStr | None) -> SecretStr | None:
    if value is not None and not value.get_secret_value().startswith(("redis://", "rediss://")):
        raise ValueError("expected redis://host:port/number, or rediss:// for TLS")
    return value


def _host_ports(value: str) -> str:
    for address in addresses_of(value):
        _host_port(address)
    return value


def _routes(value: str) -> str:
    for pattern, kept in routes_of(value):
        if not pattern.startswith(("/", "*")) or kept not in RETENTIONS:
            classes = ", ".join(RETENTIONS)
            raise ValueError(f"expected patterns of paths, each with =CLASS behind it: {classes}")
    return value


def routes_of(value: str) -> tuple[tuple[str, str], ...]:
    """`PATTERN=CLASS`, comma-separated, in their order."""
    words = (word.strip().partition("=") for word in value.split(",") if word.strip())
    return tuple((pattern, kept) for pattern, _, kept in words)


def _some_host_ports(value: str) -> str:
    if not addresses_of(value):
        raise ValueError("expected host:port, or several of them, comma-separated")
    return _host_ports(value)


def addresses_of(value: str) -> list[str]:
    """Those of a comma-separated list."""
    return [address.strip() for address in value.split(",") if address.strip()]


def _off_or_host_port(value: str) -> str:
    return value if value == "off" else _host_port(value)


def _http_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", value) or not urlsplit(value).hostname:
        raise ValueError("expected http://host:port or https://host:port, without a user")
    return value.rstrip("/")


def _service_url(value: str) -> str:
    """Some people give the base path of OpenAI's clients."""
    return _http_url(value).removesuffix("/v1")


def _readable(value: Path) -> Path:
    if not value.is_file():
        raise ValueError("expected a file")
    return value


def _none_or_enough(value: int) -> int:
    if 0 < value < SMALLEST_CACHE_BYTES:
        raise ValueError(f"expected 0, for memory alone, or at least {SMALLEST_CACHE_BYTES}")
    return value


def _worker_role(value: Role) -> Role:
    if value not in (Role.PREFILL, Role.DECODE, Role.HYBRID):
        raise ValueError("expected prefill, decode or hybrid")
    return value


Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
DiskBytes = Annotated[int, Field(ge=0), AfterValidator(_none_or_enough)]
WorkerRole = Annotated[Role, AfterValidator(_worker_role)]
Address = Annotated[str, AfterValidator(_host_port)]
Addresses = Annotated[str, AfterValidator(_host_ports)]
Routers = Annotated[str, AfterValidator(_some_host_ports)]
AdminAddress = Annotated[str, AfterValidator(_off_or_host_port)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Networks = Annotated[str, AfterValidator(_networks)]
Aliases = Annotated[str, AfterValidator(_aliases)]
File = Annotated[Path, AfterValidator(lambda path: _readable(path.expanduser().absolute()))]
ServiceUrl = Annotated[str, AfterValidator(_service_url)]
RedisUrl = Annotated[SecretStr | None, AfterValidator(_redis_url)]
Routes = Annotated[str, AfterValidator(_routes)]
Checkpoint = Annotated[Path, AfterValidator(_checkpoint)]
Secret = Annotated[SecretStr | None, AfterValidator(_long_enough)]
Port = Annotated[int, Field(ge=0, lt=2**16)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,128}$")]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
MetricsAlias = Literal["off", "vllm"]
Numerics = Literal["served", "cache", "exact", "exact64"]
Replay = Literal["off", "mask", "compact"]


class Common(BaseSettings):
    """What every process knows."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    data_dir: Folder = Field(
        default_factory=default_data_dir,
        description="folder for secrets, logs, state and made checkpoints",
    )
    log_level: LogLevel = Field("info", description="least severe level that is logged")
    log_format: LogFormat = Field("text", description="lines for people, or JSON for programs")
    cluster_secret: Secret = Field(
        None, description="signs tickets between stations; default: made once in the data folder"
    )
    master_key: Secret = Field(
        None, description="separates tenants' caches; default: made once in the data folder"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment. `load` adds the file below both."""
        return init_settings, env_settings

    @classmethod
    def load(cls, flags: Mapping[str, Any], config: Path | None = None) -> Self:
        """Read all sources; Misconfigured names the flag, variable or key that is wrong.

        A flag that is None was not given.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        variables = _known_variables()
        config = config or (Path(v) if (v := os.environ.get(CONFIG_VARIABLE)) else None)
        file = _read_file(config) if config else {}
        below = {
            name: value
            for name, value in file.items()
            if name in cls.model_fields and name not in given and name not in variables
        }
        try:
            return cls(**below, **given)
        except ValidationError as error:
            raise _explain(cls, error, given, variables, file, config) from None


class Observed(Common):
    """How running processes are watched: passed on by `diptych up`."""

    metrics_alias: MetricsAlias = Field(
        "off", description="show the metrics a second time under the names of vLLM"
    )


class Stationed(Common):
    """Who talks to stations: with all three by mutual TLS, with none plainly."""

    station_ca: File | None = Field(
        None, description="CA whose certificates stations show each other (PEM); default: no TLS"
    )
    station_certificate: File | None = Field(
        None, description="our certificate chain between stations (PEM), as of `diptych certs`"
    )
    station_key: File | None = Field(None, description="its key (PEM, not encrypted)")


class Traced(Common):
    """Who tells traces: passed on by `diptych up`."""

    otlp_endpoint: HttpUrl | None = Field(
        None, description="OpenTelemetry collector (OTLP over HTTP) for traces; default: none"
    )


class ServingSettings(Observed, Stationed):
    """What every process but the supervisor knows."""

    metrics_listen: Address | None = Field(
        None, description="where /metrics is served (and /trace, by workers); default: nowhere"
    )


class RouterSettings(ServingSettings):
    """`diptych router`."""

    listen: Address = Field("127.0.0.1:7000", description="where the gRPC server listens")
    router_id: Name = Field(
        default_factory=lambda: f"router-{os.getpid()}", description="name of this router"
    )
    peers: Addresses = Field(
        "", description="the other routers of the fleet, comma-separated; itself may be among them"
    )
    redis_url: RedisUrl = Field(None, description=MEMBERSHIP)
    stores: Addresses = Field(
        "", description="nodes of the KV cache, whose blocks any worker may fetch, comma-separated"
    )
    decisions_file: Path | None = Field(
        None, description="record every decision here, for `diptych router replay`"
    )
    canary: Literal["on", "off"] = Field(
        "on", description="workers serve once a small request has come through them"
    )


class Public(Common):
    """What concerns the ports that people reach: of `diptych up` and `diptych gateway`."""

    host: str = Field("127.0.0.1", description="where HTTP is served")
    port: Port = Field(8000, description="port of HTTP; 0 = any free one")
    allow_anonymous: bool = Field(
        False, description="let in who sends no API key, even where other machines reach us"
    )
    tls_certificate: File | None = Field(None, description="PEM chain; HTTPS instead of HTTP")
    tls_key: File | None = Field(None, description="PEM key of the certificate")
    tls_client_ca: File | None = Field(
        None, description="PEM; who calls the admin port must have a certificate of it"
    )
    admin_listen: AdminAddress = Field(
        "127.0.0.1:0", description="where the admin API is served; port 0 = any free one, or off"
    )
    playground: Literal["on", "off"] = Field("on", description="the chat page at /")


class ApiSettings(Common):
    """What an operator decides about the API: `gateway/policy.py` hands it on."""

    sampling_policy: Literal["honor", "deepseek"] = Field(
        "honor", description="honor what clients send, or fix it as DeepSeek's own API does"
    )
    model_aliases: Aliases = Field(
        "",
        description="more names of the model, comma-separated; * stands for anything, =plain or "
        "=thinking behind a name is its default",
    )
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = Field(
        "reasoning_content", description="where answers tell the model's reasoning"
    )
    stream_usage_style: Literal["openai", "deepseek"] = Field(
        "openai", description="usage of a stream in a chunk of its own if asked for, or always"
    )
    keepalive_style: Literal["comment+chunk", "chunk", "comment", "off"] = Field(
        "comment+chunk", description="what a silent stream sends"
    )
    nonstream_keepalive_s: float | None = Field(
        None, gt=0, description="seconds between blank lines before a whole answer; default: none"
    )
    queue_timeout_s: float = Field(
        600, gt=0, le=3600, description="how long a request may wait for a worker, in seconds"
    )
    map_user_to_user_id: bool = Field(False, description="take user for user_id")
    allow_raw_special: bool = Field(True, description="raw prompts may spell special tokens")
    messages_default_thinking: bool = Field(
        True, description="whether Messages requests think that do not say"
    )
    clip_explicit_max_tokens: bool = Field(
        False, description="shorten an explicit limit that exceeds the context, not refuse it"
    )
    strict_reasoning_passback: bool = Field(
        False, description="refuse calls in a thinking history without reasoning_content"
    )
    deepseek_compat_errors: bool = Field(
        False, description="refuse forced calls in thinking mode, as DeepSeek's own API does"
    )
    max_n: int = Field(16, ge=1, le=128, description="most choices of a request")
    allow_tasks: bool = Field(False, description="accept quick instructions (task)")
    allow_render: bool = Field(False, description="offer the endpoint that shows a prompt")
    allow_openapi: bool = Field(True, description="describe the API at /openapi.json")
    git_commit: str = Field(
        "", pattern=r"^([0-9a-f]{7,64})?$", description="commit of this build, which /version tells"
    )


class GatewaySettings(Public, ApiSettings, Traced, ServingSettings):
    """`diptych gateway`."""

    router: Routers = Field("127.0.0.1:7000", description=ROUTERS)
    checkpoint: Checkpoint = Field(description="folder whose tokenizer and config are served")
    model_name: Name = Field("diptych-tiny", description="name of the model in the API")
    gateway_id: Name = Field(
        default_factory=lambda: f"gateway-{os.getpid()}", description="unique name of this process"
    )
    redis_url: RedisUrl = Field(
        None,
        description="keys, limits and usage of several gateways, and who is there; default: the "
        "data folder",
    )
    key_pepper: Secret = Field(
        None,
        description="hashes API keys, newest first, comma-separated; default: made once in the "
        "data folder",
    )
    trusted_proxies: Networks = Field(
        "", description="networks of proxies whose X-Forwarded-For counts, comma-separated"
    )
    supervisor: Address | None = Field(
        None, description="where the supervisor takes orders to scale; `diptych up` gives it"
    )
    stores: Addresses = Field(
        "", description="nodes of the KV cache that the console shows, comma-separated"
    )
    route_retention: Routes = Field(
        "",
        description="how long the cache keeps KV by path, e.g. */messages=agent, comma-separated; "
        "for keys of the class chat",
    )
    usage_days: int = Field(400, ge=1, le=4000, description="how long usage records are kept")
    audit_days: int = Field(400, ge=1, le=4000, description="how long audit entries are kept")


class WorkerSettings(Traced, ServingSettings):
    """`diptych prefill` and `diptych decode`."""

    role: WorkerRole = Field(Role.DECODE, description="prefill, decode or hybrid")
    listen: Address = Field("127.0.0.1:0", description="where the gRPC server listens")
    router: Routers = Field("127.0.0.1:7000", description=ROUTERS)
    redis_url: RedisUrl = Field(None, description=MEMBERSHIP)
    checkpoint: Checkpoint = Field(description="folder with config, tokenizer and weights")
    model_name: Name = Field("diptych-tiny", description="the model; part of block identity")
    worker_id: Name = Field(
        default_factory=lambda data: f"{data.get('role', 'worker')}-{os.getpid()}",
        description="unique name of this worker; kept over restarts",
    )
    numerics: Numerics = Field("served", description="arithmetic and cache precision")
    block_tokens: int = Field(128, ge=8, le=1024, multiple_of=8, description="tokens a KV block")
    max_model_len: int | None = Field(
        None, ge=16, description="longest sequence in tokens; default: what the config says"
    )
    num_blocks: int | None = Field(
        None, ge=2, description="KV blocks; default: 1024 tokens a slot, at least one full sequence"
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences (slots) at a time")
    max_batch_tokens: int = Field(512, ge=32, le=65536, description="tokens of one engine step")
    num_anchors: int | None = Field(
        None, ge=0, description="kept windows, from which cached prefixes go on; default: 2 a slot"
    )
    swap_bytes: int = Field(
        2**28, ge=0, description="host memory for sequences that gave up their blocks"
    )
    replay: Replay = Field(
        "compact", description="which rows of a prompt the decoder layers compute"
    )
    deterministic: bool = Field(True, description="same seed, same tokens, whatever the batch")
    async_stepping: bool = Field(
        False, description="launch a step before the one ahead of it has been read"
    )
    stores: Addresses = Field(
        "", description="nodes of the KV cache, comma-separated; none: nothing outlives the worker"
    )
    snapshot_tokens: int = Field(
        512,
        ge=0,
        description="tokens between copies of a running sequence's state in the store, in whole "
        "blocks: what a worker's death costs at most; 0 = none",
    )


class CacheFolder(Common):
    """Where a store keeps its blocks."""

    cache_dir: Folder | None = Field(
        None, description="folder of the KV cache; default: cache in the data folder"
    )

    @property
    def cache_folder(self) -> Path:
        return self.cache_dir or self.data_dir / "cache"


class StoreSettings(CacheFolder, ServingSettings):
    """`diptych store`."""

    listen: Address = Field("127.0.0.1:7100", description="where the gRPC server listens")
    store_id: Name = Field(
        default_factory=lambda: f"store-{os.getpid()}", description="unique name of this node"
    )
    redis_url: RedisUrl = Field(None, description=MEMBERSHIP)
    cache_disk_bytes: DiskBytes = Field(
        2 << 30, description="of KV blocks on disk; 0 = memory alone"
    )
    cache_memory_bytes: int = Field(256 << 20, ge=1 << 20, description="of KV blocks in memory")
    cache_fsync_s: float = Field(
        1.0, ge=0, le=3600, description="what a power cut may cost; a killed process costs nothing"
    )
    cache_encrypt: bool = Field(False, description="encrypt blocks on disk, with a key a tenant")
    cache_tenant_bytes: int | None = Field(
        None, ge=0, description="of a tenant on disk; what is above goes first"
    )
    cache_agent_bytes: int | None = Field(None, ge=0, description="likewise of the class agent")
    cache_chat_bytes: int | None = Field(None, ge=0, description="likewise of the class chat")
    cache_pinned_bytes: int | None = Field(
        None, ge=0, description="of what is pinned, a wall; default: a quarter of the disk"
    )


class CacheSettings(CacheFolder, Stationed):
    """`diptych cache`: which stores are meant."""

    store_address: Addresses = Field(
        "",
        description="the nodes to ask, comma-separated; default: the one that uses the folder, "
        "else the folder",
    )


class UpSettings(Public, Traced, Observed):
    """`diptych up`."""

    prefill: int = Field(1, ge=0, le=64, description="prefill workers")
    decode: int = Field(1, ge=0, le=64, description="decode workers")
    store: int = Field(1, ge=0, le=1, description="KV cache stores")
    routers: int = Field(1, ge=1, le=4, description="routers")
    hybrid: bool = Field(False, description="decode workers compute prompts too; no prefill")
    checkpoint: Checkpoint | None = Field(
        None, description="model folder; default: the embedded one"
    )
    model_name: Name | None = Field(None, description="name of the model in the API")
    max_model_len: int | None = Field(None, ge=16, description="longest sequence in tokens")
    numerics: Numerics = Field("served", description="arithmetic and cache precision")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences (slots) of a worker")
    num_blocks: int | None = Field(None, ge=2, description="KV blocks of a worker")
    ready_timeout_s: float = Field(180, gt=0, description="how long starting may take")
    station_tls: bool = Field(
        False, description="mutual TLS between the processes, by certificates in the data folder"
    )


class KeysSettings(Common):
    """`diptych keys`: where the gateways keep them."""

    redis_url: RedisUrl = Field(None, description="Redis of the gateways; default: the data folder")
    key_pepper: Secret = Field(None, description="as the gateways have it")


class DrainSettings(Stationed):
    """`diptych drain`: at which router."""

    router: Routers | None = Field(
        None, description="the routers; default: those of the platform on the data folder"
    )
    limit_s: float = Field(
        900, ge=0, le=86_400, description="then what is left is handed back; 0 = never"
    )


class DoctorSettings(Stationed):
    """`diptych doctor`: what to look at besides the platform on the data folder."""

    redis_url: RedisUrl = Field(None, description="Redis that the gateways use; default: none")


class ChatSettings(Common):
    """`diptych chat`: which gateway to talk to."""

    url: ServiceUrl | None = Field(
        None, description="the gateway; default: that of the platform on the data folder"
    )
    api_key: SecretStr | None = Field(None, description="for gateways that ask for one")


ALL_SETTINGS = (
    RouterSettings,
    GatewaySettings,
    WorkerSettings,
    StoreSettings,
    UpSettings,
    KeysSettings,
    CacheSettings,
    DrainSettings,
    DoctorSettings,
    ChatSettings,
)


def known_names() -> frozenset[str]:
    """Every setting of every process: one environment serves them all."""
    return frozenset(name for settings in ALL_SETTINGS for name in settings.model_fields)


def secrets_of(common: Common) -> tuple[bytes, bytes]:
    """(cluster secret, master key): given, or read from the data folder, or made there once."""
    common.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return (
        _secret(common.cluster_secret, common.data_dir / "cluster_secret"),
        _secret(common.master_key, common.data_dir / "master_key"),
    )


def _secret(given: SecretStr | None, path: Path) -> bytes:
    if given is not None:
        return given.get_secret_value().encode()
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
        try:
            os.link(draft, path)  # whoever links first wins; the others read
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if path.stat().st_mode & 0o077:
        raise Misconfigured(f"{path} can be read by others; expected mode 0600: chmod 600 {path}")
    text = path.read_text().strip()
    if len(text) < MIN_SECRET_CHARS:
        raise Misconfigured(f"{path} holds {len(text)} characters; {MIN_SECRET_CHARS} are needed")
    return text.encode()


def _known_variables() -> dict[str, str]:
    """The DIPTYCH_* variables that are set, by setting; Misconfigured if one is unknown."""
    known = known_names()
    found: dict[str, str] = {}
    for variable, value in os.environ.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in known or variable != variable.upper():
            shown = "…" if _is_secret(name) else repr(value)
            near = _nearest(name, known)
            hint = f"; did you mean {PREFIX}{near.upper()}?" if near else ""
            raise Misconfigured(f"{variable}={shown}: no such setting{hint}")
        found[name] = value
    return found


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise Misconfigured(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"--config {path}: not TOML: {error}") from None
    known = known_names()
    for name in content:
        if name not in known:
            near = _nearest(name, known)
            hint = f"; did you mean {near}?" if near else ""
            raise Misconfigured(f"{path}: {name}: no such setting{hint}")
    return content


def _explain(
    cls: type[Common],
    error: ValidationError,
    flags: Mapping[str, Any],
    variables: Mapping[str, str],
    file: Mapping[str, Any],
    config: Path | None,
) -> Misconfigured:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    dashed = name.replace("_", "-")
    field = cls.model_fields.get(name)
    wanted = f" ({field.description})" if field else ""
    problem = first["msg"].removeprefix("Value error, ")
    problem = problem[:1].lower() + problem[1:]
    if first["type"] == "missing":
        hint = f"give --{dashed} or {PREFIX}{name.upper()}"
        return Misconfigured(f"--{dashed} is missing{wanted}: {hint}")
    if name in flags:
        where, value = f"--{dashed} ", flags[name]
    elif name in variables:
        where, value = f"{PREFIX}{name.upper()}=", variables[name]
    else:
        where, value = f"{config}: {name} = ", file.get(name)
    shown = "…" if _is_secret(name) else repr(str(value))
    return Misconfigured(f"{where}{shown}: {problem}{wanted}")


def _nearest(name: str, known: frozenset[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower(), sorted(known), n=1)), None)


def _is_secret(name: str) -> bool:
    words = ("secret", "key", "token", "password", "redis", "otlp")
    paths = ("tls_key", "station_key")
    return name not in paths and any(word in name for word in words)
