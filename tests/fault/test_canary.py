"""Who serves, and which pairs are avoided: a real router with canaries over scripted workers."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc.aio
import pytest

from diptych.core.errors import Overloaded
from diptych.core.ids import Key, WorkerId
from diptych.core.phases import Role
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeClient
from diptych.gateway import events as on
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Call, Pipeline
from diptych.prefill_service.client import PrefillClient
from diptych.router.client import Fleet, RouterClient, status, watch
from diptych.router.pairs import Pairs
from diptych.testing.clock import settle
from diptych.testing.fleet import reporting, router
from diptych.testing.links import Link, link_to
from diptych.testing.scripted import Script, continuation
from diptych.testing.workers import Worker, decode_worker, prefill_worker
from diptych.transport.channel import connect
from diptych.transport.session import SessionPool

SOON_S = 10.0


@dataclass
class House:
    """Everything of a platform but HTTP; decode workers reach holders over `routes`."""

    router: str
    pairs: Pairs
    pipeline: Pipeline
    workers: dict[str, Worker] = field(default_factory=dict)  # type: ignore[type-arg]
    routes: dict[tuple[str, str], str] = field(default_factory=dict)
    transfers: list[tuple[str, str]] = field(default_factory=list)
    asked: dict[str, list[str]] = field(default_factory=dict)  # prompts by request, in order

    async def answer(self, generation: Generation) -> list[int]:
        tokens: list[int] = []

        def take(emit: on.Emit) -> bool:
            tokens.extend(emit.token_ids)
            return True

        await self.pipeline.run(Call(generation, (), "tenant"), take)
        return tokens

    async def answer_all(self, names: list[str]) -> None:
        """Requests at once; all of them end right."""
        wishes = [asked(name) for name in names]
        async with asyncio.timeout(SOON_S):
            answers = await asyncio.gather(*map(self.answer, wishes))
        assert answers == [continuation(wish) for wish in wishes]

    async def seen(self, is_so: Callable[[Fleet], bool]) -> Fleet:
        """The fleet, once it is so."""
        async with asyncio.timeout(SOON_S):
            async for fleet in watch(self.router, 0.1):
                if is_so(fleet):
                    return fleet
        raise AssertionError("the router ended the watch")

    async def all_ready(self) -> None:
        await self.seen(lambda fleet: ready_of(fleet) == set(self.workers))

    def note_prompts(self, worker: Worker) -> None:  # type: ignore[type-arg]
        submit = worker.engine.submit

        async def noted(generation: Generation, *, hold: bool) -> None:
            name = generation.key.request_id
            self.asked.setdefault(name, []).append(worker.rank.worker_id)
            await submit(generation, hold=hold)

        worker.engine.submit = noted  # type: ignore[method-assign]


def ready_of(fleet: Fleet) -> set[str]:
    return {m.join.member_id for m in fleet.members if m.ready}


def reasons_of(fleet: Fleet) -> dict[str, str]:
    return {m.join.member_id: m.not_ready_reason for m in fleet.members}


def asked(name: str, *, length: int = 70, max_new: int = 8) -> Generation:
    dice = random.Random(name)
    prompt = tuple(dice.randrange(3, 380) for _ in range(length))
    return Generation(Key(name, 1), prompt, Sampling(seed=5), max_new, scope=b"s" * 16)


@asynccontextmanager
async def house_of(
    *names: str,
    scripts: dict[str, Script] | None = None,
    secrets: dict[str, bytes] | None = None,
    routes: dict[tuple[str, str], Link] | None = None,
) -> AsyncIterator[House]:
    """Workers by name; `routes` are links from a decode worker (first) to a prefill worker."""
    scripts, secrets = scripts or {}, secrets or {}
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        pairs = Pairs(must_prove=True)
        address = await enter(router(pairs=pairs))
        pool = SessionPool("gateway-1", silence_s=3.0)
        stack.push_async_callback(pool.close)
        client = RouterClient(address)
        stack.push_async_callback(client.close)
        hops = Hops(client, PrefillClient(pool), DecodeClient(pool))
        pipeline = Pipeline(hops, Deadlines())
        stack.push_async_callback(pipeline.close)
        house = House(address, pairs, pipeline)
        for name in names:
            script = scripts.get(name)
            secret = {"secret": secrets[name]} if name in secrets else {}
            if name.startswith("prefill"):
                house.workers[name] = await enter(prefill_worker(name, script, **secret))
            else:
                house.workers[name] = await enter(
                    decode_worker(
                        name,
                        script,
                        silence_s=0.3,
                        on_transfer=lambda done, name=name: house.transfers.append(  # type: ignore[misc]
                            (name, done.result)
                        ),
                        dial=lambda at, name=name: dial(house, name, at),  # type: ignore[misc]
                        **secret,
                    )
                )
            house.note_prompts(house.workers[name])
        for (decode, prefill), link in (routes or {}).items():
            link.target = house.workers[prefill].rank.address
            house.routes[decode, link.target] = link.address
        for name, worker in house.workers.items():
            role, engine = Role(name.partition("-")[0]), worker.engine
            await enter(reporting(address, role, engine, worker.rank, is_deterministic=True))
        yield house
        await settle(lambda: all(w.is_at_baseline() for w in house.workers.values()), SOON_S)


@asynccontextmanager
async def linked_house(*names: str, is_dropping: bool = False) -> AsyncIterator[tuple[House, Link]]:
    """What decode-1 fetches from prefill-1 comes over a link."""
    async with link_to("") as link:
        link.is_dropping = is_dropping
        async with house_of(*names, routes={("decode-1", "prefill-1"): link}) as house:
            yield house, link


def dial(house: House, worker: str, address: str) -> grpc.aio.Channel:
    return connect(house.routes.get((worker, address), address))


def open_up(link: Link) -> None:
    """Let everything through again; what was swallowed broke the connections."""
    link.is_dropping = False
    link.cut()


async def test_p10_who_moves_no_bytes_is_not_ready_and_nothing_is_computed_twice() -> None:
    async with linked_house("prefill-1", "decode-1", is_dropping=True) as (house, link):
        why = "canary: 0 of 1 blocks arrived from prefill-1 (transfer_silent)"
        fleet = await house.seen(lambda fleet: reasons_of(fleet).get("decode-1") == why)
        assert not fleet.ready and ready_of(fleet) == set()
        assert f"decode-1: {why}" in fleet.reasons
        waiting = asyncio.create_task(house.answer(asked("waits")))
        await house.seen(lambda fleet: fleet.queued == 1)
        open_up(link)
        await house.all_ready()
        assert await waiting == continuation(asked("waits"))
        assert house.asked["waits"] == ["prefill-1"]


async def test_f25_a_pair_that_cannot_talk_is_avoided_and_both_its_workers_serve() -> None:
    names = "prefill-1", "prefill-2", "decode-1", "decode-2"
    async with linked_house(*names) as (house, link):
        await house.all_ready()
        link.is_dropping = True
        link.cut()
        await house.answer_all([f"cut-{n}" for n in range(12)])
        assert house.pairs.bad_partners(WorkerId("prefill-1")) == ("decode-1",)
        assert ready_of(await status(house.router, SOON_S)) == set(names)
        house.transfers.clear()
        before = {name: w.engine.counts().tokens_total for name, w in house.workers.items()}
        await house.answer_all([f"after-{n}" for n in range(12)])
        served = {
            name
            for name, worker in house.workers.items()
            if worker.engine.counts().tokens_total > before[name]
        }
        assert served == set(names)
        mine = [house.asked[f"after-{n}"] for n in range(12)]
        assert all(len(prompts) == 1 for prompts in mine)  # nobody met the bad pair


async def test_f18_p8_old_pairs_with_old_and_a_worker_without_a_partner_is_none() -> None:
    scripts = {"prefill-1": Script(model="old"), "decode-1": Script(model="old")}
    scripts["decode-2"] = Script(model="new")
    async with house_of("prefill-1", "decode-1", "decode-2", scripts=scripts) as house:
        fleet = await house.seen(lambda fleet: fleet.ready)
        assert reasons_of(fleet)["decode-2"].startswith("no prefill worker of the same weights")
        await house.answer_all(["old-1", "old-2"])


async def test_f18_workers_that_refuse_each_other_are_no_pair() -> None:
    secrets = {"decode-1": b"another cluster's secret"}
    async with house_of("prefill-1", "decode-1", secrets=secrets) as house:
        fleet = await house.seen(lambda fleet: "secret" in reasons_of(fleet).get("decode-1", ""))
        why = "canary: the ticket's signature does not match this cluster's secret"
        assert reasons_of(fleet)["decode-1"] == why
        assert not fleet.ready


async def test_f21_an_engine_that_fails_twice_on_a_request_ends_it_and_nobody_else() -> None:
    names = "prefill-1", "prefill-2", "prefill-3", "decode-1"
    async with house_of(*names) as house:
        await house.all_ready()
        for name in names[:3]:
            house.workers[name].engine.fail_row = lambda key: (
                "it cannot be" if key.request_id.startswith("poison") else None
            )
        with pytest.raises(Overloaded) as caught:
            await house.answer(asked("poison-1"))
        assert caught.value.code == "poison_request"
        assert len(house.asked["poison-1"]) == 2
        same = replace(asked("poison-1"), key=Key("poison-2", 1))
        with pytest.raises(Overloaded) as caught:
            await house.answer(same)
        assert caught.value.code == "poison_request"
        assert "poison-2" not in house.asked
        await house.answer_all(["other-1", "other-2", "other-3"])
        assert ready_of(await status(house.router, SOON_S)) == set(names)
