"""Decode's values to and from protobuf."""

from diptych.contract import worker_pb2 as pb
from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.transport.wire import generation_to_pb, key_to_pb


def reserve_to_pb(key: Key, capacity: int, deadline_s: float) -> pb.SessionUp:
    return pb.SessionUp(
        reserve=pb.Reserve(key=key_to_pb(key), capacity=capacity, deadline_ms=_ms(deadline_s))
    )


def start_to_pb(generation: Generation, ticket: bytes, deadline_s: float) -> pb.SessionUp:
    return pb.SessionUp(
        start=pb.Start(
            generation=generation_to_pb(generation), ticket=ticket, deadline_ms=_ms(deadline_s)
        )
    )


def reserved_to_pb(key: Key) -> pb.SessionDown:
    return pb.SessionDown(reserved=pb.Reserved(key=key_to_pb(key)))


def busy_to_pb(key: Key, retry_after_s: float) -> pb.SessionDown:
    return pb.SessionDown(busy=pb.Busy(key=key_to_pb(key), retry_after_ms=_ms(retry_after_s)))


def accepted_to_pb(key: Key) -> pb.SessionDown:
    return pb.SessionDown(accepted=pb.Accepted(key=key_to_pb(key)))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
