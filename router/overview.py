"""The fleet as all its routers see it: asked, watched, drained. Addresses are comma-separated."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace

import grpc.aio

from diptych.config import addresses_of
from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import DiptychError, Expired, Lost, NotFound
from diptych.router import wire
from diptych.router.messages import SHOWN_DECISIONS, Drain, Fleet, Member, RouterView
from diptych.transport.channel import Backoff, Dial, call, connect, deadline
from diptych.transport.errors import from_rpc

FIRST_S = 1.0  # for those routers that answer later than others

Heard = Mapping[str, Fleet | DiptychError]  # by address


def merge(heard: Heard) -> Fleet:
    """One view of what several routers say; the error of the first if none of them answers.

    A member is as whoever heard it last says, and drained once all know that; leases and waiting
    requests add up, as every router counts its own. Of pools the largest wish counts.
    """
    fleets = {address: said for address, said in heard.items() if isinstance(said, Fleet)}
    if not fleets:
        raise next(error for error in heard.values() if isinstance(error, DiptychError))
    members: dict[str, Member] = {}
    for fleet in fleets.values():
        for member in fleet.members:
            name = member.join.member_id
            other = members.get(name)
            members[name] = member if other is None else _both(member, other)
    decisions = [each for fleet in fleets.values() for each in fleet.decisions]
    first = next((f for f in fleets.values() if f.ready), next(iter(fleets.values())))
    return replace(
        first,
        members=tuple(members.values()),
        queued=sum(fleet.queued for fleet in fleets.values()),
        leases=sum(fleet.leases for fleet in fleets.values()),
        peers=max(fleet.peers for fleet in fleets.values()),
        stale_peers=max(fleet.stale_peers for fleet in fleets.values()),
        routers=tuple(_view(address, said) for address, said in heard.items()),
        policy=max((fleet.policy for fleet in fleets.values()), key=lambda name: name != "cost"),
        desired=_desired(fleets.values()),
        decisions=tuple(sorted(decisions, key=lambda each: each.age_s)[:SHOWN_DECISIONS]),
    )


def _desired(fleets: Iterable[Fleet]) -> dict[str, int]:
    desired: dict[str, int] = {}
    for fleet in fleets:
        for role, number in fleet.desired.items():
            desired[role] = max(number, desired.get(role, 0))
    return desired


def _both(one: Member, other: Member) -> Member:
    """One member as two routers see it: ready for whoever takes it to be."""
    first, second = sorted((one, other), key=lambda each: (not each.ready, each.silent_s))
    newer = min(first, second, key=lambda each: each.silent_s)
    draining = one.load.draining and other.load.draining
    return replace(
        first,
        load=replace(newer.load, draining=draining),
        leases=one.leases + other.leases,
        silent_s=newer.silent_s,
    )


def _view(address: str, said: Fleet | DiptychError) -> RouterView:
    if isinstance(said, DiptychError):
        return RouterView(address, error=said.message)
    return RouterView(
        address, said.router_id, "", said.queued, said.leases, said.peers, said.stale_peers
    )


async def status(routers: str, timeout_s: float, *, dial: Dial = connect) -> Fleet:
    """The fleet right now; Lost or Expired if no router answers."""
    addresses = addresses_of(routers)
    answers = await asyncio.gather(*(_status(each, timeout_s, dial) for each in addresses))
    return merge(dict(zip(addresses, answers, strict=True)))


async def _status(address: str, timeout_s: float, dial: Dial) -> Fleet | DiptychError:
    async with dial(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = await call(stub.Status, pb.StatusRequest(), timeout_s=timeout_s)
        except DiptychError as error:
            return error
        return wire.fleet_from_pb(answer)


async def watch(
    routers: str, period_s: float = 1.0, *, dial: Dial = connect
) -> AsyncIterator[Fleet]:
    """The fleet now, and again every period or sooner; Lost once no router answers."""
    addresses = addresses_of(routers)
    heard: dict[str, Fleet | DiptychError] = {}
    news = asyncio.Event()

    async def follow(address: str) -> None:
        backoff = Backoff(first_s=0.1, cap_s=1.0)
        while True:
            try:
                async for fleet in _watch(address, period_s, dial):
                    backoff.succeeded()
                    heard[address] = fleet
                    news.set()
                heard[address] = Lost("the router ended the stream")
            except DiptychError as error:
                heard[address] = error
            news.set()
            await asyncio.sleep(backoff.failed())

    following = [asyncio.create_task(follow(address)) for address in addresses]
    until_s = asyncio.get_running_loop().time() + FIRST_S
    try:
        while True:
            late = len(heard) < len(addresses)
            try:
                async with asyncio.timeout_at(until_s if heard and late else None):
                    await news.wait()
            except TimeoutError:
                pass  # who has not answered by now is shown when it does
            news.clear()
            now_s = asyncio.get_running_loop().time()
            if len(heard) == len(addresses) or (heard and now_s >= until_s):
                until_s = float("inf")
                yield merge({address: heard[address] for address in addresses if address in heard})
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def _watch(address: str, period_s: float, dial: Dial) -> AsyncIterator[Fleet]:
    async with dial(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        try:
            async for fleet in stub.Watch(pb.FleetWatch(period_ms=round(period_s * 1000))):
                yield wire.fleet_from_pb(fleet)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error


async def drain(
    routers: str, member_id: str, wish: Drain, timeout_s: float, *, dial: Dial = connect
) -> Fleet:
    """Give a worker no new work, or some again; NotFound if no router knows it.

    One router is told: the worker's own reports tell the others.
    """
    request = pb.DrainRequest(member_id=member_id, drain=wire.drain_to_pb(wish))
    errors: list[DiptychError] = []
    for address in addresses_of(routers):
        async with dial(address) as channel:
            stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = await call(stub.Drain, request, timeout_s=timeout_s)
            except (Lost, Expired, NotFound) as error:
                errors.append(error)
                continue
            return wire.fleet_from_pb(answer)
    raise next((error for error in errors if isinstance(error, NotFound)), errors[0])


async def drained(routers: str, member_id: str, timeout_s: float, *, dial: Dial = connect) -> None:
    """Wait until a draining worker holds nothing any more, or is gone.

    Expired says what was left; BadRequest if somebody ended the drain.
    """
    last: Member | None = None
    try:
        async with deadline(timeout_s, f"draining {member_id}"):
            async for fleet in watch(routers, period_s=0.2, dial=dial):
                named = (m for m in fleet.members if m.join.member_id == member_id)
                last = next(named, None)
                if last is None or (last.is_idle and last.load.draining):
                    return
    except Expired as error:
        left = last.leases if last is not None else 0
        raise Expired(f"{error.message}; {left} requests are left") from None
