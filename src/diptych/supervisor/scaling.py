"""`diptych scale`: more or fewer workers while requests run. None of them fails for it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diptych.core.errors import BadRequest, DiptychError, Expired
from diptych.core.phases import Role
from diptych.supervisor import errands
from diptych.supervisor.child import Child
from diptych.supervisor.fleet import Fleet, Say
from diptych.supervisor.plan import WORKER_ROLES, Plan

DRAIN_S = 900.0  # then a worker hands back what it still has

Counts = Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do so that each pool has the size it should have."""

    add: tuple[tuple[Role, int], ...]  # role and number
    remove: tuple[str, ...]  # names


@dataclass(frozen=True, slots=True)
class Scaled:
    """What was done."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    pools: dict[str, int]


def changes(workers: Mapping[Role, Sequence[str]], wanted: Counts) -> Changes:
    """The lowest free numbers come, the highest go; BadRequest if no path would be left."""
    for role, count in wanted.items():
        if role not in workers:
            there = ", ".join(workers)
            raise BadRequest(f"{role}: this platform has {there}", param=role.value)
        if count < 1:
            raise BadRequest(f"{role}: expected at least 1 worker", param=role.value)
    add: list[tuple[Role, int]] = []
    remove: list[str] = []
    for role, count in wanted.items():
        numbers = sorted(int(name.rpartition("-")[2]) for name in workers[role])
        remove += [f"{role}-{number}" for number in numbers[count:]]
        free = (n for n in range(1, count + len(numbers) + 1) if n not in numbers)
        add += [(role, next(free)) for _ in range(count - len(numbers))]
    return Changes(tuple(add), tuple(remove))


class Scaling:
    """Changes the size of pools, one wish at a time."""

    def __init__(
        self,
        fleet: Fleet,
        plan: Plan,
        say: Say,
        *,
        ready_timeout_s: float,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._fleet = fleet
        self._plan = plan
        self._say = say
        self._ready_timeout_s = ready_timeout_s
        self._drain_s = drain_s
        self._turn = asyncio.Lock()

    async def scale(self, wanted: Counts) -> Scaled:
        """Start what is missing and wait for it, then drain what is too many and stop it."""
        async with self._turn:
            todo = changes(self._workers(), wanted)
            added = await self._add(todo)
            leaving = [c for c in self._fleet.children if c.process.id in todo.remove]
            await asyncio.gather(*map(self._retire, leaving))
            pools = {role.value: len(names) for role, names in self._workers().items()}
            return Scaled(tuple(c.process.id for c in added), todo.remove, pools)

    def _workers(self) -> dict[Role, list[str]]:
        workers: dict[Role, list[str]] = {}
        for child in self._fleet.children:
            if child.process.role in WORKER_ROLES:
                workers.setdefault(Role(child.process.role), []).append(child.process.id)
        return workers

    async def _add(self, todo: Changes) -> list[Child]:
        added = [self._fleet.add(self._plan.one_more(role, number)) for role, number in todo.add]
        try:
            await asyncio.gather(*map(self._ready, added))
        except BaseException:
            await asyncio.gather(*map(self._fleet.remove, added))  # all or none
            raise
        for child in added:
            self._say("up", f"added {child.process.id}")
        return added

    async def _ready(self, child: Child) -> None:
        """Until the router gives it work; or why that never will be."""
        name, environment = child.process.id, self._fleet.environment
        plan = self._plan
        joining = asyncio.create_task(
            errands.joined(plan.router, name, environment, plan.certificates)
        )
        refusing = asyncio.create_task(self._refused(child))
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await asyncio.wait([joining, refusing], return_when=asyncio.FIRST_COMPLETED)
            if refusing.done():
                await refusing
            await joining
        except TimeoutError:
            what = f"{name} did not join within {self._ready_timeout_s:g} s"
            raise Expired(what) from None
        finally:
            for task in (joining, refusing):
                task.cancel()
            await asyncio.gather(joining, refusing, return_exceptions=True)

    async def _refused(self, child: Child) -> None:
        while (refusal := self._fleet.refusal(child)) is None:
            await self._fleet.change()
        raise refusal

    async def _retire(self, child: Child) -> None:
        """Without a router nobody can be told to drain; a worker that is asked to end does."""
        name, plan, environment = child.process.id, self._plan, self._fleet.environment
        self._say("up", f"draining {name}")
        try:
            await errands.drain(plan.router, name, self._drain_s, environment, plan.certificates)
        except DiptychError as error:
            self._say("up", f"{name} is stopped before it was drained: {error.message}")
        await self._fleet.remove(child)
        self._say("up", f"removed {name}")
