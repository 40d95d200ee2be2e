"""Prefill to decode over real gRPC, with an engine that checks the bytes it adopts."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from diptych.core.errors import (
    NOT_FETCHED,
    TICKET_GONE,
    BadRequest,
    DiptychError,
    Lost,
    Overloaded,
    Refused,
)
from diptych.core.ids import Incarnation, Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.ticket import seal, unseal
from diptych.decode_service.client import DecodeCall, DecodeClient
from diptych.decode_service.puller import TRIES, Transfer
from diptych.decode_service.service import DecodeService
from diptych.prefill_service.client import (
    Accepted,
    HolderClient,
    PrefillCall,
    PrefillClient,
    Progress,
    Tokens,
)
from diptych.prefill_service.service import PrefillService
from diptych.prefill_service.tickets import LEASE_S, RENEWED_S
from diptych.testing.clock import FakeClock, settle
from diptych.testing.scripted import Script, continuation
from diptych.testing.workers import SECRET, Worker, decode_worker, prefill_worker
from diptych.transport.session import SessionPool


@dataclass(frozen=True)
class Chain:
    prefill: Worker[PrefillService]
    decode: Worker[DecodeService]
    pool: SessionPool
    clock: FakeClock

    @property
    def prefill_client(self) -> PrefillClient:
        return PrefillClient(self.pool)

    @property
    def decode_client(self) -> DecodeClient:
        return DecodeClient(self.pool)


@asynccontextmanager
async def chain_of(
    prefill_script: Script | None = None, decode_script: Script | None = None, **decode: object
) -> AsyncIterator[Chain]:
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(
            prefill_worker(script=prefill_script, clock=clock)
        )
        decode_at = await stack.enter_async_context(decode_worker(script=decode_script, **decode))
        pool = SessionPool("gateway-1", silence_s=3.0)
        stack.push_async_callback(pool.close)
        yield Chain(prefill, decode_at, pool, clock)


@pytest.fixture
async def chain() -> AsyncIterator[Chain]:
    async with chain_of() as made:
        yield made
        await settle(lambda: made.prefill.is_at_baseline() and made.decode.is_at_baseline())
        assert len(made.prefill.service.holdings.tickets) == 0
        assert made.decode.service.num_reservations == 0


def request(name: str = "r", *, length: int = 21, max_new: int = 6, attempt: int = 1) -> Generation:
    prompt = tuple((7 * i + len(name) + ord(name[-1])) % 380 + 3 for i in range(length))
    return Generation(Key(name, attempt), prompt, Sampling(seed=5), max_new, scope=b"s" * 16)


async def run_prefill(chain: Chain, generation: Generation) -> tuple[PrefillCall, bytes, int]:
    """Until the first token: the call, the ticket, the token."""
    call = chain.prefill_client.open(chain.prefill.rank, generation, 5.0)
    ticket, token = b"", -1
    async for event in call:
        match event:
            case Accepted():
                ticket = event.ticket
            case Tokens():
                (token,) = event.row.token_ids
    return call, ticket, token


def after(generation: Generation, token: int) -> Generation:
    return replace(generation, forced=(*generation.forced, token))


async def reserve(chain: Chain, generation: Generation) -> DecodeCall:
    return await chain.decode_client.reserve(
        chain.decode.rank, generation.key, generation.capacity, 5.0
    )


async def rows(call: DecodeCall) -> list[int]:
    return [token async for row in call for token in row.token_ids]


async def split(chain: Chain, generation: Generation) -> list[int]:
    """The whole split path, as a gateway walks it."""
    _, ticket, token = await run_prefill(chain, generation)
    call = await reserve(chain, generation)
    await call.start(after(generation, token), ticket, 5.0)
    return [token, *await rows(call)]


async def start_failure(chain: Chain, generation: Generation, ticket: bytes) -> DiptychError:
    call = await reserve(chain, generation)
    await call.start(generation, ticket, 5.0)
    with pytest.raises(DiptychError) as caught:
        await rows(call)
    return caught.value


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 65, 200])
async def test_a_split_run_gives_the_tokens_of_the_hybrid_run(chain: Chain, length: int) -> None:
    generation = request(length=length)
    assert await split(chain, generation) == continuation(generation)

    hybrid = chain.decode_client.open(chain.decode.rank, Key("hybrid", 1))
    await hybrid.start(replace(generation, key=Key("hybrid", 1)), None, 5.0)
    assert await rows(hybrid) == continuation(generation)


async def test_events_come_in_order_and_announce_the_last_chunk(chain: Chain) -> None:
    events = []
    call = chain.prefill_client.open(chain.prefill.rank, request(length=150), 5.0)
    async for event in call:
        events.append(event)
    assert isinstance(events[0], Accepted)
    assert events[1:-1] == [Progress(64, False), Progress(128, False), Progress(128, True)]
    assert isinstance(events[-1], Tokens)
    await call.cancel()


async def test_forced_tokens_are_computed_and_not_sent_again(chain: Chain) -> None:
    generation = request()
    whole = continuation(generation)
    resumed = replace(generation, forced=tuple(whole[:3]), key=Key("r", 2))
    assert await split(chain, resumed) == whole[3:]


async def test_a_prompt_that_ends_with_its_first_token_holds_nothing(chain: Chain) -> None:
    generation = request(max_new=1)
    call = chain.prefill_client.open(chain.prefill.rank, generation, 5.0)
    last = [event async for event in call][-1]
    assert isinstance(last, Tokens) and last.row.finish is Finish.LENGTH
    assert list(last.row.token_ids) == continuation(generation)


async def test_fifty_requests_at_once_leave_counts_at_their_baseline(chain: Chain) -> None:
    async def one(index: int) -> None:
        generation = request(f"many-{index}", length=5 + 7 * index % 90, max_new=2 + index % 9)
        _, ticket, token = await run_prefill(chain, generation)
        while True:
            try:
                call = await reserve(chain, generation)
                break
            except Overloaded as busy:
                await asyncio.sleep(busy.retry_after_s or 0.1)
        await call.start(after(generation, token), ticket, 5.0)
        assert [token, *await rows(call)] == continuation(generation)

    async with asyncio.TaskGroup() as group:
        for index in range(50):
            group.create_task(one(index))


async def test_a_ticket_is_committed_once(chain: Chain) -> None:
    _, ticket, _ = await run_prefill(chain, request())
    holder = HolderClient(chain.prefill.rank.address, chain.decode.rank.worker_id)
    assert await holder.commit(ticket)
    assert not await holder.commit(ticket)
    assert not await holder.renew(ticket)
    await holder.close()


async def test_an_abort_frees_a_ticket(chain: Chain) -> None:
    _, ticket, _ = await run_prefill(chain, request())
    holder = HolderClient(chain.prefill.rank.address, chain.decode.rank.worker_id)
    await holder.abort(ticket, "test")
    await settle(chain.prefill.is_at_baseline)
    assert not await holder.commit(ticket)
    await holder.close()


async def test_f5_a_lapsed_lease_is_never_committed(chain: Chain) -> None:
    generation = request()
    _, ticket, token = await run_prefill(chain, generation)
    await settle(lambda: chain.prefill.service.holdings.tickets.num_held == 1)
    chain.clock.advance(LEASE_S + 0.1)
    error = await start_failure(chain, after(generation, token), ticket)
    assert isinstance(error, Lost) and error.code == TICKET_GONE
    chain.prefill.service.holdings.sweep()
    assert chain.prefill.service.holdings.tickets.lapsed_total == 1


async def test_a_renewed_lease_outlives_the_first(chain: Chain) -> None:
    generation = request()
    call, ticket, token = await run_prefill(chain, generation)
    await settle(lambda: chain.prefill.service.holdings.tickets.num_held == 1)
    chain.clock.advance(LEASE_S - 1)
    assert await call.renew()
    chain.clock.advance(RENEWED_S - 1)
    decode = await reserve(chain, generation)
    await decode.start(after(generation, token), ticket, 5.0)
    assert [token, *await rows(decode)] == continuation(generation)


async def test_f5_p1_pages_reused_before_the_pull_are_never_decoded(chain: Chain) -> None:
    """vllm#21570: P frees by timeout, other prompts take the pages, D reads late."""
    generation = request("victim")
    _, ticket, token = await run_prefill(chain, generation)
    await settle(lambda: chain.prefill.service.holdings.tickets.num_held == 1)
    chain.clock.advance(LEASE_S + 0.1)
    chain.prefill.service.holdings.sweep()
    await settle(chain.prefill.is_at_baseline)
    others = [await run_prefill(chain, request(f"other-{i}")) for i in range(4)]
    error = await start_failure(chain, after(generation, token), ticket)
    assert error.code == TICKET_GONE
    for other, _, _ in others:
        await other.cancel()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"incarnation": Incarnation(1)}, Lost),
        ({"namespace": b"n" * 16}, Refused),
        ({"hashes": ()}, BadRequest),
        ({"scope": b"x" * 16}, BadRequest),
        ({"num_tokens": 20}, BadRequest),
        ({"key": Key("another", 1)}, BadRequest),
        ({"ticket_id": b"t" * 16}, Lost),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_ticket_that_does_not_belong_is_refused(
    chain: Chain, change: dict[str, object], kind: type[DiptychError]
) -> None:
    generation = request()
    call, ticket, token = await run_prefill(chain, generation)
    forged = seal(replace(unseal(ticket, SECRET), **change), SECRET)
    error = await start_failure(chain, after(generation, token), forged)
    assert type(error) is kind
    if kind is Lost:
        assert error.code == TICKET_GONE
    await call.cancel()


async def test_a_ticket_signed_with_another_secret_is_refused_by_both_sides(chain: Chain) -> None:
    generation = request()
    call, ticket, token = await run_prefill(chain, generation)
    forged = seal(unseal(ticket, SECRET), b"another secret")
    assert type(await start_failure(chain, after(generation, token), forged)) is Refused
    holder = HolderClient(chain.prefill.rank.address, chain.decode.rank.worker_id)
    for attempt in (holder.commit, holder.renew):
        with pytest.raises(Refused, match="signature"):
            await attempt(forged)
    await holder.close()
    await call.cancel()


async def test_f18_p8_workers_of_different_models_are_not_paired() -> None:
    async with chain_of(Script(model="one"), Script(model="two")) as chain:
        generation = request()
        _, ticket, token = await run_prefill(chain, generation)
        error = await start_failure(chain, after(generation, token), ticket)
        assert isinstance(error, Refused)
        assert "another model" in error.message


async def test_a_flipped_bit_is_noticed_and_the_ticket_given_up(chain: Chain) -> None:
    generation = request()
    _, ticket, token = await run_prefill(chain, generation)
    holdings = chain.prefill.service.holdings
    await settle(lambda: holdings.tickets.num_held == 1)
    part = holdings.read(unseal(ticket, SECRET), unseal(ticket, SECRET).hashes[1])
    part.payload[17] ^= 4
    error = await start_failure(chain, after(generation, token), ticket)
    assert isinstance(error, Lost) and error.code == NOT_FETCHED
    assert error.message == "1 of 2 blocks arrived from prefill-1 (frame_checksum)"


async def test_every_transfer_says_how_it_went() -> None:
    told: list[Transfer] = []
    async with chain_of(on_transfer=told.append) as chain:
        await split(chain, request("good", length=64))
        generation = request("flipped")
        _, ticket, token = await run_prefill(chain, generation)
        holdings = chain.prefill.service.holdings
        await settle(lambda: holdings.tickets.num_held == 1)
        part = holdings.read(unseal(ticket, SECRET), unseal(ticket, SECRET).slot_hash)
        part.payload[0] ^= 1
        await start_failure(chain, after(generation, token), ticket)
        layout = chain.decode.engine.layout
    good, flipped = told
    held_bytes = 64 // layout.grain * layout.block_bytes + layout.slot_bytes
    assert (good.result, good.damaged) == ("ok", 0)
    assert held_bytes <= good.size_bytes < held_bytes + 1024  # and what frames add
    assert (flipped.result, flipped.damaged) == (NOT_FETCHED, TRIES)
    assert all(0 < transfer.took_s < 5 for transfer in told)


async def test_f2_p3_a_prefill_worker_killed_in_mid_transfer_loses_the_ticket_only() -> None:
    big = Script(block_bytes=1 << 20, num_blocks=48, num_slots=4)
    async with chain_of(big, big) as chain:
        generation = request(length=200)
        _, ticket, token = await run_prefill(chain, generation)
        call = await reserve(chain, generation)
        holdings = chain.prefill.service.holdings
        read, stop = holdings.read, asyncio.Event()

        def dying(*args: object) -> object:
            stop.set()
            return read(*args)  # type: ignore[arg-type]

        holdings.read = dying  # type: ignore[method-assign, assignment]
        await call.start(after(generation, token), ticket, 8.0)
        await stop.wait()
        await chain.prefill.server.stop(0)
        with pytest.raises(Lost) as caught:
            await rows(call)
        assert caught.value.code == NOT_FETCHED
        await settle(chain.decode.is_at_baseline)


async def test_f12_a_sequence_cancelled_in_mid_transfer_frees_both_sides(chain: Chain) -> None:
    generation = request()
    prefill, ticket, token = await run_prefill(chain, generation)
    holdings = chain.prefill.service.holdings
    await settle(lambda: holdings.tickets.num_held == 1)
    next(iter(holdings._holdings.values())).ready.clear()  # the transfer cannot begin
    call = await reserve(chain, generation)
    await call.start(after(generation, token), ticket, 5.0)
    decode = chain.decode.service
    await settle(lambda: decode.num_pulls == 1)
    await call.cancel()
    await prefill.cancel()
    await settle(lambda: decode.num_pulls == 0)


async def test_f6_two_decode_workers_may_try_the_same_ticket(chain: Chain) -> None:
    """The first is lost before the commit; the second takes over under the next attempt."""
    generation = request()
    _, ticket, token = await run_prefill(chain, generation)
    await (await reserve(chain, generation)).cancel()
    again = replace(after(generation, token), key=Key("r", 2))
    call = await reserve(chain, again)
    await call.start(again, ticket, 5.0)
    assert [token, *await rows(call)] == continuation(generation)


async def test_a_reservation_without_a_start_expires(chain: Chain) -> None:
    call = await chain.decode_client.reserve(chain.decode.rank, Key("late", 1), 20, 0.1)
    await settle(chain.decode.is_at_baseline)
    generation = replace(request(), key=Key("late", 1))
    await call.start(generation, b"ticket", 1.0)
    with pytest.raises(DiptychError):
        await rows(call)


async def test_f8_a_full_decode_worker_says_busy_and_when_to_ask_again() -> None:
    async with chain_of(decode_script=Script(num_slots=1)) as chain:
        first = await reserve(chain, request("first"))
        with pytest.raises(Overloaded) as caught:
            await reserve(chain, request("second"))
        assert caught.value.retry_after_s
        await first.cancel()
        await settle(chain.decode.is_at_baseline)
        await (await reserve(chain, request("second"))).cancel()


async def test_a_request_that_never_fits_is_the_callers_mistake(chain: Chain) -> None:
    with pytest.raises(BadRequest):
        await reserve(chain, request(max_new=5000))
    call = chain.prefill_client.open(chain.prefill.rank, request(length=4200), 5.0)
    with pytest.raises(BadRequest):
        [event async for event in call]


async def test_p6_requests_given_up_at_any_moment_leave_counts_at_their_baseline() -> None:
    """sglang#8352: under aborts, usage never returned to the baseline."""
    script = Script(step_s=0.002, chunk_tokens=16, num_slots=12)
    async with chain_of(script, script) as chain:

        async def one(index: int) -> None:
            luck = random.Random(index)
            generation = request(f"chaos-{index}", length=1 + luck.randrange(200), max_new=20)
            calls: list[PrefillCall | DecodeCall] = []
            try:
                async with asyncio.timeout(luck.uniform(0.0, 0.6)):
                    prefill = chain.prefill_client.open(chain.prefill.rank, generation, 5.0)
                    calls.append(prefill)
                    ticket, token = b"", -1
                    async for event in prefill:
                        if isinstance(event, Accepted):
                            ticket = event.ticket
                        if isinstance(event, Tokens):
                            (token,) = event.row.token_ids
                    decode = await reserve(chain, generation)
                    calls.append(decode)
                    await decode.start(after(generation, token), ticket, 5.0)
                    assert [token, *await rows(decode)] == continuation(generation)
            except (TimeoutError, Overloaded):
                for call in calls:
                    await call.cancel()

        async with asyncio.TaskGroup() as group:
            for index in range(120):
                group.create_task(one(index))
        await settle(lambda: chain.prefill.is_at_baseline() and chain.decode.is_at_baseline())
        assert len(chain.prefill.service.holdings.tickets) == 0
        assert chain.decode.service.num_reservations == chain.decode.service.num_pulls == 0
