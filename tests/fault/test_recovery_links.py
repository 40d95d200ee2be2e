"""Workers and links that fail between the stations: two workers a role, real gRPC, one gateway.

The engines are scripted and check every byte they adopt. The router is a rota that avoids whom a
request has blamed; what the real one remembers of pairs is tested with it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.core.ids import Key, Rank
from diptych.core.phases import Phase
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeClient
from diptych.decode_service.service import DecodeService
from diptych.engine.port import Pages
from diptych.gateway import events as on
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Call, Pipeline
from diptych.prefill_service.client import PrefillClient
from diptych.prefill_service.service import PrefillService
from diptych.router.client import DecodeAt, Have, Placement, PrefillAt, Want
from diptych.testing.clock import settle
from diptych.testing.links import Link, link_to
from diptych.testing.scripted import Script, continuation
from diptych.testing.workers import Worker, decode_worker, prefill_worker
from diptych.transport.session import HUNG_ENGINE_S, SessionPool

Hook = Callable[[], Awaitable[None]]
SLOW = Script(step_s=0.01, chunk_tokens=16)
BIG = Script(block_bytes=64 << 10, num_blocks=64, num_slots=8)


async def _nothing() -> None:
    return


@dataclass
class Rota:
    """A router: the first worker of a role that the request has not blamed."""

    prefill: list[Rank]
    decode: list[Rank]
    before_prefill: Hook = _nothing  # each time before a worker of that role is named
    before_decode: Hook = _nothing
    on_progress: Callable[[int], Awaitable[None]] | None = None  # prompt tokens computed
    agains: list[tuple[str, Have]] = field(default_factory=list)
    partners: list[str] = field(default_factory=list)  # of each of them, "" if there was none
    open: int = 0

    async def place(self, want: Want) -> "_Lease":
        return _Lease(self, want)


class _Lease:
    def __init__(self, rota: Rota, want: Want) -> None:
        self._rota = rota
        self._attempt = want.attempt
        self._blamed: set[str] = set()
        self._said: asyncio.Queue[Placement] = asyncio.Queue()
        rota.open += 1
        self._place_prompt()

    async def __aiter__(self) -> AsyncIterator[Placement]:
        while True:
            said = await self._said.get()
            rota = self._rota
            await (rota.before_decode() if isinstance(said, DecodeAt) else rota.before_prefill())
            yield said

    async def progress(self, phase: Phase, tokens: int, last_chunk_started: bool = False) -> None:
        if phase is Phase.PREFILL and self._rota.on_progress is not None:
            await self._rota.on_progress(tokens)
        if last_chunk_started:
            self._said.put_nowait(DecodeAt(self._first(self._rota.decode), (), self._attempt))

    async def again(
        self,
        attempt: int,
        failed_worker: str,
        why: str,
        have: Have,
        code: str = "",
        kind: str = "",
        partner: str = "",
    ) -> None:
        self._rota.agains.append((failed_worker, have))
        self._rota.partners.append(partner)
        self._attempt = attempt
        self._blamed.add(partner or failed_worker)
        if have is Have.TICKET:
            self._said.put_nowait(DecodeAt(self._first(self._rota.decode), (), attempt))
        else:
            self._place_prompt()

    async def close(self) -> None:
        self._rota.open -= 1

    def _place_prompt(self) -> None:
        self._said.put_nowait(PrefillAt(self._first(self._rota.prefill), (), self._attempt))

    def _first(self, ranks: list[Rank]) -> Rank:
        good = [rank for rank in ranks if rank.worker_id not in self._blamed]
        return (good or ranks)[0]


@dataclass
class Fleet:
    """Everything of a platform but the router and HTTP."""

    prefill: list[Worker[PrefillService]]
    decode: list[Worker[DecodeService]]
    rota: Rota
    pipeline: Pipeline

    async def answer(self, generation: Generation, into: list[int] | None = None) -> list[int]:
        """All tokens that a client is sent."""
        tokens = [] if into is None else into

        def take(emit: on.Emit) -> bool:
            tokens.extend(emit.token_ids)
            return True

        await self.pipeline.run(Call(generation, (), "tenant"), take)
        return tokens

    async def settled(self) -> None:
        """The ledger check: nothing of any request is left anywhere."""
        workers = (*self.prefill, *self.decode)
        await settle(lambda: all(w.is_at_baseline() for w in workers), within_s=15)
        await settle(lambda: self.rota.open == 0)
        assert all(len(w.service.holdings.tickets) == 0 for w in self.prefill)
        assert all(w.service.num_reservations == w.service.num_pulls == 0 for w in self.decode)


@asynccontextmanager
async def fleet_of(
    prefill: Script | None = None, decode: Script | None = None, deadlines: Deadlines | None = None
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        prefills = [await enter(prefill_worker(f"p{i}", prefill)) for i in (1, 2)]
        decodes = [await enter(decode_worker(f"d{i}", decode, silence_s=0.5)) for i in (1, 2)]
        pool = SessionPool("gateway-1", silence_s=3.0)
        stack.push_async_callback(pool.close)
        rota = Rota([w.rank for w in prefills], [w.rank for w in decodes])
        hops = Hops(rota, PrefillClient(pool), DecodeClient(pool))
        pipeline = Pipeline(hops, deadlines)
        stack.push_async_callback(pipeline.close)
        fleet = Fleet(prefills, decodes, rota, pipeline)
        yield fleet
        await fleet.settled()


def asked(name: str = "r", *, length: int = 70, max_new: int = 12) -> Generation:
    prompt = tuple((7 * i + len(name) + ord(name[-1])) % 380 + 3 for i in range(length))
    return Generation(Key(name, 1), prompt, Sampling(seed=5), max_new, scope=b"s" * 16)


@pytest.mark.parametrize("chunk", range(5))
async def test_f1_prefill_dies_after_any_chunk(chunk: int) -> None:
    async with fleet_of(prefill=SLOW) as fleet:

        async def die(tokens: int) -> None:
            if tokens >= 16 * chunk:
                fleet.rota.on_progress = None
                await fleet.prefill[0].server.stop(0)

        fleet.rota.on_progress = die
        assert await fleet.answer(asked()) == continuation(asked())
        failed, have = fleet.rota.agains[0]
        assert (failed, have) in [("p1", Have.NOTHING), ("p1", Have.TOKENS)]


@asynccontextmanager
async def linked(fleet: Fleet) -> AsyncIterator[Link]:
    """Decode workers reach the first prefill worker over this link only."""
    worker = fleet.prefill[0]
    async with link_to(worker.rank.address) as link:
        worker.service.holdings.address = link.address
        yield link


@pytest.mark.parametrize("frame", [0, 1, 2])
async def test_f2_a_transfer_that_is_cut_goes_on_with_what_is_missing(frame: int) -> None:
    async with fleet_of(BIG, BIG) as fleet, linked(fleet) as link:
        link.cut_after = 1 + frame * 8 * (64 << 10)
        generation = asked(length=200)
        assert await fleet.answer(generation) == continuation(generation)
        assert link.num_cuts == 1
        assert fleet.rota.agains == []  # nobody but the two had to know
        assert link.bytes_back < (frame * 8 + 26 + 2) * (64 << 10)  # once and what was lost


async def test_f2_prefill_that_dies_in_a_transfer_is_replaced_and_no_token_repeated() -> None:
    async with fleet_of(BIG, BIG) as fleet, linked(fleet) as link:
        link.cut_after = 10 * (64 << 10)
        generation = asked(length=200)
        answering = asyncio.create_task(fleet.answer(generation))
        await settle(lambda: link.num_cuts == 1, within_s=5)
        await fleet.prefill[0].server.stop(0)
        assert await answering == continuation(generation)
        assert fleet.rota.agains[0][1] is not Have.NOTHING


async def test_f3_prefill_dies_behind_its_first_token() -> None:
    async with fleet_of() as fleet:
        sent: list[int] = []

        async def die() -> None:
            fleet.rota.before_decode = _nothing
            await settle(lambda: len(sent) == 1)
            await fleet.prefill[0].server.stop(0)

        fleet.rota.before_decode = die
        assert await fleet.answer(asked(), sent) == continuation(asked())
        assert fleet.rota.agains[0] == ("d1", Have.TOKENS)  # it says what it met,
        assert fleet.rota.partners[0] == "p1"  # and nobody is blamed


async def test_f5_a_lease_that_lapses_before_the_transfer_is_computed_again() -> None:
    async with fleet_of() as fleet:
        holdings = fleet.prefill[0].service.holdings

        async def lapse() -> None:
            fleet.rota.before_decode = _nothing
            await settle(lambda: holdings.tickets.num_held == 1)
            [lease] = holdings.tickets.lapse(1e12)
            holdings._free(lease.ticket_id, lease.key)

        fleet.rota.before_decode = lapse
        assert await fleet.answer(asked()) == continuation(asked())
        assert fleet.rota.agains == [("p1", Have.TOKENS)]


async def test_f6_decode_dies_before_the_transfer_and_another_takes_the_same_ticket() -> None:
    async with fleet_of() as fleet:
        victim, dying = fleet.decode[0], list[asyncio.Task[None]]()
        reserve = victim.engine.reserve

        async def reserve_and_die(key: Key, capacity: int) -> Pages | None:
            pages = await reserve(key, capacity)
            dying.append(asyncio.create_task(victim.server.stop(0)))
            return pages

        victim.engine.reserve = reserve_and_die  # type: ignore[method-assign]
        assert await fleet.answer(asked()) == continuation(asked())
        assert fleet.rota.agains == [("d1", Have.TICKET)]
        assert len(dying) == 1


async def test_f4_prefill_that_wakes_up_after_it_was_given_up_changes_nothing() -> None:
    async with fleet_of() as fleet:
        fleet.prefill[0].engine.hang(since_s=HUNG_ENGINE_S)
        assert await fleet.answer(asked()) == continuation(asked())
        assert fleet.rota.agains == [("p1", Have.NOTHING)]
        fleet.prefill[0].engine.resume()


@pytest.mark.parametrize("at", [1, 2, 5, 11])
async def test_f7_decode_dies_at_a_token(at: int) -> None:
    async with fleet_of(decode=Script(step_s=0.01)) as fleet:
        sent: list[int] = []
        answering = asyncio.create_task(fleet.answer(asked(), sent))
        await settle(lambda: len(sent) >= at)
        await fleet.decode[0].server.stop(0)
        assert await answering == continuation(asked())


async def test_f8_full_decode_workers_make_requests_wait_and_lose_none() -> None:
    async with fleet_of(decode=Script(num_slots=2, step_s=0.001)) as fleet:
        names = [f"full-{i}" for i in range(20)]
        answers = await asyncio.gather(*(fleet.answer(asked(name)) for name in names))
        assert answers == [continuation(asked(name)) for name in names]


async def test_f8_past_its_deadline_it_is_a_503_and_prefill_is_free() -> None:
    full = Script(num_slots=1, step_s=0.05)
    async with fleet_of(decode=full, deadlines=Deadlines(room_s=0.3)) as fleet:
        holders = [
            await DecodeClient(fleet.pipeline.hops.decode._pool).reserve(  # type: ignore[attr-defined]
                worker.rank, Key(f"holder-{i}", 1), 20, 10.0
            )
            for i, worker in enumerate(fleet.decode)
        ]
        with pytest.raises(Overloaded):
            await fleet.answer(asked())
        await settle(fleet.prefill[0].is_at_baseline)
        for holder in holders:
            await holder.cancel()


async def test_f20_pools_hardly_larger_than_one_request_serve_all_in_turn() -> None:
    tight = Script(num_blocks=12)  # a request needs eleven
    async with fleet_of(tight, tight) as fleet:
        names = [f"tight-{i}" for i in range(8)]
        answers = await asyncio.gather(*(fleet.answer(asked(name)) for name in names))
        assert answers == [continuation(asked(name)) for name in names]


async def test_f25_a_pair_that_cannot_talk_costs_a_request_a_pause_and_names_both() -> None:
    async with fleet_of() as fleet, linked(fleet) as link:
        link.is_dropping = True
        assert await asyncio.wait_for(fleet.answer(asked()), 10) == continuation(asked())
        assert fleet.rota.agains == [("d1", Have.TOKENS)]
        assert fleet.rota.partners == ["p1"]


async def test_p11_three_deaths_are_a_clear_error_and_leave_nothing() -> None:
    async with fleet_of(decode=Script(step_s=0.01)) as fleet:
        sent: list[int] = []
        answering = asyncio.create_task(fleet.answer(asked(max_new=40), sent))
        await settle(lambda: len(sent) >= 2)
        for worker in fleet.decode:
            await worker.server.stop(0)
        with pytest.raises(Lost) as caught:
            await answering
        assert caught.value.code == "worker_lost"
        assert sent == continuation(asked(max_new=40))[: len(sent)]
