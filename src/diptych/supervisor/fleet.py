"""All processes of one platform: started, kept running, added, removed, stopped."""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from diptych.core.errors import Broken, Expired
from diptych.supervisor import probe
from diptych.supervisor.child import MISCONFIGURED_EXIT, Child
from diptych.supervisor.folder import LogFile, State
from diptych.supervisor.plan import Plan, Process
from diptych.supervisor.restarts import Pace

GRACE_S = 10.0

Say = Callable[[str, str], None]  # who, what


class MisconfiguredChild(Broken):
    """A process refused its settings; its own words say why."""


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
        self.environment = environment
        self._say = say
        self._pace = pace
        self._logs: dict[Child, LogFile] = {}
        self._tasks: dict[Child, asyncio.Task[None]] = {}
        self._change = asyncio.Event()
        self._broken = asyncio.Event()
        self.children = [self._make(process) for process in plan.processes]

    def start(self) -> None:
        """Start everybody."""
        for child in self.children:
            self._keep(child)

    def add(self, process: Process) -> Child:
        """Start one more and keep it running."""
        child = self._make(process)
        self.children.append(child)
        self._keep(child)
        return child

    async def remove(self, child: Child, grace_s: float = GRACE_S) -> None:
        """Ask one to end, kill it if it stays, and forget it."""
        self.children.remove(child)
        child.stop()
        task = self._tasks.pop(child)
        try:
            await asyncio.wait([task], timeout=grace_s)
        finally:
            child.kill()
            await asyncio.wait([task])
            self._logs.pop(child).close()
            self._changed()

    async def change(self) -> None:
        """Wait until some child starts or ends."""
        await self._change.wait()
        self._change.clear()

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
        for log in self._logs.values():
            log.close()

    async def run_until(self, asked: asyncio.Event) -> None:
        """Keep going until asked to stop; raise what keeps a child from being looked after."""
        ends = [asyncio.create_task(event.wait()) for event in (asked, self._broken)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        for task in self._tasks.values():
            if task.done():
                await task

    def refusal(self, child: Child) -> MisconfiguredChild | None:
        """Why a child will never start, if it said so."""
        if child.exit_code != MISCONFIGURED_EXIT:
            return None
        said = child.last_line.removeprefix("diptych: ")
        return MisconfiguredChild(f"{child.process.id} does not start: {said}")

    def _make(self, process: Process) -> Child:
        path = self._data_dir / "logs" / f"{process.id}.log"
        log = LogFile(path, log_format=self._plan.log_format)
        child = Child(
            process,
            environment=self.environment,
            log=log,
            say=self._say,
            changed=self._changed,
            pace=self._pace,
        )
        self._logs[child] = log
        return child

    def _keep(self, child: Child) -> None:
        task = self._tasks[child] = asyncio.create_task(child.run())
        task.add_done_callback(self._ended_by_itself)

    def _ended_by_itself(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._broken.set()

    async def _ended(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _refused(self) -> None:
        while True:
            await self.change()
            for child in self.children:
                if (refusal := self.refusal(child)) is not None:
                    raise refusal

    def _changed(self) -> None:
        self._change.set()
        State(
            pid=os.getpid(),
            base_url=self._plan.base_url,
            router=self._plan.router,
            model=self._plan.model_name,
            processes=tuple(child.running for child in self.children),
            admin_url=self._plan.admin_url,
            control=self._plan.control,
            certificate=str(self._plan.certificate or ""),
            certificates=str(self._plan.certificates or ""),
        ).write(self._data_dir)
