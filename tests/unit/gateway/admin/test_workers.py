"""Draining and scaling by the admin API, with a real router and a real supervisor's port."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from diptych.core.errors import Expired
from diptych.core.phases import Role
from diptych.gateway.admin.supervisor import control_token
from diptych.router.client import Drain
from diptych.supervisor.control import Control
from diptych.supervisor.ports import FreePorts
from diptych.supervisor.scaling import Scaled
from diptych.testing.clock import settle
from diptych.testing.fleet import member, router

TOKEN = control_token(b"cluster secret")


async def acts(admin: Any) -> list[tuple[str, str, str]]:
    entries = (await admin.call("GET", "/audit"))["data"]
    kept = [e for e in entries if e["action"].startswith(("worker", "scale"))]
    return [(e["action"], e["object"], e["result"]) for e in kept]


async def test_a_worker_is_drained_and_given_work_again(admin_with: Any) -> None:
    async with (
        router() as address,
        member(address, "decode-1") as worker,
        admin_with(router=address) as admin,
    ):
        await admin.log_in()
        said = await admin.call("POST", "/workers/decode-1/drain", json={"limit_s": 5})
        assert said["state"] == "drained"  # it holds nothing
        await settle(lambda: worker.heard == [Drain(True, 5.0)])
        said = await admin.call("POST", "/workers/decode-1/undrain")
        assert said["state"] == "ready"
        await settle(lambda: worker.heard[-1] == Drain(False))
        await admin.call("POST", "/workers/decode-1/drain")  # a body is not needed
        said = await admin.call("POST", "/workers/decode-1/drain", 400, json={"limit_s": -1})
        assert said["error"]["param"] == "limit_s"
        said = await admin.call("POST", "/workers/decode-9/drain", 404)
        assert said["error"]["code"] == "worker_not_found"
        assert await acts(admin) == [
            ("worker.drain", "decode-1", "ok"),
            ("worker.undrain", "decode-1", "ok"),
            ("worker.drain", "decode-1", "ok"),
        ]


async def test_without_a_router_nobody_is_drained(admin_with: Any) -> None:
    async with admin_with(router="127.0.0.1:1") as admin:
        await admin.log_in()
        await admin.call("POST", "/workers/decode-1/drain", 503)


async def test_pools_are_scaled_by_the_supervisor(admin_with: Any) -> None:
    wanted: list[Mapping[Role, int]] = []

    async def scale(counts: Mapping[Role, int]) -> Scaled:
        wanted.append(counts)
        if counts.get(Role.DECODE) == 9:
            raise Expired("decode-9 did not join within 1 s")
        return Scaled(("decode-2",), (), {"prefill": 1, "decode": 2})

    listen = f"127.0.0.1:{FreePorts()()}"
    async with (
        Control(listen, TOKEN, scale),
        admin_with(supervisor=listen, control=TOKEN) as admin,
    ):
        said = await admin.call("POST", "/scale", 401, json={"decode": 2})
        await admin.log_in()
        said = await admin.call("POST", "/scale", json={"decode": 2})
        assert said["added"] == ["decode-2"]
        assert said["pools"] == {"prefill": 1, "decode": 2}
        assert wanted == [{Role.DECODE: 2}]
        said = await admin.call("POST", "/scale", 503, json={"decode": 9})
        assert "did not join" in said["error"]["message"]
        for body in ({}, {"decode": 0}, {"decode": "2"}, {"router": 2}):
            await admin.call("POST", "/scale", 400, json=body)
        assert [result for _, _, result in await acts(admin)] == ["ok", "scale_failed"]


async def test_who_does_not_know_the_secret_cannot_scale(admin_with: Any) -> None:
    async def scale(counts: Mapping[Role, int]) -> Scaled:
        raise AssertionError("nobody may get here")

    listen = f"127.0.0.1:{FreePorts()()}"
    async with (
        Control(listen, TOKEN, scale),
        admin_with(supervisor=listen, control="control-guess") as admin,
    ):
        await admin.log_in()
        said = await admin.call("POST", "/scale", 503, json={"decode": 2})
        assert "expected the token" in said["error"]["message"]


async def test_only_a_platform_with_a_supervisor_can_be_scaled(admin: Any) -> None:
    await admin.log_in()
    said = await admin.call("POST", "/scale", 501, json={"decode": 2})
    assert "diptych up" in said["error"]["message"]


@pytest.mark.parametrize("listen", ["127.0.0.1:1"])
async def test_a_supervisor_that_is_away_is_named(admin_with: Any, listen: str) -> None:
    async with admin_with(supervisor=listen, control=TOKEN) as admin:
        await admin.log_in()
        async with asyncio.timeout(20):
            said = await admin.call("POST", "/scale", 503, json={"decode": 2})
        assert listen in said["error"]["message"]
