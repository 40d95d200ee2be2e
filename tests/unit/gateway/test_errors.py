"""Errors in their HTTP shape."""

import pytest

from diptych.core import errors as tree
from diptych.core.errors import DiptychError
from diptych.gateway.errors import HttpError, envelope, headers


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (tree.BadRequest("x"), 400, "invalid_request_error", "invalid_value"),
        (tree.NotFound("x", code="model_not_found"), 404, "invalid_request_error", None),
        (HttpError(405, "method_not_allowed", "x"), 405, "invalid_request_error", None),
        (HttpError(408, "request_timeout", "x"), 408, "timeout_error", None),
        (HttpError(413, "request_too_large", "x"), 413, "invalid_request_error", None),
        (tree.OverQuota("x"), 429, "rate_limit_error", "rate_limit_exceeded"),
        (tree.Broken("x"), 500, "server_error", "internal_error"),
        (tree.Overloaded("x"), 503, "overloaded_error", "no_capacity"),
        (tree.Overloaded("x", code="queue_timeout"), 503, "overloaded_error", None),
        (tree.Lost("x"), 503, "server_error", "worker_lost"),
        (tree.Lost("x", code="ticket_gone"), 503, "server_error", "worker_lost"),
        (tree.Overloaded("x", code="odd"), 503, "overloaded_error", "no_capacity"),
        (tree.Expired("x", code="decode_timeout"), 504, "timeout_error", "upstream_timeout"),
        (tree.Expired("x"), 504, "timeout_error", "upstream_timeout"),
    ],
)
def test_every_error_has_its_status_type_and_code(
    error: DiptychError, status: int, kind: str, code: str | None
) -> None:
    said = envelope(error, "req_1")["error"]
    assert error.http_status == status
    assert said["type"] == kind
    assert said["code"] == (code or error.code)
    assert said.keys() == {"message", "type", "param", "code", "request_id"}


def test_a_bug_is_not_described_to_strangers() -> None:
    said = envelope(tree.Broken("KeyError in /srv/secret.py"), "req_1")["error"]
    assert "secret" not in said["message"]
    assert said["request_id"] == "req_1"


def test_messages_are_bounded() -> None:
    assert len(envelope(tree.BadRequest("x" * 5000), "r")["error"]["message"]) == 1000


@pytest.mark.parametrize("wait_s", [None, 0.2, 30.0])
def test_a_503_says_when_to_come_back(wait_s: float | None) -> None:
    said = headers(tree.Overloaded("x", retry_after_s=wait_s))
    at_least_ms = 1000 * (wait_s or 1.0)
    assert at_least_ms <= int(said["retry-after-ms"]) <= 1.5 * at_least_ms
    assert int(said["retry-after"]) >= 1


def test_only_a_lost_worker_asks_for_a_retry() -> None:
    assert headers(tree.Lost("x"))["x-should-retry"] == "true"
    assert "x-should-retry" not in headers(tree.Overloaded("x"))
    assert headers(tree.BadRequest("x")) == {}
