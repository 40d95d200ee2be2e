"""`diptych up`: from settings to a platform that answers, and back to nothing."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from diptych.config import UpSettings, secrets_of
from diptych.core.errors import Broken, Expired
from diptych.gateway.tenancy.authentication import canary_token
from diptych.supervisor import probe
from diptych.supervisor.checkpoint import embedded_folder
from diptych.supervisor.child import MISCONFIGURED_EXIT, Child
from diptych.supervisor.folder import Lock, LogFile, State
from diptych.supervisor.plan import Plan, check, make_plan
from diptych.supervisor.ports import FreePorts, claim
from diptych.supervisor.restarts import Pace

GRACE_S = 10.0

Say = Callable[[str, str], None]  # who, what
Ready = Callable[[Plan, bool], None]  # called once; the flag: the embedded model is served


class MisconfiguredChild(Broken):
    """A process refused its settings; its own words say why."""


def run(settings: UpSettings, *, config: Path | None, say: Say, ready: Ready) -> None:
    """Keep the platform running until SIGINT or SIGTERM; DiptychError if it cannot start."""
    check(settings)
    with Lock(settings.data_dir):
        port = claim(settings.host, settings.port)
        cluster_secret, _ = secrets_of(settings)  # made here once: no two children race for them
        asyncio.run(_run(settings, port, canary_token(cluster_secret), config, say, ready))


async def _run(
    settings: UpSettings, port: int, canary: str, config: Path | None, say: Say, ready: Ready
) -> None:
    environment = child_environment(os.environ)
    with Interrupts() as interrupts:
        plan = make_plan(
            settings,
            checkpoint=settings.checkpoint or embedded_folder(),
            port=port,
            free_port=FreePorts(),
            config=config,
            canary=canary,
        )
        await keep(
            Fleet(plan, settings.data_dir, environment, say),
            interrupts,
            ready=lambda: ready(plan, settings.checkpoint is None),
            ready_timeout_s=settings.ready_timeout_s,
        )
    say("up", "stopped")


async def keep(
    fleet: "Fleet",
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


class Fleet:
    """All children of one platform."""

    def __init__(
        self,
        plan: Plan,
        data_dir: Path,
        environment: Mapping[str, str],
        say: Say,
        pace: Pace | None = None,
    ) -> None:
        self._plan = plan
        self._data_dir = data_dir
        self._logs = [LogFile(data_dir / "logs" / f"{p.id}.log") for p in plan.processes]
        self.children = [
            Child(
                process,
                environment=environment,
                log=log,
                say=say,
                changed=self._changed,
                pace=pace,
            )
            for process, log in zip(plan.processes, self._logs, strict=True)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._change = asyncio.Event()

    def start(self) -> None:
        """Start everybody."""
        self._tasks = [asyncio.create_task(child.run()) for child in self.children]

    async def wait_until_answering(self, timeout_s: float) -> None:
        """Until a token came the whole way; Expired, or why a child will never start."""
        probing = asyncio.create_task(
            probe.within(timeout_s, probe.Gateway.of(self._plan), self._plan.model_name)
        )
        refusing = asyncio.create_task(self._refused())
        try:
            await asyncio.wait([probing, refusing], return_when=asyncio.FIRST_COMPLETED)
            if refusing.done():
                await refusing
            await probing
        except Expired as error:
            raise Expired(f"{error.message}; logs are in {self._data_dir / 'logs'}") from None
        finally:
            for task in (probing, refusing):
                task.cancel()

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """End everybody: ask, wait, kill those who stay; at once when `hurry` is set."""
        for child in self.children:
            child.stop()
        impatient = asyncio.create_task(hurry.wait())
        ended = asyncio.create_task(self._ended())
        await asyncio.wait([ended, impatient], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        for child in self.children:
            child.kill()
        await ended
        for log in self._logs:
            log.close()

    async def run_until(self, asked: asyncio.Event) -> None:
        """Keep going until asked to stop; raise what keeps a child from being looked after."""
        waiting = asyncio.create_task(asked.wait())
        await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in self._tasks:
            if task.done():
                await task

    async def _ended(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _refused(self) -> None:
        while True:
            await self._change.wait()
            self._change.clear()
            for child in self.children:
                if child.exit_code == MISCONFIGURED_EXIT:
                    said = child.last_line.removeprefix("diptych: ")
                    raise MisconfiguredChild(f"{child.process.id} does not start: {said}")

    def _changed(self) -> None:
        self._change.set()
        State(
            pid=os.getpid(),
            base_url=self._plan.base_url,
            router=self._plan.router,
            model=self._plan.model_name,
            processes=tuple(child.running for child in self.children),
            admin_url=self._plan.admin_url,
        ).write(self._data_dir)


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
