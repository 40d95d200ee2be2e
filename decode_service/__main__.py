"""Run a decode or hybrid worker: `python -m diptych.decode_service`, or `diptych decode`."""

import time
from collections.abc import Iterator
from dataclasses import replace

from diptych.config import WorkerSettings
from diptych.core.phases import Role
from diptych.decode_service.puller import MODE, TRANSPORT, Puller, Transfer
from diptych.decode_service.service import DecodeService
from diptych.router.client import Load
from diptych.telemetry import metrics as m
from diptych.telemetry.traces import Span, Tracer, traceparent_var
from diptych.worker.process import Worker, run


def main(settings: WorkerSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    run(settings, _serve)


async def _serve(settings: WorkerSettings, tracer: Tracer | None) -> None:
    worker = Worker(settings)
    transfers = _Transfers(worker.measures.metrics, tracer)
    puller = Puller(
        worker.engine,
        worker.identity.worker_id,
        worker.cluster_secret,
        on_transfer=transfers.note,
        dial=worker.dial,
    )
    service = DecodeService(worker.engine, worker.identity, puller, tracer=tracer)

    def load(common: Load) -> Load:
        return replace(common, reservations=service.num_reservations, pulls=service.num_pulls)

    def readings() -> Iterator[m.Reading]:
        yield m.RESERVATIONS.at(service.num_reservations)
        yield m.KV_TRANSFERS.at(service.num_pulls)
        yield m.KV_CHECKSUM_FAILURES.at(transfers.damaged, "prefill")

    await worker.serve(service, load=load, readings=readings)
    await puller.close()
    await worker.close()


class _Transfers:
    """Feeds metrics and traces with what becomes of transfers."""

    def __init__(self, metrics: m.Metrics, tracer: Tracer | None) -> None:
        self._seconds = metrics.histogram(m.KV_TRANSFER_SECONDS)
        self._size_bytes = metrics.counter(m.KV_TRANSFER_BYTES).labels(TRANSPORT, MODE)
        self._tracer = tracer
        self.damaged = 0

    def note(self, transfer: Transfer) -> None:
        self._seconds.labels(transfer.result, TRANSPORT, MODE).observe(transfer.took_s)
        self._size_bytes.inc(transfer.size_bytes)
        self.damaged += transfer.damaged
        if self._tracer is not None and (parent := traceparent_var.get()):
            self._tracer.tell(_span(transfer), parent)


def _span(transfer: Transfer) -> Span:
    now_s = time.monotonic()
    error = "" if transfer.result == "ok" else transfer.result
    size = {"diptych.size_bytes": transfer.size_bytes}
    return Span("worker.transfer", now_s - transfer.took_s, now_s, size, error)


if __name__ == "__main__":
    main(WorkerSettings.load({"role": Role.DECODE}))
