"""Prefill's values to and from protobuf."""

from diptych.contract import worker_pb2 as pb
from diptych.core.ids import Key, WorkerId
from diptych.core.request import Generation
from diptych.transport.wire import generation_to_pb, key_to_pb


def prefill_to_pb(generation: Generation, deadline_s: float) -> pb.SessionUp:
    return pb.SessionUp(
        prefill=pb.Prefill(
            generation=generation_to_pb(generation), deadline_ms=max(1, round(deadline_s * 1000))
        )
    )


def accepted_to_pb(key: Key, ticket: bytes) -> pb.SessionDown:
    return pb.SessionDown(accepted=pb.Accepted(key=key_to_pb(key), ticket=ticket))


def request_to_pb(ticket: bytes, worker_id: WorkerId, why: str = "") -> pb.TicketRequest:
    return pb.TicketRequest(ticket=ticket, worker_id=worker_id, why=why)


def reply_to_pb(left_s: float | None) -> pb.TicketReply:
    """None = lapsed."""
    if left_s is None:
        return pb.TicketReply(verdict=pb.LAPSED)
    return pb.TicketReply(verdict=pb.VALID, lease_ms=round(left_s * 1000))


def is_valid(reply: pb.TicketReply) -> bool:
    return reply.verdict == pb.VALID
