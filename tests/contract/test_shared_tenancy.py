"""Keys, limits and usage of several gateways, over a real Redis."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from diptych.core.errors import DiptychError
from diptych.gateway.tenancy.book import LEASE_S, MemoryBook
from diptych.gateway.tenancy.credential import issue
from diptych.gateway.tenancy.desk import Actor, Wish
from diptych.gateway.tenancy.keys import ApiKey, Limits, Scope, stored
from diptych.gateway.tenancy.meters import Hold, Meter, Places, Quota, Rate
from diptych.gateway.tenancy.office import Office, Plan, open_office
from diptych.gateway.tenancy.peppers import Peppers
from diptych.gateway.tenancy.redisbook import RedisBook
from diptych.gateway.tenancy.rediskeys import LISTEN_AGAIN_S, RedisKeys
from diptych.gateway.tenancy.redisline import Line, RedisAway
from diptych.gateway.tenancy.usage import Record
from diptych.testing.clock import FakeClock
from diptych.testing.histories import Enter, Pass, history, take_part
from diptych.testing.links import link_to
from diptych.testing.redis import RedisServer, redis_server
from diptych.transport.redis_client import connect

AHEAD_S = 2_000_000_000  # far enough ahead that nothing expires by Redis's own clock
PEPPERS = Peppers((b"p" * 16,))
REVOKED_WITHIN_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[RedisServer]:
    """Running, and empty."""
    if server.process is None:
        await asyncio.to_thread(server.start)
    client = Redis.from_url(server.url)
    await client.flushall()
    await client.aclose()
    yield server


class Clock(FakeClock):
    """Whole microseconds, for a book that is told the time."""

    def __init__(self) -> None:
        super().__init__(AHEAD_S)
        self.us = AHEAD_S * 1_000_000

    def __call__(self) -> float:
        return self.us / 1_000_000

    def pass_us(self, us: int) -> None:
        self.us += us


def a_book(redis: RedisServer, clock: Clock | None = None, gateways: int = 1) -> RedisBook:
    line = Line(connect(redis.url))
    if clock is None:
        return RedisBook(line, lambda: gateways)
    return RedisBook(line, lambda: gateways, lambda: clock.us)


def a_key(name: str = "n") -> ApiKey:
    credential = issue()
    secrets = (stored(credential, PEPPERS),)
    return ApiKey(credential.key_id, name, "t", (Scope.INFERENCE,), 1.0, secrets)


@pytest.mark.parametrize("seed", range(6))
async def test_redis_counts_as_memory_does(redis: RedisServer, seed: int) -> None:
    clock = Clock()
    shared, own = a_book(redis, clock), MemoryBook(now_s=clock)
    in_redis: dict[str, tuple[Hold, ...]] = {}
    in_memory: dict[str, tuple[Hold, ...]] = {}
    for step in history(random.Random(seed), AHEAD_S, 150):
        if isinstance(step, Pass):
            clock.pass_us(step.us)
        else:
            assert await take_part(shared, step, in_redis) == await take_part(own, step, in_memory)
            assert in_redis == in_memory
            if isinstance(step, Enter) and seed % 2:
                await shared.renew(in_redis)
                await own.renew(in_memory)
    assert own.num_held == 0
    assert await held_in(redis) == 0
    assert shared.num_alone == 0
    await shared.close()


async def held_in(redis: RedisServer) -> int:
    """Places and reservations that Redis knows of."""
    client = Redis.from_url(redis.url, decode_responses=True)
    count = 0
    async for name in client.scan_iter():
        kind = await client.type(name)
        count += await client.zcard(name) if kind == "zset" else 0
        count += await client.hlen(name) if kind == "hash" else 0
    await client.aclose()
    return count


async def test_gateways_share_every_limit(redis: RedisServer) -> None:
    first, second = a_book(redis), a_book(redis)
    meters: list[Meter] = [
        Rate("d:{t}:key:k:rpm", 5),
        Places("d:{t}:key:k:places", 5),
        Quota("d:{t}:key:k:day:x", 5, int(time.time()) + 3600),
    ]
    for meter in meters:
        books = [first, second] * 10
        taken = await asyncio.gather(
            *(book.take(f"r{i}", [Hold(meter, 1)]) for i, book in enumerate(books))
        )
        assert sum(each.refused is None for each in taken) == 5
    await first.close()
    await second.close()


async def test_a_gateway_that_died_gives_its_places_back(redis: RedisServer) -> None:
    clock = Clock()
    dead, alive = a_book(redis, clock), a_book(redis, clock)
    holds = [
        Hold(Places("d:{t}:key:k:places", 1), 1),
        Hold(Quota("d:{t}:key:k:day:x", 10, AHEAD_S + 9999), 10),
    ]
    await dead.take("r1", holds)
    clock.pass_us(LEASE_S * 1_000_000 - 1)
    assert (await alive.take("r2", holds)).refused is not None
    clock.pass_us(1)
    assert (await alive.take("r2", holds)).refused is None
    await dead.close()
    await alive.close()


async def test_nothing_stays_in_redis_for_ever(redis: RedisServer) -> None:
    book = a_book(redis)
    now_s = int(time.time())
    holds = [
        Hold(Rate("d:{t}:key:k:tpm", 60), 3),
        Hold(Places("d:{t}:key:k:places", 2), 1),
        Hold(Quota("d:{t}:key:k:day:x", 100, now_s + 60), 10),
    ]
    await book.take("r1", holds)
    await book.renew({"r1": tuple(holds)})
    await book.settle("r1", holds[:1] + holds[2:], [2, 5])
    client = Redis.from_url(redis.url)
    async for name in client.scan_iter():
        assert 0 < await client.pttl(name) <= 62_000, name
    await client.aclose()
    await book.close()


@pytest.mark.parametrize("how", ["stop", "freeze"])
async def test_without_redis_a_gateway_grants_its_share(redis: RedisServer, how: str) -> None:
    book = a_book(redis, gateways=2)
    hold = Hold(Rate("d:{t}:key:k:rpm", 6), 1)
    places = Hold(Places("d:{t}:key:k:places", 2), 1)
    assert (await book.take("r0", [hold, places])).refused is None
    getattr(redis, how)()
    began_s = time.monotonic()
    taken = [await book.take(f"r{i}", [hold]) for i in range(1, 6)]
    assert time.monotonic() - began_s < 2 * 2.0  # nobody waits for it again and again
    assert [each.refused is None for each in taken] == [True] * 3 + [False] * 2
    assert book.num_alone == 5
    assert (await book.take("r6", [places])).refused is None
    assert (await book.take("r7", [places])).refused is not None
    await book.settle("r6", [places], [1])  # taken alone, given back alone
    assert (await book.take("r8", [places])).refused is None
    await book.settle("r0", [hold, places], [1, 1])  # taken there: it lapses there
    if how == "stop":
        await asyncio.to_thread(redis.start)
    else:
        redis.thaw()
    alone = book.num_alone
    async with asyncio.timeout(5):
        while (await book.take("r9", [hold])).refused is not None or book.num_alone > alone:
            alone = book.num_alone
            await asyncio.sleep(0.1)
    await book.close()


async def test_keys_are_shared_and_a_revocation_is_heard_at_once(redis: RedisServer) -> None:
    first, second = (RedisKeys(Line(connect(redis.url))) for _ in range(2))
    first.start()
    second.start()
    assert not await second.has_any()
    key, other = a_key("a"), a_key("b")
    await first.add(key)
    await first.add(other)
    assert await second.has_any()
    assert await second.find(key.id) == key
    assert await second.find("missing") is None
    assert {k.id for k in await second.all()} == {key.id, other.id}
    await asyncio.sleep(0.2)  # until both listen

    await first.update(key.id, lambda key: dataclasses.replace(key, revoked_s=5.0))
    async with asyncio.timeout(2 * REVOKED_WITHIN_S):
        while not await is_revoked(second, key.id):  # noqa: ASYNC110 - it announces nothing here
            await asyncio.sleep(0.01)
    assert await first.update("missing", lambda key: key) is None

    await first.set_tenant_limits("t", Limits(concurrency=1))
    assert await first.tenants() == {"t": Limits(concurrency=1)}
    assert await second.tenant_limits("t") == Limits(concurrency=1)
    assert await second.tenant_limits("u") == Limits()
    await first.close()
    await second.close()


async def test_a_revocation_is_heard_although_the_listening_connection_died_in_silence(
    redis: RedisServer,
) -> None:
    key, there = a_key("a"), RedisKeys(Line(connect(redis.url)))
    await there.add(key)
    async with link_to(redis.url.removeprefix("redis://").split("/")[0]) as link:
        here = RedisKeys(Line(connect(f"redis://{link.address}/0")), silence_s=1.0)
        here.start()
        await asyncio.sleep(2.5)  # it goes on listening while there is nothing to hear
        assert not await is_revoked(here, key.id)
        assert link.num_accepted == 2
        link.is_dropping = True
        await there.update(key.id, lambda key: dataclasses.replace(key, revoked_s=5.0))
        await asyncio.sleep(0.1)
        link.is_dropping = False  # what was said is lost, and the connection open
        assert not await is_revoked(here, key.id)
        async with asyncio.timeout(2 * (1.0 + LISTEN_AGAIN_S + REVOKED_WITHIN_S)):
            while not await is_revoked(here, key.id):  # noqa: ASYNC110 - it announces nothing here
                await asyncio.sleep(0.01)
        await here.close()
    await there.close()


async def is_revoked(store: RedisKeys, key_id: str) -> bool:
    found = await store.find(key_id)
    return found is not None and found.revoked_s is not None


async def test_changes_by_many_gateways_do_not_undo_each_other(redis: RedisServer) -> None:
    stores = [RedisKeys(Line(connect(redis.url))) for _ in range(4)]
    key = a_key("n")
    await stores[0].add(key)

    def rename(key: ApiKey) -> ApiKey:
        return dataclasses.replace(key, name=key.name + "x")

    await asyncio.gather(*(store.update(key.id, rename) for store in stores * 4))
    found = await stores[0].find(key.id)
    assert found is not None
    assert found.name == "n" + "x" * 16
    for store in stores:
        await store.close()


async def test_without_redis_known_keys_work_for_a_while_and_others_do_not(
    redis: RedisServer,
) -> None:
    clock = FakeClock()
    store = RedisKeys(Line(connect(redis.url)), clock)
    key, unseen = a_key(), a_key()
    await store.add(key)
    await store.add(unseen)
    assert await store.find(key.id) == key
    redis.stop()
    clock.advance(300)
    assert await store.find(key.id) == key
    with pytest.raises(RedisAway) as caught:
        await store.find(unseen.id)
    assert caught.value.http_status == 503
    clock.advance(31)
    with pytest.raises(RedisAway):
        await store.find(key.id)
    fresh = RedisKeys(Line(connect(redis.url)))
    with pytest.raises(RedisAway):
        await fresh.has_any()  # who does not know whether there are keys lets nobody in
    await asyncio.to_thread(redis.start)
    await store.close()
    await fresh.close()


def a_record(number: int, key_id: str = "k") -> Record:
    return Record(
        f"req_{number}", key_id, "t", "m", "/v1", "", 1_796_000_000.0 + number, 1, 2, 10, 4, 3, 1,
        "stop", 200,
    )  # fmt: skip


async def an_office(redis: RedisServer, folder: Path, **fields: Any) -> Office:
    return await open_office(
        Plan(folder, b"cluster secret", redis_url=redis.url, key_pepper="p" * 16, **fields)
    )


async def test_usage_of_all_gateways_adds_up(redis: RedisServer, tmp_path: Path) -> None:
    offices = [await an_office(redis, tmp_path / name) for name in ("a", "b")]
    for number, office in enumerate(offices * 3):
        await office.usage.add([a_record(number)])
        await office.usage.add([a_record(number)])  # told twice, counted once
    for office in offices:
        (total,) = await office.usage.totals("2026-11-01", "2026-11-30", "key")
        assert (total.group, total.requests, total.prompt_tokens) == ("k", 6, 60)
        assert (await office.usage.totals("2026-12-01", "2026-12-31", "day")) == []
        assert await office.usage.last_used() == {"k": 1_796_000_005 // 60 * 60}
        assert await office.usage.forget(key_id="k") == 3
    redis.stop()
    with pytest.raises(DiptychError):
        await offices[0].usage.add([a_record(9)])
    await asyncio.to_thread(redis.start)
    await asyncio.sleep(1.1)  # the rest after a failure
    await offices[0].usage.add([a_record(9)])
    (total,) = await offices[1].usage.totals("2026-11-01", "2026-11-30", "key")
    assert total.requests == 1  # that Redis kept nothing; the record was not lost
    for office in offices:
        await office.close()


async def test_a_key_made_at_one_gateway_opens_another(redis: RedisServer, tmp_path: Path) -> None:
    first, second = [await an_office(redis, tmp_path / name) for name in ("a", "b")]
    wish = Wish("n", tenant="acme", limits=Limits(requests_per_min=1))
    _, text = await first.desk.create(Actor("tester"), wish)
    caller = await second.authentication.identify({"x-api-key": text}, "192.0.2.1")
    assert (caller.tenant, caller.limits) == ("acme", wish.limits)
    await first.close()
    await second.close()
