"""Which workers come and go when a pool changes its size, and orders that make no sense."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.errors import BadRequest, Expired
from diptych.core.phases import Role
from diptych.supervisor.fleet import Fleet, MisconfiguredChild
from diptych.supervisor.orders import read_counts
from diptych.supervisor.plan import Plan, Process
from diptych.supervisor.restarts import Pace
from diptych.supervisor.scaling import Scaling, changes
from diptych.supervisor.up import child_environment
from diptych.testing.fleet import member, router

THERE = {Role.PREFILL: ["prefill-1", "prefill-2"], Role.DECODE: ["decode-1", "decode-3"]}


def test_the_lowest_free_numbers_come_and_the_highest_go() -> None:
    todo = changes(THERE, {Role.PREFILL: 1, Role.DECODE: 4})
    assert todo.add == ((Role.DECODE, 2), (Role.DECODE, 4))
    assert todo.remove == ("prefill-2",)


def test_a_pool_that_is_not_named_stays() -> None:
    todo = changes(THERE, {Role.DECODE: 2})
    assert (todo.add, todo.remove) == ((), ())


@given(
    there=st.sets(st.integers(1, 40), min_size=1, max_size=12),
    wanted=st.integers(1, 20),
)
def test_a_pool_has_the_size_that_was_wanted_and_every_name_once(
    there: set[int], wanted: int
) -> None:
    names = {f"decode-{n}" for n in there}
    todo = changes({Role.DECODE: sorted(names)}, {Role.DECODE: wanted})
    added = [f"{role}-{n}" for role, n in todo.add]
    after = [*(names - set(todo.remove)), *added]
    assert len(after) == len(set(after)) == wanted
    assert not (todo.add and todo.remove)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [({Role.DECODE: 0}, "decode: expected at least 1"), ({Role.HYBRID: 2}, "has prefill, decode")],
)
def test_what_would_leave_no_path_is_refused(wanted: dict[Role, int], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        changes(THERE, wanted)


def test_wishes_are_read_from_the_command_line() -> None:
    assert read_counts(["prefill=2", "decode=3"]) == {"prefill": 2, "decode": 3}
    for wish in ("prefill", "prefill=", "prefill=-1", "router=2", "decode=two", "decode=²"):
        with pytest.raises(BadRequest, match="expected ROLE=N"):
            read_counts([wish])


SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
REFUSES = "print('diptych: --listen is odd'); raise SystemExit(2)"


def process(role: Role, number: int, code: str) -> Process:
    command = (sys.executable, "-c", code)
    return Process(role, f"{role}-{number}", f"127.0.0.1:{number}", command)


def platform_of(folder: Path, router_address: str, new_worker: str) -> tuple[Fleet, Scaling]:
    """One worker of each role that only sleeps; more of them are made by `new_worker`."""
    plan = Plan(
        (process(Role.PREFILL, 1, SLEEPS), process(Role.DECODE, 1, SLEEPS)),
        "http://x", router_address, "m",
        one_more=lambda role, number: process(role, number, new_worker),
    )  # fmt: skip

    def say(who: str, what: str) -> None:
        pass

    fleet = Fleet(plan, folder, child_environment(os.environ), say, Pace(0.02, 0.05))
    return fleet, Scaling(fleet, plan, say, ready_timeout_s=1.0, drain_s=0.2)


async def test_a_worker_that_will_never_start_leaves_the_pool_as_it_was(tmp_path: Path) -> None:
    async with router() as address:
        fleet, scaling = platform_of(tmp_path, address, REFUSES)
        fleet.start()
        with pytest.raises(MisconfiguredChild, match="decode-2 does not start: --listen"):
            await scaling.scale({Role.DECODE: 2})
        assert [child.process.id for child in fleet.children] == ["prefill-1", "decode-1"]
        await fleet.stop(0.1, hurry=asyncio.Event())


async def test_a_worker_that_does_not_join_in_time_is_taken_back(tmp_path: Path) -> None:
    async with router() as address:
        fleet, scaling = platform_of(tmp_path, address, SLEEPS)
        fleet.start()
        with pytest.raises(Expired, match="prefill-2 did not join within 1 s"):
            await scaling.scale({Role.PREFILL: 2})
        state = json.loads((tmp_path / "state.json").read_text())
        assert [p["id"] for p in state["processes"]] == ["prefill-1", "decode-1"]
        await fleet.stop(0.1, hurry=asyncio.Event())


async def test_pools_change_their_size_and_the_state_file_says_so(tmp_path: Path) -> None:
    async with router() as address, member(address, "decode-2") as worker:
        fleet, scaling = platform_of(tmp_path, address, SLEEPS)
        fleet.start()
        done = await scaling.scale({Role.DECODE: 2})
        assert (done.added, done.removed) == (("decode-2",), ())
        pids = {child.process.id: child.running.pid for child in fleet.children}
        done = await scaling.scale({Role.DECODE: 1})
        assert (done.added, done.removed) == ((), ("decode-2",))
        assert done.pools == {"prefill": 1, "decode": 1}
        assert [wish.is_on for wish in worker.heard] == [True]
        with pytest.raises(ProcessLookupError):
            os.kill(pids["decode-2"], 0)
        os.kill(pids["decode-1"], 0)
        await fleet.stop(0.1, hurry=asyncio.Event())


async def test_without_a_router_a_worker_is_still_stopped_in_order(tmp_path: Path) -> None:
    fleet, scaling = platform_of(tmp_path, "127.0.0.1:1", SLEEPS)
    fleet.start()
    fleet.add(process(Role.DECODE, 2, SLEEPS))
    done = await scaling.scale({Role.DECODE: 1})
    assert done.removed == ("decode-2",)
    await fleet.stop(0.1, hurry=asyncio.Event())
