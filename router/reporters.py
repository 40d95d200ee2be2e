"""How a process stays a member of the fleet where several routers serve it: it reports to each."""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from diptych.config import addresses_of
from diptych.core.ids import Incarnation
from diptych.router.messages import ANY_LIFE, BlockTier, Drain, Fleet, Join, Load
from diptych.router.reporter import BlockSource, Reporter
from diptych.transport.channel import Dial, connect

SETTLED_S = 5.0  # a router that is back hears of all members within a second
AWAY_S = 5.0  # then another address of the same router is tried


class Reporters:
    """One `Reporter` for each router; arguments as there.

    `routers` are addresses, comma-separated. `use` adds those that were found later, and drops them
    again. Two addresses of one router are one: the second is left alone while the first is
    connected, or both would take this member's place from each other.
    """

    def __init__(
        self,
        routers: str,
        join: Join,
        load: Callable[[], Load],
        *,
        on_drain: Callable[[Drain], None] = lambda _: None,
        block_log: BlockSource | None = None,
        tier: BlockTier = BlockTier.DEVICE,
        dial: Dial = connect,
    ) -> None:
        self._fixed = tuple(addresses_of(routers))
        self._on_drain = on_drain
        self._name = join.member_id
        self._make = partial(
            Reporter,
            join=join,
            load=load,
            on_drain=self._drain,
            block_log=block_log,
            tier=tier,
            on_change=self._changed,
            dial=dial,
        )
        # As the router in use says; the last one heard while all are away. Any thread may look.
        self.fleet: Fleet | None = None
        self._reporters: dict[str, Reporter] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._news = asyncio.Event()
        self.use(())

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all routers that are known."""
        return tuple(self._reporters)

    @property
    def is_connected(self) -> bool:
        """Whether any router hears us."""
        return any(reporter.is_connected for reporter in self._reporters.values())

    def preferred(self) -> list[str]:
        """Routers in the order in which to ask them."""
        now_s = asyncio.get_running_loop().time()
        heard_s = {
            address: now_s - reporter.connected_s if reporter.is_connected else None
            for address, reporter in self._reporters.items()
        }
        ready = [a for a, r in self._reporters.items() if r.fleet is not None and r.fleet.ready]
        return in_order(self._name, heard_s, ready)

    def use(self, addresses: Sequence[str]) -> None:
        """These are there, besides those that were given at first."""
        wanted = dict.fromkeys((*self._fixed, *addresses))
        for address in wanted.keys() - self._reporters.keys():
            self._reporters[address] = self._make(address)
        # Given ones first: of two addresses of one router theirs is kept.
        self._reporters = {address: self._reporters[address] for address in wanted}
        for address in self._tasks.keys() - wanted.keys():
            self._tasks.pop(address).cancel()
        self._keep()

    def notify(self) -> None:
        """The load changed."""
        for reporter in self._reporters.values():
            reporter.notify()

    async def fleet_changed(self) -> Fleet:
        """Wait for the next fleet from any router."""
        await self._news.wait()
        assert self.fleet is not None
        return self.fleet

    async def run(self) -> None:
        """Report to all of them until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            while True:
                self._choose()
                self._keep()
                await asyncio.sleep(AWAY_S)

    def _keep(self) -> None:
        """A task for each router, and for no router twice."""
        if self._group is None:
            return
        now_s = asyncio.get_running_loop().time()
        seen: set[Incarnation] = set()
        for address, reporter in self._reporters.items():
            life = reporter.fleet.router_life if reporter.fleet is not None else ANY_LIFE
            is_known = life != ANY_LIFE and life in seen
            if reporter.is_connected or now_s < reporter.lost_s + AWAY_S:
                seen.add(life)
            if is_known and address in self._tasks:
                self._tasks.pop(address).cancel()
            elif not is_known and address not in self._tasks:
                self._tasks[address] = self._group.create_task(reporter.run())

    def _drain(self, wish: Drain) -> None:
        """One router was told; the others hear of it by our next report, at once."""
        self._on_drain(wish)
        self.notify()

    def _choose(self) -> None:
        """The fleet of the first router that has told one."""
        heard = (self._reporters[address].fleet for address in self.preferred())
        self.fleet = next((fleet for fleet in heard if fleet is not None), None)

    def _changed(self) -> None:
        self._choose()
        if self.is_connected:
            self._news.set()
            self._news = asyncio.Event()
        self._keep()


def in_order(name: str, heard_s: Mapping[str, float | None], ready: Collection[str]) -> list[str]:
    """Routers as a member should ask them; given is for how long each has heard it, if it does.

    Those that hear it and know a path for requests come first, and among them the one that
    rendezvous hashing gives the member: so members spread over routers, and few move when one comes
    or goes. One that came back waits a while for its turn, as it must hear from all members first.
    """
    settled = {
        address
        for address, for_s in heard_s.items()
        if for_s is not None and for_s >= SETTLED_S and address in ready
    }

    def key(address: str) -> tuple[bool, bool, bool, bytes]:
        is_new = bool(settled) and address not in settled
        is_away = heard_s[address] is None
        return is_away, address not in ready, is_new, _affinity(name, address)

    return sorted(heard_s, key=key)


def _affinity(name: str, address: str) -> bytes:
    return hashlib.blake2b(f"{name}/{address}".encode(), digest_size=8).digest()
