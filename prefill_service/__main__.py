"""Run a prefill worker: `python -m diptych.prefill_service`, or `diptych prefill`."""

import asyncio
import logging
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace

from diptych.config import WorkerSettings, addresses_of, secrets_of
from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.core.step import StepOutput
from diptych.engine.build import build_engine
from diptych.engine.measures import Measures, Work, readings
from diptych.engine.options import Options
from diptych.engine.port import EnginePort
from diptych.kvcache_store.client import StoreTier
from diptych.prefill_service.service import PrefillService
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
from diptych.transport.session_server import Identity

GRACE_S = 5.0  # for prompts and tickets under way when told to stop

FLUSH_S = 3.0  # for what the cache tier has not taken yet

log = logging.getLogger(__name__)


def main(settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    logs.setup(settings.worker_id, settings.log_level, settings.log_format, settings.role)
    keep_freed_memory()  # halves what copies for the cache tier cost the engine's thread
    tracer = open_tracer(settings.otlp_endpoint, settings.role, settings.worker_id)
    asyncio.run(_serve(settings, tracer))
    if tracer is not None:
        tracer.close()


async def _serve(settings: WorkerSettings, tracer: Tracer | None) -> None:
    def on_step(output: StepOutput) -> None:
        service.on_step(output)
        reporter.notify()

    credentials = tls.load(settings, settings.role)
    dial = tls.dial_of(credentials)
    cluster_secret, _ = secrets_of(settings)
    measures = Measures(settings.role)
    show_aliases(measures.metrics, settings.metrics_alias, settings.model_name)
    membership = Membership.of(settings.redis_url, cluster_secret)
    stores = addresses_of(settings.stores)
    tier = StoreTier(stores, WorkerId(settings.worker_id), dial=dial)
    engine = build_engine(
        settings.checkpoint,
        model_name=settings.model_name,
        on_step=on_step,
        loop=asyncio.get_running_loop(),
        options=Options.of(settings),
        observer=measures,
        on_grammar=measures.compiled,
        on_load=measures.loaded,
        open_tier=tier.bind if stores or membership is not None else None,
    )
    incarnation = Incarnation(secrets.randbits(64) | 1)
    identity = Identity(WorkerId(settings.worker_id), incarnation, engine.namespace)
    service = PrefillService(engine, identity, cluster_secret, tracer=tracer)
    measures.metrics.pull(lambda: _readings(engine, service, tier))
    pages = measures.pages(settings.worker_id)
    with stop_signals() as stopped:
        async with (
            Server(settings.listen, [service.register], credentials=credentials) as server,
            Endpoint(settings.metrics_listen, pages) as endpoint,
        ):
            service.holdings.address = server.address
            join = replace(
                _join(settings, engine, identity),
                address=server.address,
                metrics_address=endpoint.address,
            )
            reporter = Reporters(
                settings.router,
                join,
                lambda: _load(engine, service, measures.work),
                on_drain=lambda drain: service.sessions.stand_aside(drain.is_on, drain.limit_s),
                block_log=engine.block_log,
                dial=dial,
            )
            async with asyncio.TaskGroup() as group:
                work = [
                    group.create_task(reporter.run()),
                    group.create_task(service.holdings.run()),
                    group.create_task(watch(engine.idle_s)),
                ]
                if membership is not None:
                    membership.watch(Role.ROUTER, lambda found: reporter.use(addresses_in(found)))
                    membership.watch(
                        Role.STORE, lambda found: tier.use(addresses_in(found, stores))
                    )
                    work.append(group.create_task(membership.run()))
                log.info("prefill ready at=%s", server.address)
                await stopped.wait()
                log.info("stopping requests=%d", service.sessions.num_requests)
                draining = service.sessions.drain(GRACE_S)
                reporter.notify()
                await draining
                for task in work:
                    task.cancel()
    await engine.stop()
    await tier.flush(FLUSH_S)
    await tier.close()


def _join(settings: WorkerSettings, engine: EnginePort, identity: Identity) -> Join:
    counts = engine.counts()
    return Join(
        member_id=identity.worker_id,
        role=settings.role,
        incarnation=identity.incarnation,
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


def _load(engine: EnginePort, service: PrefillService, work: Work) -> Load:
    counts = engine.counts()
    return Load(
        running=counts.running,
        waiting=counts.waiting,
        preparing=counts.preparing,
        swapped=counts.swapped,
        free_blocks=counts.free_blocks,
        cached_blocks=counts.cached_blocks,
        free_slots=counts.free_slots,
        tickets=len(service.holdings.tickets),
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


def _readings(engine: EnginePort, service: PrefillService, tier: StoreTier) -> Iterator[m.Reading]:
    yield from readings(engine.counts(), engine.idle_s())
    yield m.TIER_PUTS.at(tier.counts.parts_sent, "sent")
    yield m.TIER_PUTS.at(tier.parts_dropped, "dropped")
    tickets = service.holdings.tickets
    yield m.SESSIONS.at(service.sessions.num_sessions)
    yield m.TICKETS.at(tickets.num_held, "held")
    yield m.TICKETS.at(len(tickets) - tickets.num_held, "expected")
    yield m.KV_LAPSED.at(tickets.lapsed_total)
    yield m.KV_CHECKSUM_FAILURES.at(tier.counts.parts_damaged, "tier")


if __name__ == "__main__":
    main(WorkerSettings.load({"role": Role.PREFILL}))
