"""Which processes a platform is made of, and how each is started. Pure."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path

from diptych.config import UpSettings
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.supervisor.checkpoint import EMBEDDED_MODEL
from diptych.transport.authority import FOLDER, Files

LOOPBACK = "127.0.0.1"
WORKER_ROLES = (Role.PREFILL, Role.DECODE, Role.HYBRID)


@dataclass(frozen=True, slots=True)
class Process:
    """One process to keep running."""

    role: str
    id: str
    address: str  # where it listens; the same after every restart
    command: tuple[str, ...]
    metrics_address: str = ""  # where it serves /metrics; likewise


def _no_workers(role: Role, number: int) -> Process:
    raise Misconfigured("this platform has no recipe for more workers")


Certify = Callable[[Role, str], Files | None]  # role and name; None: no TLS between stations


def no_certificate(role: Role, name: str) -> None:
    """Stations talk plainly."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All of them, in the order in which they start; and how one more worker would be started."""

    processes: tuple[Process, ...]
    base_url: str
    router: str  # addresses of all routers, comma-separated
    model_name: str
    admin_url: str = ""  # "" is none
    has_page: bool = True  # the playground is served at base_url
    log_format: str = "text"  # of all of them
    certificate: Path | None = None  # of base_url, when that is HTTPS
    canary: str = field(default="", repr=False)  # lets our own question in, whatever the keys
    control: str = ""  # where the supervisor takes orders; "" is nowhere
    certificates: Path | None = None  # folder of those that stations show each other
    one_more: Callable[[Role, int], Process] = field(
        default=_no_workers, repr=False, compare=False
    )  # the worker of a role and number


def check(settings: UpSettings) -> None:
    """Misconfigured if the counts make no complete path."""
    if settings.decode == 0:
        raise Misconfigured("--decode 0: at least one decode worker is needed")
    if settings.prefill == 0 and not settings.hybrid:
        raise Misconfigured("--prefill 0: at least one prefill worker is needed, or --hybrid")


def make_plan(
    settings: UpSettings,
    *,
    checkpoint: Path,
    port: int,
    free_port: Callable[[], int],
    config: Path | None = None,
    canary: str = "",
    certify: Certify = no_certificate,
) -> Plan:
    """Routers and store first, then workers, which take longest, then the gateway."""
    model_name = settings.model_name or (checkpoint.name if settings.checkpoint else EMBEDDED_MODEL)
    routers = {f"router-{i + 1}": f"{LOOPBACK}:{free_port()}" for i in range(settings.routers)}
    router = ",".join(routers.values())
    common = _flags(
        data_dir=settings.data_dir,
        log_level=settings.log_level,
        log_format=settings.log_format,
        metrics_alias=settings.metrics_alias,
        config=config,
    )
    served = _flags(
        router=router,
        checkpoint=checkpoint,
        model_name=model_name,
        otlp_endpoint=settings.otlp_endpoint,
    )
    sizes = _flags(
        numerics=settings.numerics,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        num_blocks=settings.num_blocks,
    )

    def process(role: Role, name: str, address: str, command: str, *flags: str) -> Process:
        metrics = f"{LOOPBACK}:{free_port()}"
        shown = _flags(metrics_listen=metrics)
        own = _station(certify(role, name))
        line = _python(command, *flags, *shown, *own, *common)
        return Process(role, name, address, line, metrics)

    def router_at(name: str, listen: str) -> Process:
        others = ",".join(address for address in routers.values() if address != listen)
        own = _flags(router_id=name, listen=listen, peers=others or None)
        return process(Role.ROUTER, name, listen, "router", *own, *kept)

    def store(number: int) -> Process:
        name, listen = f"store-{number}", f"{LOOPBACK}:{free_port()}"
        return process(Role.STORE, name, listen, "store", *_flags(store_id=name, listen=listen))

    stores = [store(i + 1) for i in range(settings.store)]
    kept = _flags(stores=",".join(each.address for each in stores) or None)

    def worker(role: Role, number: int) -> Process:
        name, listen = f"{role}-{number}", f"{LOOPBACK}:{free_port()}"
        command = "prefill" if role is Role.PREFILL else "decode"
        own = _flags(worker_id=name, listen=listen, role=role if role is Role.HYBRID else None)
        return process(role, name, listen, command, *own, *served, *sizes, *kept)

    counts = (
        [(Role.HYBRID, settings.decode)]
        if settings.hybrid
        else [(Role.PREFILL, settings.prefill), (Role.DECODE, settings.decode)]
    )
    workers = [worker(role, i + 1) for role, count in counts for i in range(count)]

    admin = _admin(settings.admin_listen, free_port)
    control = f"{LOOPBACK}:{free_port()}"
    http = _flags(
        host=settings.host,
        port=port,
        gateway_id="gateway-1",
        admin_listen=admin,
        playground=settings.playground,
        tls_certificate=settings.tls_certificate,
        tls_key=settings.tls_key,
        tls_client_ca=settings.tls_client_ca,
        supervisor=control,
    )
    if settings.allow_anonymous:
        http = [*http, "--allow-anonymous"]
    base_url = f"{_scheme(settings.tls_certificate)}://{_reachable(settings.host)}:{port}"
    admin_url = "" if admin == "off" else f"{_scheme(settings.tls_client_ca)}://{admin}"
    return Plan(
        processes=(
            *starmap(router_at, routers.items()),
            *stores,
            *workers,
            process(Role.GATEWAY, "gateway-1", base_url, "gateway", *http, *served, *kept),
        ),
        base_url=base_url,
        router=router,
        model_name=model_name,
        admin_url=admin_url,
        has_page=settings.playground == "on",
        log_format=settings.log_format,
        certificate=settings.tls_certificate,
        canary=canary,
        control=control,
        certificates=settings.data_dir / FOLDER if settings.station_tls else None,
        one_more=worker,
    )


def _admin(listen: str, free_port: Callable[[], int]) -> str:
    """A fixed port, so that it stays the same when the gateway is started again."""
    host, _, port = listen.rpartition(":")
    return f"{host}:{free_port()}" if port == "0" else listen


def _station(files: Files | None) -> Sequence[str]:
    if files is None:
        return ()
    return _flags(station_ca=files.ca, station_certificate=files.certificate, station_key=files.key)


def _scheme(certificate: Path | None) -> str:
    return "http" if certificate is None else "https"


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "diptych.cli", *arguments)


def _flags(**values: object) -> Sequence[str]:
    return [
        part
        for name, value in values.items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]


def _reachable(host: str) -> str:
    """How this machine reaches a server bound to `host`."""
    if host in ("0.0.0.0", "::", ""):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host
