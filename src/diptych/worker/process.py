"""A worker's process from its settings to SIGTERM: engine, cache tier, server, membership."""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import grpc.aio

from diptych.config import WorkerSettings, addresses_of, secrets_of
from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.core.step import StepOutput
from diptych.engine.build import build_engine
from diptych.engine.measures import Measures, readings
from diptych.engine.options import Options
from diptych.kvcache_store.client import StoreTier
from diptych.router.client import Join, Load, Reporters
from diptych.telemetry import logs
from diptych.telemetry import metrics as m
from diptych.telemetry.aliases import show_aliases
from diptych.telemetry.collector import open_tracer
from diptych.telemetry.endpoint import Endpoint
from diptych.telemetry.traces import Tracer
from diptych.transport import tls
from diptych.transport.allocator import keep_freed_memory
from diptych.transport.membership import Membership, addresses_in
from diptych.transport.server import Server, stop_signals, watch
from diptych.transport.session_server import Identity, SessionServer

GRACE_S = 5.0  # for what is under way when told to stop
FLUSH_S = 3.0  # for what the cache tier has not taken yet

log = logging.getLogger(__name__)


class Service(Protocol):
    """What a role serves."""

    sessions: SessionServer

    def register(self, server: grpc.aio.Server) -> None: ...

    def on_step(self, output: StepOutput) -> None: ...


def run(
    settings: WorkerSettings,
    serve: Callable[[WorkerSettings, Tracer | None], Coroutine[Any, Any, None]],
) -> None:
    """Run `serve` in a process of its own, until it is over."""
    logs.setup(settings.worker_id, settings.log_level, settings.log_format, settings.role)
    keep_freed_memory()  # halves what copies for the cache tier cost the engine's thread
    tracer = open_tracer(settings.otlp_endpoint, settings.role, settings.worker_id)
    asyncio.run(serve(settings, tracer))
    if tracer is not None:
        tracer.close()


class Worker:
    """One worker. Making it builds the engine, which takes as long as reading the checkpoint."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.credentials = tls.load(settings, settings.role)
        self.dial = tls.dial_of(self.credentials)
        self.cluster_secret, _ = secrets_of(settings)
        self.measures = Measures(settings.role)
        show_aliases(self.measures.metrics, settings.metrics_alias, settings.model_name)
        self._membership = Membership.of(settings.redis_url, self.cluster_secret)
        self._stores = addresses_of(settings.stores)
        self._tier = StoreTier(self._stores, WorkerId(settings.worker_id), dial=self.dial)
        self.engine = build_engine(
            settings.checkpoint,
            model_name=settings.model_name,
            on_step=self._stepped,
            loop=asyncio.get_running_loop(),
            options=Options.of(settings),
            observer=self.measures,
            on_grammar=self.measures.compiled,
            on_load=self.measures.loaded,
            open_tier=self._tier.bind if self._stores or self._membership is not None else None,
        )
        incarnation = Incarnation(secrets.randbits(64) | 1)
        self.identity = Identity(WorkerId(settings.worker_id), incarnation, self.engine.namespace)
        self._service: Service | None = None
        self._reporter: Reporters | None = None

    async def serve(
        self,
        service: Service,
        *,
        load: Callable[[Load], Load],
        readings: Callable[[], Iterator[m.Reading]],
        on_listening: Callable[[str], None] = lambda address: None,
        chores: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    ) -> None:
        """Serve until SIGTERM or SIGINT, and let finish what can finish soon.

        `load` completes what is reported, `readings` what is measured; `chores` run meanwhile.
        """
        self._service, settings = service, self.settings
        self.measures.metrics.pull(lambda: self._readings(service, readings))
        pages = self.measures.pages(settings.worker_id)
        with stop_signals() as stopped:
            async with (
                Server(settings.listen, [service.register], credentials=self.credentials) as server,
                Endpoint(settings.metrics_listen, pages) as endpoint,
            ):
                on_listening(server.address)
                self._reporter = reporter = Reporters(
                    settings.router,
                    self._join(server.address, endpoint.address),
                    lambda: load(self._load(service)),
                    on_drain=lambda drain: service.sessions.stand_aside(drain.is_on, drain.limit_s),
                    block_log=self.engine.block_log,
                    dial=self.dial,
                )
                async with asyncio.TaskGroup() as group:
                    work = [
                        group.create_task(reporter.run()),
                        group.create_task(watch(self.engine.idle_s)),
                        *(group.create_task(chore()) for chore in chores),
                    ]
                    if self._membership is not None:
                        self._follow(self._membership, reporter)
                        work.append(group.create_task(self._membership.run()))
                    log.info("%s ready at=%s", settings.role, server.address)
                    await stopped.wait()
                    log.info("stopping requests=%d", service.sessions.num_requests)
                    draining = service.sessions.drain(GRACE_S)
                    reporter.notify()
                    await draining
                    for task in work:
                        task.cancel()

    async def close(self) -> None:
        """End the engine, and give the tier what it has not taken yet."""
        await self.engine.stop()
        await self._tier.flush(FLUSH_S)
        await self._tier.close()

    def _stepped(self, output: StepOutput) -> None:
        assert self._service is not None, "nothing is computed before it is served"
        self._service.on_step(output)
        if self._reporter is not None:
            self._reporter.notify()

    def _follow(self, membership: Membership, reporter: Reporters) -> None:
        stores, tier = self._stores, self._tier
        membership.watch(Role.ROUTER, lambda found: reporter.use(addresses_in(found)))
        membership.watch(Role.STORE, lambda found: tier.use(addresses_in(found, stores)))

    def _join(self, address: str, metrics_address: str) -> Join:
        engine, settings = self.engine, self.settings
        counts = engine.counts()
        return Join(
            member_id=self.identity.worker_id,
            role=settings.role,
            address=address,
            metrics_address=metrics_address,
            incarnation=self.identity.incarnation,
            namespace=engine.namespace,
            layout_hash=engine.layout.digest,
            model=settings.model_name,
            max_model_len=engine.max_model_len,
            block_tokens=engine.layout.grain,
            num_blocks=counts.num_blocks,
            num_slots=counts.num_slots,
            pid=os.getpid(),
            keep_tokens=engine.keep_tokens,
            is_deterministic=settings.deterministic,
        )

    def _load(self, service: Service) -> Load:
        counts, work = self.engine.counts(), self.measures.work
        return Load(
            running=counts.running,
            waiting=counts.waiting,
            preparing=counts.preparing,
            swapped=counts.swapped,
            free_blocks=counts.free_blocks,
            cached_blocks=counts.cached_blocks,
            free_slots=counts.free_slots,
            sessions=service.sessions.num_sessions,
            tokens_total=counts.tokens_total,
            query_tokens_total=counts.query_tokens_total,
            hit_tokens_total=counts.hit_tokens_total,
            brought_tokens_total=counts.memory_hit_tokens_total + counts.disk_hit_tokens_total,
            preemptions_total=counts.preemptions_total,
            busy_us_total=work.busy_us,
            steps_total=work.steps,
            prompt_rows_total=work.prompt_rows,
            prompt_pairs_total=work.prompt_pairs,
            decode_rows_total=work.decode_rows,
            decode_context_total=work.decode_context,
            loads_total=work.loads,
            load_us_total=work.load_us,
            draining=service.sessions.is_draining,
        )

    def _readings(
        self, service: Service, of_role: Callable[[], Iterator[m.Reading]]
    ) -> Iterator[m.Reading]:
        yield from readings(self.engine.counts(), self.engine.idle_s())
        yield m.TIER_PUTS.at(self._tier.counts.parts_sent, "sent")
        yield m.TIER_PUTS.at(self._tier.parts_dropped, "dropped")
        yield m.SESSIONS.at(service.sessions.num_sessions)
        yield m.KV_CHECKSUM_FAILURES.at(self._tier.counts.parts_damaged, "tier")
        yield from of_role()
