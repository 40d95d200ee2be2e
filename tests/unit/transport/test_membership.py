"""Who is there, by a real Redis that is stopped, killed and started again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.ids import Incarnation
from diptych.core.phases import Role
from diptych.testing.clock import settle
from diptych.testing.redis import RedisServer, redis_server
from diptych.transport.membership import (
    LEASE_S,
    RENEW_S,
    Announced,
    Membership,
    Roster,
    addresses_in,
)

SECRET = b"one cluster's secret"
LEASE = 0.8  # of these tests
RENEW = 0.1
SOON_S = 10.0

A = Announced(Role.ROUTER, "router-1", "10.0.0.1:7000", Incarnation(1), "here")
B = Announced(Role.ROUTER, "router-2", "10.0.0.2:7000", Incarnation(2), "here")


def named(*members: Announced) -> dict[str, Announced]:
    return {member.address: member for member in members}


# What a watcher holds, on a clock of the test's own


def test_who_stops_announcing_is_gone_after_a_little_patience() -> None:
    roster = Roster()
    assert roster.saw(named(A, B), 0.0)
    assert not roster.saw(named(A, B), LEASE_S)
    assert not roster.saw(named(A), LEASE_S + RENEW_S)
    assert roster.saw(named(A), LEASE_S + 2 * RENEW_S)
    assert roster.members == (A,)


def test_f17_an_outage_of_any_length_drops_nobody_until_a_lease_after_it_is_over() -> None:
    roster = Roster()
    roster.saw(named(A, B), 0.0)
    roster.lost()
    back_s = 7 * 86_400.0
    assert not roster.saw({}, back_s)  # it has lost what it knew
    assert not roster.saw(named(A), back_s + LEASE_S - 0.1)
    assert roster.members == (A, B)
    assert roster.saw(named(A), back_s + LEASE_S)
    assert roster.members == (A,)


def test_an_outage_that_comes_and_goes_begins_the_lease_anew() -> None:
    roster = Roster()
    roster.saw(named(A), 0.0)
    for now_s in range(100, 200, 5):
        roster.lost()
        assert not roster.saw({}, float(now_s))
    assert roster.members == (A,)


def test_a_member_that_is_back_with_another_life_is_a_change() -> None:
    roster = Roster()
    roster.saw(named(A), 0.0)
    again = replace(A, incarnation=Incarnation(9))
    assert roster.saw(named(again), 1.0)
    assert roster.members == (again,)


@given(st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from([A, B])), st.floats(0.1, 9))))
def test_nobody_is_dropped_whom_redis_named_lately_or_while_it_was_away(
    rounds: list[tuple[bool, set[Announced], float]],
) -> None:
    roster, now_s, back_s, seen_s = Roster(), 0.0, 0.0, {A: -1e9, B: -1e9}
    was_away = True
    for is_away, found, passed_s in rounds:
        now_s += passed_s
        before = set(roster.members)
        if is_away:
            roster.lost()
            assert set(roster.members) == before
        else:
            back_s = now_s if was_away else back_s
            roster.saw(named(*found), now_s)
            seen_s |= dict.fromkeys(found, now_s)
            assert set(roster.members) >= found
            for gone in before - set(roster.members):
                assert now_s - back_s >= LEASE_S
                assert now_s - seen_s[gone] >= 2 * RENEW_S
        was_away = is_away


def test_loopback_is_nowhere_else() -> None:
    local = replace(A, address="127.0.0.1:7000")
    assert local.is_reachable_from("here") and not local.is_reachable_from("there")
    assert A.is_reachable_from("there")
    assert addresses_in([A, B], given=["x:1", A.address]) == ["x:1", A.address, B.address]


# With Redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as started:
        yield started


@asynccontextmanager
async def taking_part(
    server: RedisServer, me: Announced | None = None, *, secret: bytes = SECRET
) -> AsyncIterator[Membership]:
    membership = Membership(server.url, secret, lease_s=LEASE, renew_s=RENEW, host="here")
    if me is not None:
        membership.announce(me)
    membership.watch(Role.ROUTER, lambda found: None)
    running = asyncio.create_task(membership.run())
    try:
        yield membership
    finally:
        await ended(running)


async def ended(running: asyncio.Task[None]) -> None:
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=SOON_S)
    assert done, "told to end, and still running"


async def sees(membership: Membership, *members: Announced) -> None:
    await settle(lambda: membership.members(Role.ROUTER) == members, SOON_S)


async def test_members_see_each_other_and_who_leaves_is_gone(server: RedisServer) -> None:
    async with taking_part(server) as watcher, taking_part(server, A) as one:
        async with taking_part(server, B):
            await sees(watcher, A, B)
            await sees(one, A, B)
        await sees(watcher, A)
        async with taking_part(server, secret=b"another cluster's") as stranger:
            await settle(lambda: not stranger.is_away, SOON_S)
            assert stranger.members(Role.ROUTER) == ()


async def test_it_ends_whenever_it_is_told_to(server: RedisServer) -> None:
    for num_steps in range(60):
        membership = Membership(server.url, SECRET, lease_s=LEASE, renew_s=0.0, host="here")
        membership.announce(A)
        running = asyncio.create_task(membership.run())
        for _ in range(num_steps):
            await asyncio.sleep(0)
        await ended(running)


async def test_who_dies_without_a_goodbye_lapses_by_the_clock_of_redis(
    server: RedisServer,
) -> None:
    async with taking_part(server, A) as one:
        membership = Membership(server.url, SECRET, lease_s=LEASE, renew_s=RENEW, host="here")
        membership.announce(B)
        killed = asyncio.create_task(membership.run())
        await sees(one, A, B)
        membership.is_away = True  # then it says no goodbye
        killed.cancel()
        await sees(one, A)


@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_f17_while_redis_is_away_all_stay_and_it_is_said_once(
    server: RedisServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diptych.transport.membership")
    changes: list[tuple[Announced, ...]] = []
    async with taking_part(server, A) as one, taking_part(server, B) as other:
        await sees(one, A, B)
        await sees(other, A, B)
        one.watch(Role.STORE, changes.append)
        if how == "frozen":
            server.freeze()
        else:
            server.stop()
        await settle(lambda: one.is_away and other.is_away, SOON_S)
        said = len(caplog.records)
        await asyncio.sleep(1.5 * LEASE)  # what was announced has lapsed
        assert one.members(Role.ROUTER) == other.members(Role.ROUTER) == (A, B)
        assert len(caplog.records) == said
        if how == "frozen":
            server.thaw()
        else:
            server.start()  # and knows nothing any more
        await settle(lambda: not (one.is_away or other.is_away), SOON_S)
        assert one.members(Role.ROUTER) == other.members(Role.ROUTER) == (A, B)
        await asyncio.sleep(1.2 * LEASE)
        assert one.members(Role.ROUTER) == other.members(Role.ROUTER) == (A, B)
        assert changes == []
    told = [record.getMessage() for record in caplog.records]
    assert sum("redis is away" in line for line in told) == 2  # each of the two
    assert not any(server.url in line for line in told)
