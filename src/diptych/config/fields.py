"""Kinds of settings: what a value must be, and what is told of one that is not."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from diptych.core.phases import Role
from diptych.core.request import RETENTIONS

MIN_SECRET_CHARS = 16
SMALLEST_CACHE_BYTES = 4 << 20

_ALIAS = re.compile(r"[A-Za-z0-9._:/*-]{1,128}(=(plain|thinking))?")


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
OnOff = Literal["on", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
MetricsAlias = Literal["off", "vllm"]
Numerics = Literal["served", "cache", "exact", "exact64"]
Replay = Literal["off", "mask", "compact"]
