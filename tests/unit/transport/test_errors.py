"""Errors cross gRPC as they are."""

import grpc
import grpc.aio
import pytest

from diptych.core import errors
from diptych.core.errors import DiptychError
from diptych.transport.errors import from_rpc, to_status
from diptych.transport.frames import BadFrame, Fault


def crossed(error: DiptychError) -> DiptychError:
    status, metadata = to_status(error)
    return from_rpc(
        grpc.aio.AioRpcError(
            status, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), error.message
        )
    )


@pytest.mark.parametrize(
    "kind",
    [
        errors.BadRequest,
        errors.NotFound,
        errors.OverQuota,
        errors.Overloaded,
        errors.Expired,
        errors.Lost,
        errors.Refused,
        errors.Broken,
    ],
)
def test_class_code_message_and_hints_survive(kind: type[DiptychError]) -> None:
    sent = kind("müde", code="some_code", param="a.b[0]", retry_after_s=1.5)
    got = crossed(sent)
    assert type(got) is kind
    assert (got.code, got.message, got.param, got.retry_after_s) == (
        "some_code",
        "müde",
        "a.b[0]",
        1.5,
    )


def test_a_private_class_crosses_as_its_nearest_public_one() -> None:
    got = crossed(BadFrame(Fault.CHECKSUM, "bad"))
    assert type(got) is errors.Lost
    assert got.code == Fault.CHECKSUM


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Lost),
        (grpc.StatusCode.INTERNAL, errors.Lost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.Expired),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Refused),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Broken),
    ],
)
def test_the_transports_own_failures_have_a_class(
    status: grpc.StatusCode, kind: type[DiptychError]
) -> None:
    bare = grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), "details")
    assert type(from_rpc(bare)) is kind
