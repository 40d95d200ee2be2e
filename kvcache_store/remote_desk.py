"""The operator's desk of a node from elsewhere; see report.Operator."""

import grpc.aio

from diptych.kvcache_store import wire
from diptych.kvcache_store.report import Collected, SegmentRow, Stats, Verified
from diptych.transport.channel import call

SHORT_S = 10.0
LONG_S = 3_600.0  # for what reads or moves the whole disk


class RemoteDesk:
    """Asks the node at the other end of a channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = wire.stub(channel)

    async def stats(self) -> Stats:
        return wire.stats_from_pb(
            await call(self._stub.Stats, wire.stats_request(), timeout_s=SHORT_S)
        )

    async def segments(self) -> list[SegmentRow]:
        reply = await call(self._stub.List, wire.list_request(), timeout_s=SHORT_S)
        return [wire.segment_from_pb(row) for row in reply.segments]

    async def verify(self) -> Verified:
        reply = await call(self._stub.Verify, wire.verify_request(), timeout_s=LONG_S)
        return Verified(reply.read_bytes, reply.corrupt)

    async def collect(self, *, foreign: bool) -> Collected:
        request = wire.collect_request(foreign=foreign)
        reply = await call(self._stub.Collect, request, timeout_s=LONG_S)
        return Collected(reply.moved_bytes, reply.freed_bytes)

    async def remove(self, tenant: str) -> str:
        reply = await call(self._stub.Remove, wire.remove_request(tenant), timeout_s=LONG_S)
        receipt: str = reply.receipt
        return receipt
