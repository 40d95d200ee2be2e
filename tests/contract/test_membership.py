"""F17: routers, a worker and a gateway that know each other by Redis, while it is there or not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from diptych.core.phases import Role
from diptych.router.client import Queued, RouterClient, SkipTo, Want
from diptych.testing.clock import settle
from diptych.testing.fleet import RunningRouter, member, running_router
from diptych.testing.redis import RedisServer, redis_server
from diptych.transport.membership import Announced, Membership, addresses_in

SECRET = b"the secret of one cluster"
LEASE_S = 1.0
SOON_S = 20.0


@asynccontextmanager
async def meeting(membership: Membership) -> AsyncIterator[Membership]:
    running = asyncio.create_task(membership.run())
    yield membership
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def by(server: RedisServer) -> Membership:
    return Membership(server.url, SECRET, lease_s=LEASE_S, renew_s=0.2)


@asynccontextmanager
async def announced_router(server: RedisServer, name: str) -> AsyncIterator[RunningRouter]:
    async with running_router(router_id=name) as made:
        membership = by(server)
        membership.announce(Announced(Role.ROUTER, name, made.address, made.sharing.life))
        membership.watch(Role.ROUTER, lambda found: made.peers.use(addresses_in(found)))
        async with meeting(membership):
            yield made


async def place_one(client: RouterClient) -> None:
    async with await client.place(Want("r", 10, 7, deadline_s=30)) as lease:
        async with asyncio.timeout(SOON_S):
            while isinstance(answer := await anext(lease), Queued):
                pass
        assert isinstance(answer, SkipTo)


async def test_f17_the_data_path_goes_on_without_redis_and_reconverges(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            one = await enter(announced_router(server, "router-1"))
            going = AsyncExitStack()
            two = await going.enter_async_context(announced_router(server, "router-2"))
            worker = await enter(member(one.address, "hybrid-1"))
            known = [one.address]
            membership = by(server)

            def found(routers: tuple[Announced, ...]) -> None:
                worker.reporter.use(addresses_in(routers))
                known[:] = addresses_in(routers)

            membership.watch(Role.ROUTER, found)
            await enter(meeting(membership))
            clients = [RouterClient(lambda: known), RouterClient(lambda: known[::-1])]
            for client in clients:
                stack.push_async_callback(client.close)

            def is_whole() -> bool:
                knows = [router.sharing.num_peers for router in (one, two)] == [1, 1]
                return knows and one.members == two.members == ["hybrid-1"]

            await settle(is_whole, SOON_S)
            await settle(lambda: one.sharing.num_stale + two.sharing.num_stale == 0, SOON_S)
            joins = one.num_joins, two.num_joins
            server.stop()
            await settle(lambda: membership.is_away, SOON_S)
            until_s = asyncio.get_running_loop().time() + 1.5 * LEASE_S
            while asyncio.get_running_loop().time() < until_s:
                for client in clients:
                    await place_one(client)
                assert is_whole()
            server.start()  # it has forgotten everything
            await settle(lambda: not membership.is_away, SOON_S)
            until_s = asyncio.get_running_loop().time() + 1.5 * LEASE_S
            while asyncio.get_running_loop().time() < until_s:
                for client in clients:
                    await place_one(client)
                assert is_whole()
            assert (one.num_joins, two.num_joins) == joins
            await going.aclose()  # and now one really leaves
            await settle(lambda: known == [one.address], SOON_S)
            await settle(lambda: one.sharing.num_peers == 0, SOON_S)
            assert one.sharing.num_stale == 0
            await place_one(clients[1])
