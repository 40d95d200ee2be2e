"""Run a prefill worker: `python -m diptych.prefill_service`, or `diptych prefill`."""

from collections.abc import Iterator
from dataclasses import replace

from diptych.config import WorkerSettings
from diptych.core.phases import Role
from diptych.prefill_service.service import PrefillService
from diptych.router.client import Load
from diptych.telemetry import metrics as m
from diptych.telemetry.traces import Tracer
from diptych.worker.process import Worker, run


def main(settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    run(settings, _serve)


async def _serve(settings: WorkerSettings, tracer: Tracer | None) -> None:
    worker = Worker(settings)
    service = PrefillService(worker.engine, worker.identity, worker.cluster_secret, tracer=tracer)
    holdings = service.holdings

    def listening(address: str) -> None:
        holdings.address = address

    def load(common: Load) -> Load:
        return replace(common, tickets=len(holdings.tickets))

    def readings() -> Iterator[m.Reading]:
        tickets = holdings.tickets
        yield m.TICKETS.at(tickets.num_held, "held")
        yield m.TICKETS.at(len(tickets) - tickets.num_held, "expected")
        yield m.KV_LAPSED.at(tickets.lapsed_total)

    await worker.serve(
        service, load=load, readings=readings, on_listening=listening, chores=[holdings.run]
    )
    await worker.close()


if __name__ == "__main__":
    main(WorkerSettings.load({"role": Role.PREFILL}))
