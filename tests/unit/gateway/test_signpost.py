"""Paths that lead nowhere, and what is said there."""

from typing import Any

import httpx
import pytest

from diptych.gateway.signpost import Signpost
from diptych.text.markers import Marker


@pytest.fixture
def site(serve: Any) -> Any:
    return serve("x", Marker.EOS)


async def error_of(site: Any, method: str, path: str) -> tuple[httpx.Response, dict[str, Any]]:
    reply = await site.http.request(method, path)
    assert reply.headers["x-request-id"].startswith("req_")
    error: dict[str, Any] = reply.json()["error"]
    assert error["request_id"] == reply.headers["x-request-id"]
    assert error["type"] == "invalid_request_error"
    return reply, error


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("GET", "/tokenize", "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/readyz", "GET"),
        ("PUT", "/v1/responses/resp_1", "DELETE"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    site: Any, method: str, path: str, allowed: str
) -> None:
    reply, error = await error_of(site, method, path)
    assert (reply.status_code, error["code"]) == (405, "method_not_allowed")
    assert allowed in reply.headers["allow"].split(", ")
    assert allowed in error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("POST", "/embeddings"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/moderations"),
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/fine_tuning/jobs"),
        ("POST", "/v1/assistants"),
        ("POST", "/v1/threads/runs"),
        ("POST", "/rerank"),
        ("POST", "/v1/rerank"),
        ("POST", "/score"),
        ("POST", "/pooling"),
        ("POST", "/classify"),
        ("GET", "/user/balance"),
    ],
)
async def test_what_others_offer_and_we_do_not_is_refused_by_that_name(
    site: Any, method: str, path: str
) -> None:
    reply, error = await error_of(site, method, path)
    assert (reply.status_code, error["code"]) == (404, "endpoint_not_supported")
    assert "POST /v1/chat/completions" in error["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/v1",
        "/v1/chat/completions/",
        "/v1/embeddingsx",
        "/scores",
        "/docs",
        "/v1/tokenize/x",
    ],
)
async def test_any_other_path_is_unknown(site: Any, path: str) -> None:
    reply, error = await error_of(site, "POST", path)
    assert (reply.status_code, error["code"]) == (404, "unknown_url")
    assert "GET /v1/models" in error["message"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/resp_1", "/resp_1/cancel", "/resp_1/input_items"])
@pytest.mark.parametrize("base", ["/v1", ""])
async def test_no_response_was_stored(site: Any, method: str, path: str, base: str) -> None:
    reply, error = await error_of(site, method, f"{base}/responses{path}")
    assert (reply.status_code, error["code"]) == (404, "response_not_found")


async def test_what_is_said_to_be_supported_is(site: Any) -> None:
    _, error = await error_of(site, "GET", "/nowhere")
    _, _, listed = error["message"].partition("Supported are ")
    entries = listed.removesuffix(".").split(", ")
    assert {"POST /v1/completions", "POST /v1/tokenize", "GET /v1/models"} <= set(entries)
    assert len(set(entries)) == len(entries)
    for entry in entries:
        method, path = entry.split(" ")
        reply = await site.http.request(method, path)
        assert reply.status_code in (200, 400), entry


def test_nothing_is_supported_where_there_are_no_routes() -> None:
    assert Signpost(()).supported == ""
