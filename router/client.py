"""The router's front door: place requests, report load, ask who is there."""

from collections.abc import AsyncIterator

import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import Expired
from diptych.router import wire
from diptych.router.lease import Lease
from diptych.router.messages import (
    BlockTier,
    DecodeAt,
    Drain,
    Fleet,
    Have,
    Join,
    Load,
    Member,
    Placement,
    PrefillAt,
    Queued,
    Resume,
    SkipTo,
    Want,
)
from diptych.router.reporter import Reporter
from diptych.transport.channel import Dial, call, connect, deadline
from diptych.transport.errors import from_rpc

__all__ = [
    "BlockTier",
    "DecodeAt",
    "Drain",
    "Fleet",
    "Have",
    "Join",
    "Lease",
    "Load",
    "Member",
    "Placement",
    "PrefillAt",
    "Queued",
    "Reporter",
    "Resume",
    "RouterClient",
    "SkipTo",
    "Want",
    "drain",
    "drained",
    "status",
    "watch",
]

OPEN_WAIT_S = 5.0  # a lease may ride over a router's restart


class RouterClient:
    """Places requests with one router over one channel."""

    def __init__(self, address: str, *, dial: Dial = connect) -> None:
        self.address = address
        self._channel = dial(address)
        self._stub = pb_grpc.RouterStub(self._channel)  # type: ignore[no-untyped-call]

    async def place(self, want: Want) -> Lease:
        """Open a lease; Lost if the router cannot be reached."""
        lease = Lease(self._stub, want)
        try:
            await lease.open(min(OPEN_WAIT_S, want.deadline_s))
        except BaseException:
            await lease.close()
            raise
        return lease

    async def close(self) -> None:
        """Close the channel; open leases end with it."""
        await self._channel.close()


async def status(address: str, timeout_s: float, *, dial: Dial = connect) -> Fleet:
    """The fleet right now; Lost or Expired if the router does not answer."""
    async with dial(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        return wire.fleet_from_pb(await call(stub.Status, pb.StatusRequest(), timeout_s=timeout_s))


async def watch(
    address: str, period_s: float = 1.0, *, dial: Dial = connect
) -> AsyncIterator[Fleet]:
    """The fleet now, and again every period or sooner; Lost once the router does not answer."""
    async with dial(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        try:
            async for fleet in stub.Watch(pb.FleetWatch(period_ms=round(period_s * 1000))):
                yield wire.fleet_from_pb(fleet)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error


async def drain(
    address: str, member_id: str, wish: Drain, timeout_s: float, *, dial: Dial = connect
) -> Fleet:
    """Give a worker no new work, or some again; NotFound if the router does not know it."""
    request = pb.DrainRequest(member_id=member_id, drain=wire.drain_to_pb(wish))
    async with dial(address) as channel:
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        return wire.fleet_from_pb(await call(stub.Drain, request, timeout_s=timeout_s))


async def drained(address: str, member_id: str, timeout_s: float, *, dial: Dial = connect) -> None:
    """Wait until a draining worker holds nothing any more, or is gone.

    Expired says what was left; BadRequest if somebody ended the drain.
    """
    last: Member | None = None
    try:
        async with deadline(timeout_s, f"draining {member_id}"):
            async for fleet in watch(address, period_s=0.2, dial=dial):
                named = (m for m in fleet.members if m.join.member_id == member_id)
                last = next(named, None)
                if last is None or (last.is_idle and last.load.draining):
                    return
    except Expired as error:
        left = last.leases if last is not None else 0
        raise Expired(f"{error.message}; {left} requests are left") from None
