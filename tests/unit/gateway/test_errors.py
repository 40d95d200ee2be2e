"""Errors in their HTTP shape."""

import pytest

from diptych.core import errors as tree
from diptych.core.errors import DiptychError
from diptych.gateway.errors import (
    HttpError,
    anthropic_envelope,
    envelope,
    envelope_for,
    headers,
    is_anthropic,
)


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
def test_t105_a_503_says_when_to_come_back(wait_s: float | None) -> None:
    said = headers(tree.Overloaded("x", retry_after_s=wait_s))
    at_least_ms = 1000 * (wait_s or 1.0)
    assert at_least_ms <= int(said["retry-after-ms"]) <= 1.5 * at_least_ms
    assert int(said["retry-after"]) >= 1


def test_only_a_lost_worker_asks_for_a_retry() -> None:
    assert headers(tree.Lost("x"))["x-should-retry"] == "true"
    assert "x-should-retry" not in headers(tree.Overloaded("x"))
    assert headers(tree.BadRequest("x")) == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (tree.BadRequest("x"), "invalid_request_error"),
        (HttpError(401, "invalid_api_key", "x"), "authentication_error"),
        (HttpError(402, "insufficient_quota", "x"), "billing_error"),
        (HttpError(403, "insufficient_permissions", "x"), "permission_error"),
        (tree.NotFound("x"), "not_found_error"),
        (HttpError(405, "method_not_allowed", "x"), "invalid_request_error"),
        (HttpError(413, "request_too_large", "x"), "request_too_large"),
        (HttpError(415, "unsupported_media_type", "x"), "invalid_request_error"),
        (tree.OverQuota("x"), "rate_limit_error"),
        (tree.Broken("x"), "api_error"),
        (tree.Overloaded("x"), "overloaded_error"),
        (tree.Lost("x"), "overloaded_error"),
        (tree.Expired("x"), "timeout_error"),
    ],
)
def test_t92_anthropics_envelope_has_its_own_types_by_status(
    error: DiptychError, kind: str
) -> None:
    said = anthropic_envelope(error, "req_1")
    assert said == {
        "type": "error",
        "error": {"type": kind, "message": envelope(error, "req_1")["error"]["message"]},
        "request_id": "req_1",
    }


def test_anthropics_envelope_names_the_field_in_its_message_once() -> None:
    for text in ("max_tokens: too much", "too much"):
        said = anthropic_envelope(tree.BadRequest(text, param="max_tokens"), "r")["error"]
        assert said["message"] == "max_tokens: too much"
    long = tree.BadRequest("x" * 5000, param="max_tokens")
    assert len(anthropic_envelope(long, "r")["error"]["message"]) == 1000


@pytest.mark.parametrize(
    ("path", "is_theirs"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/batches/x", True),
        ("/anthropic/v1/messages", True),
        ("/anthropic/nowhere", True),
        ("/v1/chat/completions", False),
        ("/v1/responses", False),
        ("/v1/threads/t/messages", False),
        ("/v1/messagesx", False),
        ("/", False),
    ],
)
def test_t92_the_path_decides_whose_envelope_it_is(path: str, is_theirs: bool) -> None:
    assert is_anthropic(path) is is_theirs
    assert ("type" in envelope_for(path, tree.BadRequest("x"), "r")) is is_theirs
