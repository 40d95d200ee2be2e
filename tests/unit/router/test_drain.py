"""Watching the fleet and draining a worker, over real gRPC with workers that only pretend."""

import asyncio

import pytest

from diptych.core.errors import BadRequest, Expired, NotFound
from diptych.core.phases import Phase
from diptych.router.client import (
    DecodeAt,
    Drain,
    Fleet,
    PrefillAt,
    Queued,
    RouterClient,
    Want,
    drain,
    drained,
    watch,
)
from diptych.testing.fleet import SOON_S, member, router


def state_of(fleet: Fleet, member_id: str) -> tuple[bool, str]:
    [found] = [m for m in fleet.members if m.join.member_id == member_id]
    return found.ready, found.not_ready_reason


async def until(address: str, member_id: str, state: tuple[bool, str]) -> None:
    async with asyncio.timeout(SOON_S):
        async for fleet in watch(address, period_s=0.1):
            if state_of(fleet, member_id) == state:
                return


async def test_a_drained_worker_is_given_nothing_and_says_so_itself_from_then_on() -> None:
    async with (
        router() as address,
        member(address, "prefill-1") as first,
        member(address, "prefill-2"),
        member(address, "decode-1"),
    ):
        fleet = await drain(address, "prefill-1", Drain(True, limit_s=30), SOON_S)
        assert state_of(fleet, "prefill-1") == (False, "draining")
        client = RouterClient(address)
        for number in range(4):
            async with await client.place(Want(f"r{number}", 10, 7, deadline_s=30)) as lease:
                async with asyncio.timeout(SOON_S):
                    answers = [await anext(lease)]
                    if isinstance(answers[0], Queued):
                        answers.append(await anext(lease))
                at = answers[-1]
                assert isinstance(at, PrefillAt)
                assert at.rank.worker_id == "prefill-2"
        assert first.heard == [Drain(True, limit_s=30)]
        first.report(running=0)  # the worker's own word keeps it drained
        await asyncio.sleep(0.3)
        await until(address, "prefill-1", (False, "draining"))
        fleet = await drain(address, "prefill-1", Drain(False), SOON_S)
        assert state_of(fleet, "prefill-1") == (True, "")
        await until(address, "prefill-1", (True, ""))
        assert first.heard[-1] == Drain(False)
        await client.close()


async def test_a_drain_is_over_when_the_last_request_is() -> None:
    async with (
        router() as address,
        member(address, "prefill-1"),
        member(address, "decode-1") as worker,
    ):
        client = RouterClient(address)
        async with await client.place(Want("r", 10, 7, deadline_s=30)) as lease:
            async with asyncio.timeout(SOON_S):
                while not isinstance(await anext(lease), PrefillAt):
                    pass
                await lease.progress(Phase.PREFILL, 10, last_chunk_started=True)
                while not isinstance(await anext(lease), DecodeAt):
                    pass
            worker.report(running=1)
            await drain(address, "decode-1", Drain(True), SOON_S)
            with pytest.raises(Expired, match=r"draining decode-1 .* 1 requests are left"):
                await drained(address, "decode-1", timeout_s=0.5)
        waiting = asyncio.create_task(drained(address, "decode-1", SOON_S))
        worker.report(running=0)
        await waiting
        await client.close()


async def test_who_is_gone_is_drained() -> None:
    async with router() as address:
        await drained(address, "decode-9", SOON_S)


async def test_only_workers_that_are_there_are_drained() -> None:
    async with router() as address, member(address, "gateway-1"):
        with pytest.raises(NotFound, match="no such worker"):
            await drain(address, "decode-7", Drain(True), SOON_S)
        with pytest.raises(BadRequest, match="only workers"):
            await drain(address, "gateway-1", Drain(True), SOON_S)


async def test_watching_hears_of_a_member_at_once() -> None:
    async with router() as address:
        fleets = watch(address, period_s=60)
        async with asyncio.timeout(SOON_S):
            assert (await anext(fleets)).members == ()
            async with member(address, "decode-1"):
                fleet = await anext(fleets)
        assert [m.join.member_id for m in fleet.members] == ["decode-1"]
        await fleets.aclose()
