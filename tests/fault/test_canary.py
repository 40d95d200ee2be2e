"""Who serves, and which pairs are avoided: a real router with canaries over scripted workers."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from diptych.core.errors import Overloaded
from diptych.core.ids import Key, WorkerId
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.router.client import Fleet, watch
from diptych.router.pairs import Pairs
from diptych.testing.cluster import AnyWorker, Cluster, cluster
from diptych.testing.links import Link, link_to
from diptych.testing.scripted import Script, continuation
from diptych.transport.channel import connect

SOON_S = 10.0
SILENCE_S = 0.3  # of a transfer


@dataclass
class House:
    """A cluster whose workers must prove themselves, and which prompts they were given."""

    cluster: Cluster
    pairs: Pairs
    asked: dict[str, list[str]] = field(default_factory=dict)  # workers by request, in order

    async def add(self, *names: str, script: Script | None = None, **options: Any) -> None:
        for name in names:
            patience = {} if name.startswith("prefill") else {"silence_s": SILENCE_S}
            self._note_prompts(await self.cluster.add(name, script, **patience, **options))

    async def answer_all(self, names: list[str]) -> None:
        """Requests at once; all of them end right."""
        wishes = [asked(name) for name in names]
        async with asyncio.timeout(SOON_S):
            answers = await asyncio.gather(*map(self.cluster.answer, wishes))
        assert answers == [continuation(wish) for wish in wishes]

    async def seen(self, is_so: Callable[[Fleet], bool]) -> Fleet:
        """The fleet, once it is so."""
        async with asyncio.timeout(SOON_S):
            async for fleet in watch(self.cluster.router, 0.1):
                if is_so(fleet):
                    return fleet
        raise AssertionError("the router ended the watch")

    async def all_ready(self) -> None:
        await self.seen(lambda fleet: ready_of(fleet) == set(self.cluster.workers))

    def sampled(self) -> dict[str, int]:
        workers = self.cluster.workers.items()
        return {name: worker.engine.counts().tokens_total for name, worker in workers}

    def _note_prompts(self, worker: AnyWorker) -> None:
        submit = worker.engine.submit

        async def noted(generation: Generation, *, hold: bool) -> None:
            name = generation.key.request_id
            self.asked.setdefault(name, []).append(worker.rank.worker_id)
            await submit(generation, hold=hold)

        worker.engine.submit = noted  # type: ignore[method-assign]


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    pairs = Pairs(must_prove=True)
    async with cluster(pairs=pairs) as made:
        yield House(made, pairs)


def ready_of(fleet: Fleet) -> set[str]:
    return {m.join.member_id for m in fleet.members if m.ready}


def reason_of(fleet: Fleet, worker: str) -> str:
    return next((m.not_ready_reason for m in fleet.members if m.join.member_id == worker), "")


def asked(name: str, *, length: int = 70, max_new: int = 8) -> Generation:
    dice = random.Random(name)
    prompt = tuple(dice.randrange(3, 380) for _ in range(length))
    return Generation(Key(name, 1), prompt, Sampling(seed=5), max_new, scope=b"s" * 16)


def open_up(link: Link) -> None:
    """Let everything through again; what was swallowed broke the connections."""
    link.is_dropping = False
    link.cut()


async def test_p10_who_moves_no_bytes_is_not_ready_and_nothing_is_computed_twice() -> None:
    async with house() as made:
        await made.add("prefill-1")
        link = await made.cluster.linked("prefill-1")
        link.is_dropping = True
        await made.add("decode-1")
        why = "canary: 0 of 1 blocks arrived from prefill-1 (transfer_silent)"
        fleet = await made.seen(lambda fleet: reason_of(fleet, "decode-1") == why)
        assert not fleet.ready and ready_of(fleet) == set()
        assert f"decode-1: {why}" in fleet.reasons
        waiting = asyncio.create_task(made.cluster.answer(asked("waits")))
        await made.seen(lambda fleet: fleet.queued == 1)
        open_up(link)
        await made.all_ready()
        assert await waiting == continuation(asked("waits"))
        assert made.asked["waits"] == ["prefill-1"]


async def test_f25_a_pair_that_cannot_talk_is_avoided_and_both_its_workers_serve() -> None:
    names = "prefill-1", "prefill-2", "decode-1", "decode-2"
    async with house() as made:
        await made.add("prefill-1", "prefill-2", "decode-2")
        holder = made.cluster.workers["prefill-1"].rank.address
        async with link_to(holder) as link:
            routes = {holder: link.address}
            await made.add("decode-1", dial=lambda address: connect(routes.get(address, address)))
            await made.all_ready()
            link.is_dropping = True
            link.cut()
            await made.answer_all([f"cut-{n}" for n in range(12)])
            assert made.pairs.bad_partners(WorkerId("prefill-1")) == ("decode-1",)
            assert ready_of(await made.cluster.seen()) == set(names)
            before = made.sampled()
            await made.answer_all([f"after-{n}" for n in range(12)])
            served = {name for name, count in made.sampled().items() if count > before[name]}
            assert served == set(names)
            assert all(len(made.asked[f"after-{n}"]) == 1 for n in range(12))  # none met the pair
            for name in names:
                await made.cluster.kill(name)  # before their link


async def test_f18_p8_old_pairs_with_old_and_a_worker_without_a_partner_is_none() -> None:
    async with house() as made:
        await made.add("prefill-1", "decode-1", script=Script(model="old"))
        await made.add("decode-2", script=Script(model="new"))
        fleet = await made.seen(lambda fleet: fleet.ready)
        why = "no prefill worker of the same weights, layout and numerics"
        assert reason_of(fleet, "decode-2") == why
        await made.answer_all(["old-1", "old-2"])


async def test_f18_workers_that_refuse_each_other_are_no_pair() -> None:
    async with house() as made:
        await made.add("prefill-1")
        await made.add("decode-1", secret=b"another cluster's secret")
        fleet = await made.seen(lambda fleet: "secret" in reason_of(fleet, "decode-1"))
        why = "canary: the ticket's signature does not match this cluster's secret"
        assert reason_of(fleet, "decode-1") == why
        assert not fleet.ready


async def test_f21_an_engine_that_fails_twice_on_a_request_ends_it_and_nobody_else() -> None:
    names = "prefill-1", "prefill-2", "prefill-3", "decode-1"
    async with house() as made:
        await made.add(*names)
        await made.all_ready()
        for name in names[:3]:
            made.cluster.workers[name].engine.fail_row = lambda key: (
                "it cannot be" if key.request_id.startswith("poison") else None
            )
        with pytest.raises(Overloaded) as caught:
            await made.cluster.answer(asked("poison-1"))
        assert caught.value.code == "poison_request"
        assert len(made.asked["poison-1"]) == 2
        same = replace(asked("poison-1"), key=Key("poison-2", 1))
        with pytest.raises(Overloaded) as caught:
            await made.cluster.answer(same)
        assert caught.value.code == "poison_request"
        assert "poison-2" not in made.asked
        await made.answer_all(["other-1", "other-2", "other-3"])
        assert ready_of(await made.cluster.seen()) == set(names)
