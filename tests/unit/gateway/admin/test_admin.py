"""The admin API."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from diptych.gateway.access import admin_route_of
from diptych.gateway.tenancy.keys import Scope
from diptych.testing.clock import settle

WRITES = [
    ("POST", "/keys", {"name": "n"}),
    ("POST", "/gateway/drain", None),
    ("POST", "/log-level", {"level": "debug"}),
    ("POST", "/audit/purge", None),
    ("POST", "/data/delete", {"key_id": "k"}),
    ("PUT", "/tenants/t", {}),
    ("POST", "/requests/r/abort", None),
    ("DELETE", "/keys/k", None),
]
READS = ["/status", "/workers", "/keys", "/audit", "/usage", "/config", "/requests", "/tenants"]


@pytest.mark.parametrize("path", READS)
async def test_reading_is_free_until_there_is_a_key(admin: Any, path: str) -> None:
    await admin.call("GET", path)
    await admin.key(Scope.INFERENCE)
    await admin.call("GET", path, 401)


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
async def test_changing_always_needs_the_admin_scope(
    admin: Any, method: str, path: str, body: Any
) -> None:
    said = await admin.call(method, path, 401, json=body)
    assert "diptych keys create" in said["error"]["message"]
    await admin.log_in(Scope.ADMIN_READ)
    said = await admin.call(method, path, 403, json=body)
    assert said["error"]["code"] == "insufficient_permissions"
    assert admin.office.door.is_held is False


async def test_an_inference_key_sees_nothing_and_a_usage_key_only_usage(admin: Any) -> None:
    await admin.log_in(Scope.INFERENCE)
    for path in READS:
        await admin.call("GET", path, 403)
    await admin.log_in(Scope.USAGE_READ)
    await admin.call("GET", "/usage")
    await admin.call("GET", "/keys", 403)


async def test_a_page_in_a_browser_cannot_call(admin: Any) -> None:
    await admin.log_in()
    url = "/admin/v1/gateway/drain"
    reply = await admin.http.post(url, headers={"content-type": "text/plain"})
    assert reply.status_code == 415
    reply = await admin.http.post(url, headers={"host": "rebound.example.org"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "host")
    assert (await admin.http.options(url)).status_code == 405
    for host in ("localhost:80", "[::1]:9", "127.0.0.1"):
        assert (await admin.http.post(url, headers={"host": host})).status_code == 200


async def test_a_key_lives_from_making_to_revoking(admin: Any) -> None:
    await admin.log_in()
    wish = {
        "name": "app",
        "tenant": "acme",
        "class": "batch",
        "limits": {"requests_per_min": 100},
        "expires_at": "2999-01-01T00:00:00Z",
    }
    made = await admin.call("POST", "/keys", 201, json=wish)
    secret = made.pop("key")
    assert made["id"] == secret.split("-")[1]
    assert made["last_chars"] == secret[-4:]
    assert (await admin.ask(secret)).status_code == 200
    await admin.office.clerk.settled()
    seen = await admin.call("GET", f"/keys/{made['id']}")
    assert seen.pop("last_used_at") is not None
    assert made.pop("last_used_at") is None
    assert seen == made
    assert secret not in str(await admin.call("GET", "/keys"))

    change = {"name": "new", "expires_at": None, "limits": {"concurrency": 1}}
    changed = await admin.call("PATCH", f"/keys/{made['id']}", json=change)
    assert (changed["name"], changed["expires_at"], changed["tenant"]) == ("new", None, "acme")
    assert changed["limits"]["requests_per_min"] is None
    assert changed["class"] == "batch"

    rotated = await admin.call("POST", f"/keys/{made['id']}/rotate", json={"overlap_s": 60})
    assert rotated["old_secret_until"] is not None
    for key in (secret, rotated["key"]):
        assert (await admin.ask(key)).status_code == 200

    revoked = await admin.call("DELETE", f"/keys/{made['id']}")
    assert revoked["state"] == "revoked"
    for key in (secret, rotated["key"]):
        assert (await admin.ask(key)).status_code == 401
    await admin.call("POST", f"/keys/{made['id']}/rotate", 400, json={})
    await admin.call("GET", "/keys/nosuchkey", 404)

    actions = [entry["action"] for entry in (await admin.call("GET", "/audit"))["data"]]
    assert [a for a in actions if a != "auth.failed"] == [
        "key.create",
        "key.create",
        "key.change",
        "key.rotate",
        "key.revoke",
    ]
    log = str(await admin.call("GET", "/audit"))
    assert secret not in log
    assert rotated["key"] not in log


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "n", "tenant": "a b"}, "tenant"),
        ({"name": "n", "scopes": ["root"]}, "scopes.0"),
        ({"name": "n", "scopes": []}, "scopes"),
        ({"name": "n", "networks": ["10.0.0.1/8"]}, "networks"),
        ({"name": "n", "models": ["a b"]}, "models"),
        ({"name": "n", "limits": {"requests_per_min": 0}}, "limits.requests_per_min"),
        ({"name": "n", "limits": {"requests_per_min": 10**9}}, "limits.requests_per_min"),
        ({"name": "n", "limits": {"typo": 1}}, "limits.typo"),
        ({"name": "n", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "n", "expires_at": "2999-01-01T00:00:00"}, "expires_at"),
        ({"name": "n", "typo": 1}, "typo"),
    ],
)
async def test_what_is_wrong_with_a_wish_is_named(
    admin: Any, fields: dict[str, Any], param: str
) -> None:
    await admin.log_in()
    error = (await admin.call("POST", "/keys", 400, json=fields))["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert len(await admin.office.store.all()) == 1


async def test_what_is_no_json_or_no_path_has_the_envelope(admin: Any) -> None:
    await admin.log_in()
    for content, status in ((b"{", 400), (b"[]", 400), (b"x" * (2 << 20), 413)):
        headers = {"content-type": "application/json"}
        await admin.call("POST", "/keys", status, content=content, headers=headers)

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100_000

    reply = await admin.http.post("/admin/v1/keys", content=chunks(), headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
    assert (await admin.call("GET", "/nowhere", 404))["error"]["code"] == "unknown_url"
    assert (await admin.call("PUT", "/status", 405))["error"]["code"] == "method_not_allowed"


async def test_an_idempotency_key_acts_once(admin: Any) -> None:
    await admin.log_in()
    headers = {"idempotency-key": "once"}
    first = await admin.call("POST", "/keys", 201, json={"name": "a"}, headers=headers)
    again = await admin.call("POST", "/keys", 201, json={"name": "a"}, headers=headers)
    assert again == first
    await admin.call("POST", "/keys", 409, json={"name": "b"}, headers=headers)
    assert len((await admin.call("GET", "/keys"))["data"]) == 2
    await admin.call("POST", "/keys", 400, json={"name": ""}, headers={"idempotency-key": "bad"})
    await admin.call("POST", "/keys", 201, json={"name": "c"}, headers={"idempotency-key": "bad"})


async def test_tenants_have_limits(admin: Any) -> None:
    await admin.log_in()
    await admin.call("PUT", "/tenants/acme", json={"tokens_per_min": 7})
    tenants = await admin.call("GET", "/tenants")
    assert tenants["acme"]["tokens_per_min"] == 7
    await admin.call("PUT", "/tenants/a%20b", 400, json={})


async def test_usage_is_there_as_soon_as_a_request_is_over(admin: Any) -> None:
    usage = (await admin.ask()).json()["usage"]
    (total,) = (await admin.call("GET", "/usage"))["data"]
    assert total["group"] == "anonymous"
    assert total["completion_tokens"] == usage["completion_tokens"]
    today = datetime.now(UTC).date().isoformat()
    (day,) = (await admin.call("GET", f"/usage?group_by=day&from={today}&to={today}"))["data"]
    assert day["requests"] == 1
    assert (await admin.call("GET", "/usage?to=2001-01-01"))["data"] == []
    assert (await admin.call("GET", "/usage?to=0001-01-01"))["data"] == []
    await admin.call("GET", "/usage?group_by=colour", 400)


async def test_the_fleet_is_shown(admin: Any) -> None:
    status = await admin.call("GET", "/status")
    assert status["pools"]["prefill"] == {"members": 1, "ready": 1, "leases": 2}
    assert (status["queued"], status["ready"]) == (3, True)
    workers = (await admin.call("GET", "/workers"))["data"]
    assert [worker["state"] for worker in workers] == ["ready", "draining"]
    assert (await admin.call("GET", "/workers/prefill-1"))["load"]["running"] == 1
    await admin.call("GET", "/workers/other", 404)
    admin.fleet = None
    assert (await admin.call("GET", "/status"))["ready"] is False
    assert (await admin.call("GET", "/workers"))["data"] == []


async def test_drain_and_undrain(admin: Any) -> None:
    await admin.log_in(Scope.ADMIN_WRITE, Scope.INFERENCE)
    key = admin.http.headers["authorization"].removeprefix("Bearer ")
    admin.site.hops.holds = {"token 2"}
    running = asyncio.create_task(admin.ask(key))
    await admin.site.hops.reached("token 2")
    assert await admin.call("POST", "/gateway/drain") == {"draining": True}
    assert (await admin.ask(key)).status_code == 503
    assert (await admin.public.get("/readyz")).status_code == 503
    assert (await admin.call("GET", "/status"))["gateway"] == {"draining": True, "requests": 1}
    admin.site.hops.release()
    assert (await running).status_code == 200
    await admin.call("POST", "/gateway/undrain")
    assert (await admin.ask(key)).status_code == 200
    assert admin.loads == [True, False]


async def test_running_requests_are_listed_without_text_and_can_be_ended(admin: Any) -> None:
    await admin.log_in(Scope.ADMIN_WRITE, Scope.INFERENCE)
    key = admin.http.headers["authorization"].removeprefix("Bearer ")
    admin.site.hops.holds = {"token 3"}
    running = asyncio.create_task(admin.ask(key))
    await admin.site.hops.reached("token 3")
    (seen,) = (await admin.call("GET", "/requests"))["data"]
    assert (seen["state"], seen["completion_tokens"]) == ("decode", 2)
    assert "Hello" not in str(seen)
    assert (await admin.call("GET", f"/requests?key={seen['key_id']}&state=decode"))["data"]
    assert not (await admin.call("GET", "/requests?state=prefill"))["data"]
    await admin.call("POST", f"/requests/{seen['id']}/abort")
    reply = await running
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "aborted")
    assert reply.headers["x-should-retry"] == "false"
    await admin.call("POST", f"/requests/{seen['id']}/abort", 404)


async def test_a_log_level_holds_for_a_while(admin: Any) -> None:
    await admin.log_in()
    logger = logging.getLogger("diptych.gateway.endpoint")
    before = logger.level
    body = {"logger": logger.name, "level": "debug", "ttl_s": 0.05}
    await admin.call("POST", "/log-level", json=body)
    assert logger.level == logging.DEBUG
    await settle(lambda: logger.level == before)
    await admin.call("POST", "/log-level", 400, json={"logger": "root", "level": "debug"})
    await admin.call("POST", "/log-level", 400, json={"level": "loud"})


async def test_data_of_a_key_or_a_user_is_deleted_with_a_receipt(admin: Any) -> None:
    for user in ("u", "v"):
        await admin.ask(user_id=user)
    await admin.log_in()
    receipt = await admin.call("POST", "/data/delete", json={"user_id": "u"})
    assert receipt["usage_records"] == 1
    assert receipt["user_hash"] != "u"
    assert (await admin.call("POST", "/data/delete", json={"key_id": "anonymous"}))[
        "usage_records"
    ] == 1
    for body in ({}, {"key_id": "k", "user_id": "u"}):
        await admin.call("POST", "/data/delete", 400, json=body)
    (total,) = (await admin.call("GET", "/usage"))["data"]
    assert total["requests"] == 2  # totals stay


async def test_what_this_deployment_cannot_do_says_so(admin: Any) -> None:
    await admin.log_in()
    for method, path in (
        ("POST", "/workers/w/restart"),
        ("POST", "/cache/flush"),
        ("PATCH", "/config"),
        ("GET", "/operations/o"),
    ):
        assert (await admin.call(method, path, 501))["error"]["code"] == "not_implemented"


async def test_settings_are_shown_masked(admin: Any) -> None:
    assert (await admin.call("GET", "/config"))["settings"]["cluster_secret"] == "**********"


async def test_the_document_names_every_path_and_no_422(admin: Any) -> None:
    document = (await admin.http.get("/openapi.json")).json()
    for path in ("/status", "/workers/{worker_id}/drain", "/keys/{key_id}/rotate", "/usage"):
        assert f"/admin/v1{path}" in document["paths"]
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["description"]
            assert "422" not in operation["responses"]
            assert "401" in operation["responses"]
    assert "ValidationError" not in str(document)


async def test_every_route_has_a_name_without_ids_for_metrics(admin: Any) -> None:
    paths = (await admin.http.get("/openapi.json")).json()["paths"]
    names = {admin_route_of(path) for path in paths}
    assert {path for path in paths if admin_route_of(path) == "other"} == set()
    assert "/admin/v1/keys" in names
    assert not any("{" in name for name in names)
    for path in ("/admin/v1/nonsense", "/v1/models", "/admin/v1"):
        assert admin_route_of(path) == "other"
