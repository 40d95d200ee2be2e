"""The door before Anthropic's paths: the same keys and limits, told in Anthropic's way."""

from typing import Any

import pytest

from diptych.text.markers import Marker

EOS = Marker.EOS


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "word " * 20}]
    return {"model": "tiny", "max_tokens": 9, "messages": messages, **fields}


def problem(reply: Any, status: int, kind: str) -> None:
    assert reply.status_code == status
    said = reply.json()
    assert said.keys() == {"type", "error", "request_id"}
    assert (said["type"], said["error"]["type"]) == ("error", kind)


@pytest.mark.parametrize("path", ["/v1/messages", "/anthropic/v1/messages/count_tokens"])
async def test_t92_the_door_refuses_in_anthropics_envelope(guard: Any, path: str) -> None:
    guarded = guard("x", EOS)
    await guarded.key()
    for headers in ({}, {"x-api-key": "sk-wrong"}):
        reply = await guarded.http.post(path, json=body(), headers=headers)
        problem(reply, 401, "authentication_error")
        assert reply.headers["www-authenticate"] == "Bearer"


async def test_a_key_comes_in_by_x_api_key_and_hears_of_its_limits_in_anthropics_headers(
    guard: Any,
) -> None:
    guarded = guard("x", EOS)
    headers = {"x-api-key": await guarded.key(requests_per_min=2)}
    for _ in range(2):
        reply = await guarded.http.post("/v1/messages", json=body(), headers=headers)
        assert reply.status_code == 200
        assert reply.headers["anthropic-ratelimit-requests-limit"] == "2"
        assert "x-ratelimit-limit-requests" not in reply.headers
    reply = await guarded.http.post("/v1/messages", json=body(), headers=headers)
    problem(reply, 429, "rate_limit_error")
    assert int(reply.headers["retry-after"]) >= 1


async def test_t107_users_named_in_metadata_do_not_share_cached_blocks(guard: Any) -> None:
    guarded = guard("x", EOS)
    headers = {"x-api-key": await guarded.key()}
    for user in ("a", "b", "a"):
        fields = body(metadata={"user_id": user})
        reply = await guarded.http.post("/v1/messages", json=fields, headers=headers)
        assert reply.status_code == 200
    first, second, third = (want.hashes for want in guarded.site.hops.wants)
    assert first == third != second
