"""The stream behind the console, with a real router and stores that are there or not."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from diptych.core.errors import Overloaded
from diptych.gateway.admin.watch import MAX_VIEWERS
from diptych.gateway.decisions import Decisions
from diptych.gateway.tenancy.keys import Scope
from diptych.telemetry.logs import request_id_var
from diptych.testing.fleet import SOON_S, member, router
from diptych.testing.stores import running_store


async def hear(events: AsyncIterator[bytes]) -> dict[str, Any]:
    async with asyncio.timeout(SOON_S):
        name, data = (await anext(events)).strip().split(b"\n")
    assert name == b"event: platform"
    found: dict[str, Any] = orjson.loads(data.removeprefix(b"data: "))
    return found


async def test_a_snapshot_has_members_queue_gateway_and_decisions(admin_with: Any) -> None:
    decisions = Decisions()
    request_id_var.set("req_1")
    decisions.heard("prefill", "prefill-1", ("0 tokens in flight, the fewest",))
    decisions.heard("decode", "decode-1", ())
    async with router() as address, member(address, "decode-1") as worker:
        near = {"router": address, "decisions": lambda: decisions.newest(5), "gateway_id": "g"}
        async with admin_with(**near) as admin:
            events = admin.watch.stream()
            seen = await hear(events)
            assert (seen["ready"], seen["can_scale"], seen["gateway_id"]) == (False, False, "g")
            assert (seen["policy"], seen["desired"]) == ("cost", {"decode": 1})
            assert seen["router"] == {"address": address, "live": True}
            [shown] = seen["members"]
            assert shown["incarnation"] == "0000000000c0ffee"
            assert shown["layout_hash"] == (b"l" * 16).hex()
            assert (shown["idle"], shown["load"]["free_slots"]) == (True, 4)
            assert [d["worker"] for d in seen["decisions"]] == ["decode-1", "prefill-1"]
            assert seen["decisions"][1]["request_id"] == "req_1"
            worker.report(running=3)
            async with asyncio.timeout(SOON_S):
                while seen["members"][0]["load"]["running"] != 3:
                    seen = await hear(events)
            assert seen["members"][0]["idle"] is False
            await events.aclose()


async def test_a_store_is_shown_with_its_classes_and_one_that_is_away_with_why(
    admin_with: Any, tmp_path: Path
) -> None:
    async with (
        router() as address,
        running_store(tmp_path / "cache") as store,
        admin_with(router=address, stores=(store.address, "127.0.0.1:1")) as admin,
    ):
        events = admin.watch.stream()
        here, away = (await hear(events))["stores"]
        await events.aclose()
    assert (here["address"], here["error"]) == (store.address, "")
    disk = here["disk"]
    assert disk["capacity"] == sum(
        disk[name] for name in ("live", "dead", "pinned", "reserved", "free")
    )
    assert here["classes"] == {}
    assert away["error"]


async def test_a_router_that_is_away_is_said_with_what_it_last_said(admin_with: Any) -> None:
    async with admin_with(router="127.0.0.1:1") as admin:
        events = admin.watch.stream()
        seen = await hear(events)
        assert seen["router"]["live"] is False
        assert [m["id"] for m in seen["members"]] == ["prefill-1", "decode-1"]
        await events.aclose()


async def test_a_stream_ends_when_the_gateway_stops(admin_with: Any) -> None:
    async with router() as address, admin_with(router=address) as admin:
        events = admin.watch.stream()
        await hear(events)
        admin.watch.close()
        async with asyncio.timeout(SOON_S):
            assert len([event async for event in events]) <= 1


async def test_too_many_viewers_are_refused(admin_with: Any) -> None:
    async with router() as address, admin_with(router=address) as admin:
        streams = [admin.watch.stream() for _ in range(MAX_VIEWERS)]
        for events in streams:
            await hear(events)
        with pytest.raises(Overloaded):
            admin.watch.stream()
        await streams.pop().aclose()
        await admin.watch.stream().aclose()
        for events in streams:
            await events.aclose()


async def test_watching_needs_what_reading_needs(admin_with: Any) -> None:
    async with router() as address, admin_with(router=address) as admin:
        await admin.key(Scope.INFERENCE)
        await admin.call("GET", "/watch", 401)
