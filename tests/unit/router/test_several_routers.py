"""Several routers over real gRPC on loopback, with members that only pretend."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from diptych.core.errors import Lost, NotFound
from diptych.core.phases import Phase, Role
from diptych.router.client import (
    Drain,
    Fleet,
    Join,
    Lease,
    Load,
    Member,
    Placement,
    Queued,
    RouterClient,
    SkipTo,
    Want,
    drain,
    drained,
    status,
    watch,
)
from diptych.router.messages import Decided
from diptych.router.overview import merge
from diptych.router.reporters import SETTLED_S, in_order
from diptych.testing.clock import settle
from diptych.testing.fleet import SOON_S, Pretender, RunningRouter, member, routers, running_router
from diptych.testing.links import link_to

AWAY = "127.0.0.1:1"


def want(name: str = "r") -> Want:
    return Want(name, prompt_len=10, max_new=7, deadline_s=30)


async def placed(lease: Lease) -> Placement:
    """The first answer that is a place."""
    async with asyncio.timeout(SOON_S):
        while isinstance(answer := await anext(lease), Queued):
            pass
    return answer


def all_hear(made: Pretender, count: int) -> bool:
    fleet = made.reporter.fleet
    return fleet is not None and len(fleet.members) >= count


# Reporting


async def test_a_member_is_one_at_every_router_and_at_those_that_are_found_later() -> None:
    async with routers(2) as (one, two), member(one.address, "hybrid-1") as worker:
        assert [m.join.member_id for m in (await status(one.address, SOON_S)).members]
        worker.reporter.use([two.address])
        await settle(lambda: "hybrid-1" in two.members, SOON_S)
        worker.report(running=3)
        await settle(
            lambda: one.load("hybrid-1").running == two.load("hybrid-1").running == 3, SOON_S
        )
        worker.reporter.use([])
        await settle(lambda: "hybrid-1" not in two.members, SOON_S)
        assert "hybrid-1" in one.members


async def test_a_router_by_two_addresses_is_one() -> None:
    async with running_router() as one, member(one.address, "hybrid-1") as worker:
        port = one.address.rpartition(":")[2]
        worker.reporter.use([f"localhost:{port}"])
        await settle(lambda: one.num_joins >= 3, SOON_S)  # they have taken each other's place
        joins = one.num_joins
        for running in range(1, 4):  # and from then on nobody does
            worker.report(running=running)
            await settle(lambda n=running: one.load("hybrid-1").running == n, SOON_S)
        assert one.num_joins == joins
        assert worker.reporter.is_connected


async def test_members_with_a_router_less_say_so_and_go_on() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(running_router())
        async with running_router() as two:
            both = f"{one.address},{two.address}"
            worker = await stack.enter_async_context(member(both, "hybrid-1"))
            await settle(lambda: "hybrid-1" in one.members and "hybrid-1" in two.members, SOON_S)
        await settle(lambda: worker.reporter.preferred() == [one.address, two.address], SOON_S)
        assert worker.reporter.is_connected
        assert worker.reporter.fleet is not None


def test_members_spread_over_routers_and_few_move_when_one_goes() -> None:
    names = [f"gateway-{number}" for number in range(200)]
    addresses = [f"router-{number}:7000" for number in range(4)]

    def homes_among(addresses: list[str]) -> dict[str, str]:
        heard_s = dict.fromkeys(addresses, 9.0)
        return {name: in_order(name, heard_s, addresses)[0] for name in names}

    homes, fewer = homes_among(addresses), homes_among(addresses[1:])
    assert min(Counter(homes.values()).values()) > 25
    assert all(fewer[name] == homes[name] for name in names if homes[name] != addresses[0])


def test_a_member_leaves_a_router_that_is_lost_and_returns_when_it_has_settled() -> None:
    home, other = in_order("gateway-1", {"a": 9.0, "b": 9.0}, "ab")
    both = [home, other]
    assert in_order("gateway-1", {home: 0.0, other: 0.0}, both) == both  # all is new
    assert in_order("gateway-1", {home: None, other: 9.0}, both) == [other, home]
    assert in_order("gateway-1", {home: 0.0, other: 9.0}, both) == [other, home]
    assert in_order("gateway-1", {home: SETTLED_S, other: 9.0}, both) == both
    assert in_order("gateway-1", {home: None, other: None}, both) == both


def test_a_router_that_knows_no_path_is_asked_after_those_that_do() -> None:
    home, other = in_order("gateway-1", {"a": 9.0, "b": 9.0}, "ab")
    assert in_order("gateway-1", {home: 9.0, other: 0.0}, [other]) == [other, home]
    assert in_order("gateway-1", {home: 9.0, other: 9.0}, []) == [home, other]
    assert in_order("gateway-1", {home: 9.0, other: None}, [other]) == [home, other]


# Placing


async def test_a_request_is_placed_at_the_next_router_at_once_when_one_is_lost() -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(running_router())
        two = await stack.enter_async_context(running_router())
        both = f"{one.address},{two.address}"
        await stack.enter_async_context(member(both, "hybrid-1"))
        await settle(lambda: bool(one.members and two.members), SOON_S)
        client = RouterClient(lambda: [AWAY, one.address, two.address], try_s=SOON_S)
        stack.push_async_callback(client.close)
        async with await client.place(want()) as lease:
            assert isinstance(await placed(lease), SkipTo)
            assert (one.num_leases, two.num_leases) == (1, 0)
            await one.stop()
            with pytest.raises(Lost):
                await placed(lease)
        async with await client.place(want()) as lease:
            assert isinstance(await placed(lease), SkipTo)
            assert two.num_leases == 1


async def test_a_router_that_hangs_costs_a_request_a_second_and_no_more() -> None:
    async with routers(2) as (one, two), link_to(one.address) as link:
        client = RouterClient(lambda: [link.address, two.address])
        async with await client.place(want()):
            assert (one.num_leases, two.num_leases) == (1, 0)
        await settle(lambda: one.num_leases == 0, SOON_S)
        link.is_dropping = True
        leases = [await client.place(want()) for _ in range(2)]
        assert (one.num_leases, two.num_leases) == (0, 2)
        for lease in leases:
            await lease.close()
        await client.close()


async def test_without_any_router_a_request_is_lost_within_its_deadline() -> None:
    for known in ([], [AWAY, "127.0.0.1:2"]):
        client = RouterClient(lambda known=known: known)
        with pytest.raises(Lost):
            await client.place(Want("r", 10, 7, deadline_s=0.3))
        await client.close()


async def test_a_request_waits_for_whichever_router_is_back_first() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    client = RouterClient(f"{AWAY},{listen}", try_s=SOON_S)
    placing = asyncio.create_task(client.place(want()))
    async with running_router(listen) as late:
        async with asyncio.timeout(SOON_S):
            lease = await placing
        assert late.num_leases == 1
        await lease.close()
        await client.close()


async def test_leases_at_a_router_that_is_known_no_more_are_ended() -> None:
    async with routers(2) as (one, two):
        known = [one.address, two.address]
        client = RouterClient(lambda: known, try_s=SOON_S)
        lease = await client.place(want())
        assert one.num_leases == 1
        known.remove(one.address)
        async with await client.place(want()):
            assert two.num_leases == 1
            with pytest.raises(Lost):
                await placed(lease)
        await lease.close()
        await client.close()


# The whole


@asynccontextmanager
async def two_with_a_worker() -> AsyncIterator[tuple[RunningRouter, RunningRouter, Pretender]]:
    async with routers(2) as (one, two):
        both = f"{one.address},{two.address}"
        async with member(both, "hybrid-1") as worker:
            await settle(lambda: bool(one.members and two.members), SOON_S)
            yield one, two, worker


async def test_what_is_asked_of_all_routers_adds_up_and_names_who_does_not_answer() -> None:
    async with two_with_a_worker() as (one, two, _):
        clients = [RouterClient(each.address) for each in (one, two)]
        leases = [await client.place(want()) for client in (*clients, clients[0])]
        for lease in leases:
            await placed(lease)
        fleet = await status(f"{one.address},{AWAY},{two.address}", SOON_S)
        assert (fleet.leases, [m.leases for m in fleet.members]) == (3, [3])
        assert [(r.router_id, r.leases, bool(r.error)) for r in fleet.routers] == [
            ("router-1", 2, False), ("", 0, True), ("router-2", 1, False),
        ]  # fmt: skip
        for lease in leases:
            await lease.close()
        for client in clients:
            await client.close()
    with pytest.raises(Lost):
        merge({AWAY: Lost("away")})


def test_of_pools_the_largest_wish_counts_and_of_decisions_the_newest() -> None:
    one = Decided("r1", Phase.PREFILL, "prefill-1", age_s=2.0)
    other = Decided("r2", Phase.DECODE, "decode-1", age_s=0.5)
    seen = {
        "a": Fleet(policy="cost", desired={"prefill": 3, "decode": 1}, decisions=(one,)),
        "b": Fleet(policy="own_ledger", desired={"prefill": 1, "decode": 2}, decisions=(other,)),
    }
    whole = merge(seen)
    assert (whole.desired, whole.policy) == ({"prefill": 3, "decode": 2}, "own_ledger")
    assert whole.decisions == (other, one)


def test_a_member_is_drained_when_all_routers_say_so() -> None:
    join = Join("decode-1", Role.DECODE)
    old = Member(join, Load(running=1), ready=True, leases=2, silent_s=0.9)
    new = Member(join, Load(running=3, draining=True), False, "draining", leases=1, silent_s=0.1)

    def seen(*views: Member) -> Member:
        [found] = merge({f"r{n}": Fleet((view,)) for n, view in enumerate(views)}).members
        return found

    whole = Member(join, Load(running=3), ready=True, leases=3, silent_s=0.1)
    assert seen(old, new) == seen(new, old) == whole
    drained = replace(old, load=Load(running=1, draining=True), ready=False)
    both = seen(new, drained)
    assert (both.ready, both.load.draining, both.load.running, both.leases) == (False, True, 3, 3)


async def test_watching_goes_on_with_the_routers_that_are_left() -> None:
    async with two_with_a_worker() as (one, two, _):
        fleets = watch(f"{one.address},{two.address}", period_s=0.1)
        async with asyncio.timeout(SOON_S):
            assert [r.error for r in (await anext(fleets)).routers] == ["", ""]
            await one.stop()
            async for fleet in fleets:
                if any(each.error for each in fleet.routers):
                    break
        assert [bool(each.error) for each in fleet.routers] == [True, False]
        assert [m.join.member_id for m in fleet.members] == ["hybrid-1"]
        await fleets.aclose()


async def test_a_drain_told_to_one_router_holds_at_all_and_is_over_when_all_have_nothing() -> None:
    async with two_with_a_worker() as (one, two, worker):
        both = f"{AWAY},{one.address},{two.address}"
        client = RouterClient(two.address)
        lease = await client.place(want())
        await placed(lease)
        await drain(both, "hybrid-1", Drain(True, limit_s=30), SOON_S)
        await settle(lambda: two.load("hybrid-1").draining, SOON_S)
        assert worker.heard == [Drain(True, limit_s=30)]
        waiting = asyncio.create_task(drained(both, "hybrid-1", SOON_S))
        late = await client.place(want())
        async with asyncio.timeout(SOON_S):
            assert isinstance(await anext(late), Queued)  # nobody else is there
        assert not waiting.done()  # the other router's request is still there
        await late.close()
        await lease.close()
        await waiting
        await drain(both, "hybrid-1", Drain(False), SOON_S)
        await settle(lambda: not two.load("hybrid-1").draining, SOON_S)
        with pytest.raises(NotFound):
            await drain(both, "hybrid-9", Drain(True), SOON_S)
        await client.close()


# Sharing


def stale(made: RunningRouter) -> tuple[int, int]:
    return made.sharing.num_peers, made.sharing.num_stale


async def test_routers_hear_each_other_and_not_themselves() -> None:
    async with routers(3) as (one, two, three):
        for made in (one, two, three):
            made.peers.use([one.address, two.address, three.address])
        await settle(lambda: {stale(made) for made in (one, two, three)} == {(2, 0)}, SOON_S)
        assert (await status(one.address, SOON_S)).peers == 2


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_peer_that_is_gone_or_silent_is_stale_and_its_share_is_dropped(
    is_gone: bool,
) -> None:
    async with two_with_a_worker() as (one, two, _), link_to(two.address) as link:
        one.peers.use([link.address])
        await settle(lambda: stale(one) == (1, 0), SOON_S)
        client = RouterClient(two.address)
        lease = await client.place(want())
        await placed(lease)
        await settle(lambda: one.standing("hybrid-1").shared.rows == 1, SOON_S)
        if is_gone:
            await two.stop()
        link.is_dropping = True
        await settle(lambda: stale(one) == (1, 1), SOON_S)
        assert one.standing("hybrid-1").shared.rows == 0
        assert one.dispatcher.chooser.is_stale
        if not is_gone:
            link.is_dropping = False
            link.cut()
            await settle(lambda: stale(one) == (1, 0), SOON_S)
            await settle(lambda: one.standing("hybrid-1").shared.rows == 1, SOON_S)
        one.peers.use([])
        assert stale(one) == (0, 0)
        assert not one.dispatcher.chooser.is_stale
        await lease.close()
        await client.close()


@pytest.mark.parametrize("shares", [True, False])
async def test_two_routers_load_four_workers_evenly_because_they_tell_each_other(
    shares: bool,
) -> None:
    """Half of the workers come after half of the requests, and no report helps."""
    async with AsyncExitStack() as stack:
        one, two = await stack.enter_async_context(routers(2))
        both = f"{one.address},{two.address}"
        if shares:
            one.peers.use([two.address])
            two.peers.use([one.address])
        for number in (1, 2):
            await stack.enter_async_context(member(both, f"hybrid-{number}", slots=200))
        await settle(lambda: len(one.members) == len(two.members) == 2, SOON_S)
        rows: Counter[str] = Counter()
        for made, more in ((one, (3, 4)), (two, ())):
            client = RouterClient(made.address)
            stack.push_async_callback(client.close)
            for number in range(100):
                lease = await stack.enter_async_context(await client.place(want(f"r{number}")))
                at = await placed(lease)
                assert isinstance(at, SkipTo)
                await lease.progress(Phase.DECODE, 1)
                rows[at.rank.worker_id] += 1
            for number in more:
                await stack.enter_async_context(member(both, f"hybrid-{number}", slots=200))
            await settle(lambda: len(one.members) == len(two.members) == 4, SOON_S)
            if shares:
                total = sum(rows.values())
                await settle(lambda n=total: sum_of(two) == n, SOON_S)
        busiest = max(rows.values()) / 50
        assert busiest <= 1.3 if shares else busiest > 1.3


def sum_of(made: RunningRouter) -> int:
    return sum(made.standing(f"hybrid-{number}").rows for number in (1, 2, 3, 4))
