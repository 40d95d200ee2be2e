"""`python -m diptych.gateway`: build the parts, serve HTTP, leave in order."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterator

import uvloop

from diptych.config import GatewaySettings, addresses_of, routes_of, secrets_of
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.decode_service.client import DecodeClient
from diptych.gateway import app, served, tls
from diptych.gateway.access import Access, admin_route_of
from diptych.gateway.admin import app as admin_app
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Levels, Site
from diptych.gateway.admin.supervisor import control_token
from diptych.gateway.admin.watch import Watch
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.hops import Hops
from diptych.gateway.measures import Measures
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.policy import policy_of
from diptych.gateway.server import DRAIN_S, Server, bind
from diptych.gateway.tenancy import office as offices
from diptych.gateway.tenancy.authentication import Authentication, refuse_open_port
from diptych.gateway.tenancy.office import Office
from diptych.gateway.tenancy.peers import is_loopback
from diptych.gateway.traffic import Traffic
from diptych.prefill_service.client import PrefillClient
from diptych.router.client import Fleet, Join, Load, Reporters, RouterClient
from diptych.telemetry import logs
from diptych.telemetry import metrics as m
from diptych.telemetry.aliases import show_aliases
from diptych.telemetry.collector import open_tracer
from diptych.telemetry.endpoint import Endpoint
from diptych.telemetry.traces import Tracer
from diptych.transport import tls as stations
from diptych.transport.membership import Announced, Membership, addresses_in
from diptych.transport.server import stop_signals
from diptych.transport.session import SessionPool

SHOWN_DECISIONS = 20  # to operators

log = logging.getLogger(__name__)


def main(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.setup(settings.gateway_id, settings.log_level, settings.log_format, Role.GATEWAY)
    ports = Ports(settings)
    tracer = open_tracer(settings.otlp_endpoint, Role.GATEWAY, settings.gateway_id)
    uvloop.run(_serve(settings, ports, tracer))
    if tracer is not None:
        tracer.close()


class Ports:
    """What the gateway listens on. Made before anything else, so that a mistake is told first."""

    def __init__(self, settings: GatewaySettings) -> None:
        certificate = tls.load(settings.tls_certificate, settings.tls_key)
        self.public_tls = certificate.context() if certificate else None
        self.admin_tls = _admin_tls(settings)
        self.public = bind(settings.host, settings.port)
        self.admin: socket.socket | None = None
        if settings.admin_listen != "off":
            host, _, port = settings.admin_listen.rpartition(":")
            self.admin = bind(host.strip("[]"), int(port), "--admin-listen")

    @property
    def public_url(self) -> str:
        return _url(self.public, self.public_tls)

    @property
    def admin_url(self) -> str:
        """ "" if there is none."""
        return _url(self.admin, self.admin_tls) if self.admin else ""


def _admin_tls(settings: GatewaySettings) -> ssl.SSLContext | None:
    """Mutual TLS if a client CA is given; without one the admin port stays on loopback."""
    host = settings.admin_listen.rpartition(":")[0].strip("[]")
    if settings.tls_client_ca is not None:
        certificate = tls.load(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        if certificate is None:
            raise Misconfigured("--tls-client-ca needs --tls-certificate and --tls-key")
        return certificate.context()
    if settings.admin_listen != "off" and not is_loopback(host):
        raise Misconfigured(
            f"--admin-listen {settings.admin_listen} can be reached from other machines; it needs "
            "--tls-client-ca (with --tls-certificate and --tls-key), or a loopback address"
        )
    return None


def _url(listener: socket.socket, context: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _office_plan(
    settings: GatewaySettings, cluster_secret: bytes, num_gateways: Callable[[], int]
) -> offices.Plan:
    redis, pepper = settings.redis_url, settings.key_pepper
    return offices.Plan(
        data_dir=settings.data_dir,
        cluster_secret=cluster_secret,
        redis_url=redis.get_secret_value() if redis else None,
        key_pepper=pepper.get_secret_value() if pepper else None,
        host=settings.host,
        allow_anonymous=settings.allow_anonymous,
        is_admin_local=is_loopback(settings.admin_listen.rpartition(":")[0].strip("[]")),
        trusted_proxies=tuple(n.strip() for n in settings.trusted_proxies.split(",") if n.strip()),
        usage_days=settings.usage_days,
        audit_days=settings.audit_days,
        num_gateways=num_gateways,
        routes=routes_of(settings.route_retention),
    )


async def _serve(settings: GatewaySettings, ports: Ports, tracer: Tracer | None) -> None:
    cluster_secret, master_key = secrets_of(settings)
    metrics = m.Metrics(Role.GATEWAY)
    show_aliases(metrics, settings.metrics_alias, settings.model_name)
    measures = Measures(metrics)
    dial = stations.dial_of(stations.load(settings, Role.GATEWAY))
    pool = SessionPool(settings.gateway_id, dial=dial)
    endpoint = Endpoint(settings.metrics_listen, {"/metrics": metrics.page()})
    await endpoint.start()
    join = Join(
        settings.gateway_id,
        Role.GATEWAY,
        pid=os.getpid(),
        http_address=ports.public_url.partition("://")[2],
        metrics_address=endpoint.address,
    )
    reporter = Reporters(settings.router, join, lambda: _load(traffic, office, pool), dial=dial)
    router = RouterClient(reporter.preferred, dial=dial)
    plan = _office_plan(settings, cluster_secret, lambda: _num_gateways(reporter.fleet))
    office = await offices.open_office(plan)
    await refuse_open_port(settings.host, office.store, settings.allow_anonymous)
    model = served.load(
        settings.checkpoint,
        settings.model_name,
        master_key,
        lambda: _heard(reporter),
        policy_of(settings),
    )
    hops = Hops(router, PrefillClient(pool), DecodeClient(pool))
    deadlines = Deadlines(queue_s=model.policy.queue_timeout_s)
    pipeline = Pipeline(hops, deadlines, measures)
    traffic = Traffic(reporter.notify)
    metrics.pull(lambda: _readings(traffic, pool))
    levels = Levels()
    stores = _Stores(settings.stores)
    site = Site(
        office=office,
        fleet=lambda: _heard(reporter),
        is_connected=lambda: reporter.is_connected,
        on_load=reporter.notify,
        settings=settings.model_dump(mode="json"),
        version=lambda: model.version,
        routers=lambda: reporter.addresses,
        supervisor=settings.supervisor or "",
        control=control_token(cluster_secret),
        stores=lambda: stores.addresses,
        decisions=lambda: measures.decisions.newest(SHOWN_DECISIONS),
        gateway_id=settings.gateway_id,
        dial=dial,
    )
    watching = Watch(site)
    entrance = Entrance(office.admin_authentication, office.peers, plan.is_admin_local)
    public = app.build(
        model,
        traffic,
        pipeline,
        lambda: reporter.is_connected,
        office.door,
        has_page=settings.playground == "on",
    )
    access = Access(public, measures, tracer)
    metrics.pull(lambda: _failures(office.authentication))
    servers = {Server(access, ports.public_tls): ports.public}
    if ports.admin is not None:
        operators = Access(
            admin_app.build(site, entrance, levels, watching), measures, name=admin_route_of
        )
        servers[Server(operators, ports.admin_tls)] = ports.admin
    working = [asyncio.create_task(work) for work in (reporter.run(), office.clerk.run())]
    if (membership := Membership.of(settings.redis_url, cluster_secret)) is not None:
        membership.watch(Role.ROUTER, lambda found: reporter.use(addresses_in(found)))
        membership.watch(Role.STORE, stores.use)
        working.append(asyncio.create_task(membership.run()))
    try:
        with stop_signals() as stopped:
            serving = [asyncio.create_task(s.serve([port])) for s, port in servers.items()]
            stopping = asyncio.create_task(stopped.wait())
            log.info("serving http=%s model=%s", ports.public_url, settings.model_name)
            if ports.admin_url:
                log.info("admin api http=%s", ports.admin_url)
            await asyncio.wait([*serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            watching.close()
            for server in servers:
                server.should_exit = True
            await traffic.drain(DRAIN_S)
            await asyncio.gather(*serving)
    finally:
        for work in working:
            work.cancel()
        await asyncio.wait(working)
        endpoint.close()
        await pipeline.close()
        await office.close()
        await pool.close()
        await router.close()
        levels.close()
        model.close()


class _Stores:
    """Nodes of the KV cache: those that were given, and those that announced themselves."""

    def __init__(self, given: str) -> None:
        self._given = addresses_of(given)
        self.addresses = tuple(self._given)

    def use(self, found: tuple[Announced, ...]) -> None:
        self.addresses = tuple(addresses_in(found, self._given))


def _heard(reporter: Reporters) -> Fleet | None:
    return reporter.fleet


def _readings(traffic: Traffic, pool: SessionPool) -> Iterator[m.Reading]:
    yield m.REQUESTS.at(traffic.num_running, "running")
    yield m.SESSIONS.at(pool.num_sessions)


def _failures(authentication: Authentication) -> Iterator[m.Reading]:
    for why, number in authentication.failures.items():
        yield m.AUTH_FAILURES.at(number, why)


def _num_gateways(fleet: Fleet | None) -> int:
    """At least this one; the limits are shared by all."""
    members = fleet.members if fleet else ()
    return max(1, sum(member.join.role is Role.GATEWAY for member in members))


def _load(traffic: Traffic, office: Office, pool: SessionPool) -> Load:
    is_draining = traffic.is_draining or office.door.is_held
    return Load(streams=traffic.num_running, sessions=pool.num_sessions, draining=is_draining)


if __name__ == "__main__":
    main(GatewaySettings.load({}))
