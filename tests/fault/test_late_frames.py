"""Links that hold, delay, lose or flip what passes between prefill and decode.

Engines are scripted and check the bytes of their pages at every token, so a frame that is written
late, or to whom it does not belong, ends its victim with an error.
"""

import asyncio
from dataclasses import dataclass

import pytest

from diptych.core.errors import TICKET_GONE, BadRequest, DiptychError, Overloaded
from diptych.core.ids import Key
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeClient
from diptych.decode_service.puller import Transfer
from diptych.engine.port import Pages
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.notes import Course
from diptych.prefill_service.client import PrefillClient, Tokens
from diptych.prefill_service.tickets import LEASE_S
from diptych.router.client import Drain, drain
from diptych.testing.clock import FakeClock, settle
from diptych.testing.cluster import Cluster, cluster
from diptych.testing.links import Link
from diptych.testing.scripted import Script, continuation

BLOCK_BYTES = 64 << 10
FRAME_BYTES = 8 * BLOCK_BYTES
BIG = Script(block_bytes=BLOCK_BYTES, num_blocks=64, num_slots=8)
ONE_SLOT = Script(block_bytes=BLOCK_BYTES, num_blocks=30, num_slots=1, step_s=0.01)
PROMISED_S = 1.0  # P2
FREED_S = 10.0  # P3


def asked(name: str = "a", *, length: int = 200, max_new: int = 12) -> Generation:
    prompt = tuple((7 * i + ord(name[-1])) % 380 + 3 for i in range(length))
    return Generation(Key(name, 1), prompt, Sampling(seed=5), max_new, scope=b"s" * 16)


def pages_of(it: Cluster, worker: str, request: str) -> set[int]:
    """The blocks that a request has there now."""
    taken = it.workers[worker].engine._pools.taken
    return {
        block for key, has in taken.items() if key.request_id == request for block in has.blocks
    }


@dataclass
class Stopped:
    """A transfer whose first frame has arrived; the others are held."""

    link: Link
    answering: asyncio.Task[list[int]]
    pages: set[int]  # at the decode worker


async def stop_in_transfer(it: Cluster, generation: Generation) -> Stopped:
    """From the first prefill worker to the only decode worker."""
    link = await it.linked("prefill-1")
    link.back.hold(after=FRAME_BYTES + BLOCK_BYTES)
    answering = asyncio.create_task(it.answer(generation))
    await settle(lambda: link.back.held_bytes > FRAME_BYTES)
    pages = pages_of(it, "decode-1", generation.key.request_id)
    assert pages
    return Stopped(link, answering, pages)


async def give_up(answering: asyncio.Task[list[int]]) -> None:
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


@pytest.mark.parametrize("order", ["before they arrive", "behind them"])
async def test_p4_frames_of_an_aborted_request_never_reach_who_has_its_pages_now(
    order: str,
) -> None:
    async with cluster() as it:
        await it.add("prefill-1", ONE_SLOT)
        decode = await it.add("decode-1", ONE_SLOT)
        stopped = await stop_in_transfer(it, asked("a"))
        await give_up(stopped.answering)
        await settle(decode.is_at_baseline)
        if order == "before they arrive":  # and decodes already, on pages that came another way
            await it.add("prefill-2", ONE_SLOT)
            await drain(it.router, "prefill-1", Drain(True), 5.0)
        sent, over = list[int](), list[Course]()
        other = asyncio.create_task(it.answer(asked("b"), sent, over.append))
        await settle(lambda: decode.service.num_pulls == 1 or len(sent) > 1)
        assert pages_of(it, "decode-1", "b") & stopped.pages
        if order == "before they arrive":
            await settle(lambda: len(sent) > 3)
        assert stopped.link.back.held_bytes > FRAME_BYTES
        stopped.link.back.release()
        assert await other == sent == continuation(asked("b"))
        assert {stay.attempt for stay in over[0].stays} == {1}  # nothing had to be mended


async def test_p3_a_request_given_up_while_its_silent_holder_is_dead_keeps_no_reservation() -> None:
    async with cluster() as it:
        await it.add("prefill-1", BIG)
        decode = await it.add("decode-1", ONE_SLOT, silence_s=5.0)
        stopped = await stop_in_transfer(it, asked("a"))
        await it.kill("prefill-1")
        assert decode.service.num_pulls == 1  # it hears nothing of that
        await give_up(stopped.answering)
        await settle(decode.is_at_baseline, within_s=2 * FREED_S)
        await it.add("prefill-1", BIG)
        assert await it.answer(asked("b")) == continuation(asked("b"))
        stopped.link.back.release()
        assert await it.answer(asked("c")) == continuation(asked("c"))


@pytest.mark.parametrize(
    ("is_read", "block_bytes"),
    [(False, BLOCK_BYTES), (True, BLOCK_BYTES), (True, 4 * BLOCK_BYTES)],
    ids=["nothing was read", "all was sent", "the rest waits for credit"],
)
async def test_f5_p1_pages_that_were_given_to_others_before_they_were_read_are_never_decoded(
    is_read: bool, block_bytes: int
) -> None:
    """vllm#21570: the lease is over, the pool is full of other prompts, then D goes on reading."""
    clock, told = FakeClock(), list[Transfer]()
    script = Script(block_bytes=block_bytes, num_blocks=80, num_slots=8)
    generation = asked("victim")
    async with cluster() as it:
        prefill = await it.add("prefill-1", script, clock=clock)
        await it.add("decode-1", script, on_transfer=told.append)
        holdings = prefill.service.holdings
        link = await it.linked("prefill-1")
        if is_read:
            link.back.hold(after=8 * block_bytes + BLOCK_BYTES)
        else:
            link.there.hold()
        answering = asyncio.create_task(it.answer(generation))
        await settle(lambda: holdings.tickets.num_held == 1)
        way = link.back if is_read else link.there
        await settle(lambda: way.held_bytes > (FRAME_BYTES if is_read else 0))
        pages = pages_of(it, "prefill-1", "victim")
        clock.advance(LEASE_S + 0.1)
        holdings.sweep()
        await settle(prefill.is_at_baseline)
        others = [
            PrefillClient(it.pool).open(prefill.rank, asked(f"other-{i}"), 5.0) for i in range(2)
        ]
        for other in others:
            assert isinstance([event async for event in other][-1], Tokens)
        assert pages <= pages_of(it, "prefill-1", "other-0") | pages_of(it, "prefill-1", "other-1")
        way.release()
        assert await answering == continuation(generation)
        assert [transfer.result for transfer in told] == [TICKET_GONE, "ok"]
        assert holdings.tickets.lapsed_total == 1
        for other in others:
            await other.cancel()


@pytest.mark.parametrize("status", [400, 503])
async def test_p2_a_decode_worker_that_refuses_a_computed_prompt_leaves_no_pages_at_prefill(
    status: int,
) -> None:
    """vllm#41269: P kept the blocks of a request that D had refused until a timeout."""
    too_short = Script(max_model_len=64)
    async with cluster(Deadlines(room_s=0.2)) as it:
        prefill = await it.add("prefill-1")
        decode = await it.add("decode-1", too_short if status == 400 else Script(num_slots=1))
        tickets, reserve = prefill.service.holdings.tickets, decode.engine.reserve

        async def refuse_late(key: Key, capacity: int) -> Pages | None:
            await settle(lambda: tickets.num_held == 1)
            assert not prefill.is_at_baseline()
            return await reserve(key, capacity)

        holder = None
        if status == 503:
            client = DecodeClient(it.pool)
            holder = await client.reserve(decode.rank, Key("holder", 1), 20, 20.0)
        decode.engine.reserve = refuse_late
        sent: list[int] = []
        with pytest.raises(DiptychError) as caught:
            await it.answer(asked(length=90), sent)
        assert type(caught.value) is (BadRequest if status == 400 else Overloaded)
        assert caught.value.http_status == status
        assert sent == continuation(asked(length=90))[:1]
        await settle(prefill.is_at_baseline, within_s=2 * PROMISED_S)
        assert len(tickets) == 0
        if holder is not None:
            await holder.cancel()


async def test_f2_a_bit_that_flips_on_the_wire_is_noticed_and_the_rest_fetched_again() -> None:
    told: list[Transfer] = []
    async with cluster() as it:
        await it.add("prefill-1", BIG)
        await it.add("decode-1", BIG, on_transfer=told.append)
        link = await it.linked("prefill-1")
        link.back.flip_at = FRAME_BYTES + 3 * BLOCK_BYTES  # in the second frame
        assert await it.answer(asked()) == continuation(asked())
        assert [(transfer.result, transfer.damaged) for transfer in told] == [("ok", 1)]
        assert link.back.num_bytes > 26 * BLOCK_BYTES  # what was wrong came again,
        assert link.back.num_bytes < 44 * BLOCK_BYTES  # what was right did not


async def test_f2_a_slow_link_costs_time_and_nothing_else() -> None:
    told: list[Transfer] = []
    async with cluster() as it:
        await it.add("prefill-1", BIG)
        await it.add("decode-1", BIG, on_transfer=told.append)
        link = await it.linked("prefill-1")
        link.there.delay_s = link.back.delay_s = 0.05
        assert await it.answer(asked()) == continuation(asked())
        assert [transfer.result for transfer in told] == ["ok"]


@pytest.mark.parametrize("way", ["there", "back"])
async def test_f25_a_link_that_is_deaf_in_one_direction_costs_a_pause(way: str) -> None:
    async with cluster() as it:
        prefill = await it.add("prefill-1", BIG)
        await it.add("decode-1", BIG, silence_s=0.5)
        link = await it.linked("prefill-1")
        (link.there if way == "there" else link.back).is_dropping = True
        answering = asyncio.create_task(it.answer(asked()))
        await settle(lambda: prefill.service.holdings.tickets.num_held == 1)
        other = await it.add("prefill-2", BIG)
        assert await answering == continuation(asked())
        assert other.engine.counts().tokens_total == 1
        assert len((await it.seen()).members) == 3  # nobody lost its place
