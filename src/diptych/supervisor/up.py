"""`diptych up`: from settings to a platform that answers, and back to nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

from diptych.config import UpSettings, secrets_of
from diptych.gateway.admin.supervisor import control_token
from diptych.gateway.tenancy.authentication import canary_token
from diptych.supervisor.certificates import Keeper
from diptych.supervisor.checkpoint import embedded_folder
from diptych.supervisor.control import Control
from diptych.supervisor.fleet import GRACE_S, Fleet, Say
from diptych.supervisor.folder import Lock
from diptych.supervisor.plan import Plan, check, make_plan, no_certificate
from diptych.supervisor.ports import FreePorts, claim
from diptych.supervisor.scaling import Scaling

Ready = Callable[[Plan, bool], None]  # called once; the flag: the embedded model is served


def run(settings: UpSettings, *, config: Path | None, say: Say, ready: Ready) -> None:
    """Keep the platform running until SIGINT or SIGTERM; DiptychError if it cannot start."""
    check(settings)
    with Lock(settings.data_dir):
        port = claim(settings.host, settings.port)
        cluster_secret, _ = secrets_of(settings)  # made here once: no two children race for them
        asyncio.run(_run(settings, port, cluster_secret, config, say, ready))


async def _run(
    settings: UpSettings, port: int, secret: bytes, config: Path | None, say: Say, ready: Ready
) -> None:
    environment = child_environment(os.environ)
    keeper = Keeper(settings.data_dir) if settings.station_tls else None
    with Interrupts() as interrupts:
        plan = make_plan(
            settings,
            checkpoint=settings.checkpoint or embedded_folder(),
            port=port,
            free_port=FreePorts(),
            config=config,
            canary=canary_token(secret),
            certify=keeper.certify if keeper else no_certificate,
        )
        fleet = Fleet(plan, settings.data_dir, environment, say)
        scaling = Scaling(fleet, plan, say, ready_timeout_s=settings.ready_timeout_s)
        control = Control(plan.control, control_token(secret), scaling.scale)
        async with control, _renewing(keeper, say):
            await keep(
                fleet,
                interrupts,
                ready=lambda: ready(plan, settings.checkpoint is None),
                ready_timeout_s=settings.ready_timeout_s,
            )
    say("up", "stopped")


@asynccontextmanager
async def _renewing(keeper: Keeper | None, say: Say) -> AsyncIterator[None]:
    if keeper is None:
        yield
        return
    renewing = asyncio.create_task(keeper.run(partial(say, "up")))
    try:
        yield
    finally:
        renewing.cancel()


async def keep(
    fleet: Fleet,
    interrupts: "Interrupts",
    *,
    ready: Callable[[], None],
    ready_timeout_s: float,
    grace_s: float = GRACE_S,
) -> None:
    """Start the fleet, call `ready` once it answers, stop it at the first interrupt."""
    try:
        fleet.start()
        starting = asyncio.create_task(fleet.wait_until_answering(ready_timeout_s))
        if await interrupts.unless_first(starting):
            ready()
            await fleet.run_until(interrupts.first)
    finally:
        await fleet.stop(grace_s, hurry=interrupts.second)


class Interrupts:
    """SIGINT and SIGTERM: the first asks to stop, the second to hurry."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    async def unless_first(self, task: asyncio.Task[None]) -> bool:
        """Wait for the task; False, and the task cancelled, if an interrupt comes first."""
        interrupt = asyncio.create_task(self.first.wait())
        await asyncio.wait([task, interrupt], return_when=asyncio.FIRST_COMPLETED)
        interrupt.cancel()
        if task.done():
            await task
            return True
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return False

    def _caught(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._caught)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Ours, with one thread a process and no way to import from the working directory."""
    return {
        "GRPC_VERBOSITY": "ERROR",
        **environment,
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }
