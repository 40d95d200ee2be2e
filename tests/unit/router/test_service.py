"""The router over real gRPC on loopback, with workers and gateways that only pretend."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc.aio
import pytest

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import Broken, Lost, Overloaded
from diptych.core.ids import BlockHash, Incarnation, WorkerId
from diptych.core.phases import Phase, Role
from diptych.engine.block_log import BlockLog
from diptych.router import wire
from diptych.router.client import (
    DecodeAt,
    Fleet,
    Have,
    Join,
    Lease,
    Load,
    PrefillAt,
    Queued,
    Reporter,
    Resume,
    RouterClient,
    SkipTo,
    Want,
    status,
)
from diptych.router.dispatcher import Dispatcher
from diptych.router.registry import Record, StreamRegistry
from diptych.router.service import RouterService
from diptych.telemetry.metrics import Metrics
from diptych.transport.channel import connect
from diptych.transport.server import Server

SOON_S = 20.0


@asynccontextmanager
async def router(listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    registry = StreamRegistry()
    service = RouterService(Dispatcher(registry), registry, Metrics("router"))
    async with Server(listen, [service.register], grace_s=0) as server:
        yield server.address
    service.stop()


class FakeWorker:
    """A member that reports whatever it is told to."""

    def __init__(
        self, address: str, member_id: str, *, slots: int = 4, blocks: int = 100, life: int = 1
    ) -> None:
        role = Role(member_id.partition("-")[0])
        join = Join(
            member_id, role, f"{member_id}:1", Incarnation(life), b"n" * 16,
            model="m", max_model_len=512, block_tokens=16, num_blocks=blocks, num_slots=slots,
        )  # fmt: skip
        self.load = Load(free_slots=slots, free_blocks=blocks)
        self.blocks = BlockLog(capacity=4)
        self.reporter = Reporter(address, join, lambda: self.load, block_log=self.blocks)
        self._task: asyncio.Task[None] | None = None

    def report(self, **fields: int) -> None:
        self.load = replace(self.load, **fields)
        self.reporter.notify()

    async def start(self) -> None:
        joined = asyncio.ensure_future(self.reporter.fleet_changed())
        await asyncio.sleep(0)
        self._task = asyncio.create_task(self.reporter.run())
        async with asyncio.timeout(SOON_S):
            await joined

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def __aenter__(self) -> "FakeWorker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def want(**fields: object) -> Want:
    return replace(Want("r", prompt_len=10, max_new=7, deadline_s=30), **fields)


async def hear(lease: Lease) -> object:
    async with asyncio.timeout(SOON_S):
        return await anext(lease)


async def eventually(address: str, is_so: Callable[[Fleet], bool]) -> Fleet:
    """Wait until the router's own view satisfies the test."""
    async with asyncio.timeout(SOON_S):
        while True:
            fleet = await status(address, SOON_S)
            if is_so(fleet):
                return fleet
            await asyncio.sleep(0.02)


async def test_a_request_travels_from_queue_to_decode() -> None:
    async with router() as address, FakeWorker(address, "prefill-1"):
        client = RouterClient(address)
        async with await client.place(want()) as lease:
            queued = await hear(lease)
            assert isinstance(queued, Queued)
            assert queued.ahead == 0
            async with FakeWorker(address, "decode-1", life=7):
                at = await hear(lease)
                assert isinstance(at, PrefillAt)
                assert at.rank.worker_id == "prefill-1"
                assert at.reasons
                await lease.progress(Phase.PREFILL, 10, last_chunk_started=True)
                then = await hear(lease)
                assert isinstance(then, DecodeAt)
                assert (then.rank.address, then.rank.incarnation) == ("decode-1:1", 7)
                fleet = await status(address, SOON_S)
                assert (fleet.leases, fleet.ready) == (1, True)
        await eventually(address, lambda fleet: fleet.leases == 0)
        await client.close()


async def test_requests_go_to_the_least_loaded_worker() -> None:
    async with (
        router() as address,
        FakeWorker(address, "hybrid-1") as busy,
        FakeWorker(address, "hybrid-2"),
    ):
        for tokens in range(1, 4):  # one report alone could be of work that was closed since
            busy.report(running=3, free_slots=1, tokens_total=tokens)
            await eventually(
                address, lambda f, n=tokens: max(m.load.tokens_total for m in f.members) == n
            )
        client = RouterClient(address)
        leases = [await client.place(want()) for _ in range(2)]
        chosen = [await hear(lease) for lease in leases]
        assert all(isinstance(c, SkipTo) and c.rank.worker_id == "hybrid-2" for c in chosen)
        for lease in leases:
            await lease.close()
        await client.close()


async def test_announced_blocks_draw_their_prompt_and_a_rejoin_brings_them_again() -> None:
    prompt = tuple(BlockHash(bytes([n]) * 16) for n in range(1, 31))
    want_it = want(prompt_len=490, max_new=7, hashes=prompt)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    holder, other = FakeWorker(listen, "hybrid-1"), FakeWorker(listen, "hybrid-2")
    for block in prompt:
        holder.blocks.stored(block)
    client = RouterClient(listen)
    for _ in range(2):  # a router, and its successor, which starts knowing nothing
        async with router(listen) as address:
            for worker in (holder, other):
                await worker.start()
            await _holds(client, want_it, "hybrid-1")
            holder.blocks.removed(prompt[0])  # the whole chain is of no use
            other.blocks.stored(prompt[0])
            for block in prompt[1:]:
                other.blocks.stored(block)
            for worker in (holder, other):
                worker.report()
            await _holds(client, want_it, "hybrid-2")
            assert (await status(address, SOON_S)).ready
            for worker in (holder, other):
                await worker.stop()
        holder, other = FakeWorker(listen, "hybrid-1"), FakeWorker(listen, "hybrid-2")
        for block in prompt:
            holder.blocks.stored(block)
    await client.close()


async def _holds(client: RouterClient, want_it: Want, worker: str) -> None:
    """Wait until the router says that a worker has the prompt."""
    async with asyncio.timeout(SOON_S):
        while True:
            async with await client.place(want_it) as lease:
                at = await hear(lease)
            assert isinstance(at, SkipTo)
            if at.rank.worker_id == worker and " of 490 tokens" in at.reasons[0]:
                computed = at.reasons[0].partition(" for ")[2].partition(" ")[0]
                if int(computed) == 10:
                    return
            await asyncio.sleep(0.05)


async def test_a_full_house_queues_and_a_closed_lease_makes_room() -> None:
    async with router() as address, FakeWorker(address, "hybrid-1", slots=1):
        client = RouterClient(address)
        first = await client.place(want())
        assert isinstance(await hear(first), SkipTo)
        second = await client.place(want())
        assert isinstance(await hear(second), Queued)
        await first.close()
        assert isinstance(await hear(second), SkipTo)
        await second.close()
        await client.close()


async def test_a_passed_deadline_is_refused_with_a_time_to_come_back() -> None:
    # With blocks unsaid nobody can foretell that no row will be free in time.
    async with router() as address, FakeWorker(address, "hybrid-1", slots=1, blocks=0):
        client = RouterClient(address)
        async with await client.place(want()) as first:
            await hear(first)
            async with await client.place(want(deadline_s=0.3)) as late:
                assert isinstance(await hear(late), Queued)
                with pytest.raises(Overloaded) as refusal:
                    await hear(late)
        assert refusal.value.code == "queue_timeout"
        assert refusal.value.retry_after_s is not None
        await client.close()


async def test_again_is_answered_with_the_new_attempt_elsewhere() -> None:
    async with (
        router() as address,
        FakeWorker(address, "hybrid-1"),
        FakeWorker(address, "hybrid-2"),
    ):
        client = RouterClient(address)
        async with await client.place(want()) as lease:
            first = await hear(lease)
            assert isinstance(first, SkipTo)
            await lease.again(2, first.rank.worker_id, "worker_lost", Have.TOKENS)
            second = await hear(lease)
        assert isinstance(second, SkipTo)
        assert second.attempt == 2
        assert second.rank.worker_id != first.rank.worker_id
        await client.close()


async def test_answers_to_an_attempt_that_is_over_are_dropped() -> None:
    async with router() as address, FakeWorker(address, "hybrid-1"):
        client = RouterClient(address)
        async with await client.place(want()) as lease:
            # Not heard before attempt 2 opens: the answer to attempt 1 waits unread.
            await eventually(address, lambda fleet: fleet.members[0].leases == 1)
            await lease.again(2, "", "changed my mind", Have.NOTHING)
            at = await hear(lease)
        assert isinstance(at, SkipTo)
        assert at.attempt == 2
        await client.close()


async def test_a_worker_that_dies_is_no_member_and_its_place_is_taken() -> None:
    async with router() as address, FakeWorker(address, "hybrid-1"):
        async with FakeWorker(address, "hybrid-2"):
            fleet = await status(address, SOON_S)
            assert {m.join.member_id for m in fleet.members} == {"hybrid-1", "hybrid-2"}
        fleet = await eventually(address, lambda fleet: len(fleet.members) == 1)
        assert fleet.ready
        client = RouterClient(address)
        async with await client.place(want()) as lease:
            at = await hear(lease)
            assert isinstance(at, SkipTo)
            assert at.rank.worker_id == "hybrid-1"
        await client.close()


async def test_members_hear_of_every_change_of_the_fleet() -> None:
    async with router() as address, FakeWorker(address, "prefill-1") as first:
        assert first.reporter.fleet is not None
        assert not first.reporter.fleet.ready
        change = asyncio.ensure_future(first.reporter.fleet_changed())
        await asyncio.sleep(0)
        async with FakeWorker(address, "decode-1"):
            async with asyncio.timeout(SOON_S):
                fleet = await change
            assert fleet.ready
            assert fleet.namespace == b"n" * 16


async def test_a_restarted_router_finds_its_members_again_and_leases_end_lost() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    client = RouterClient(listen)
    worker = FakeWorker(listen, "hybrid-1")
    async with router(listen):
        await worker.start()
        lease = await client.place(want())
        assert isinstance(await hear(lease), SkipTo)
    with pytest.raises(Lost):
        await hear(lease)
    await lease.close()
    async with router(listen):
        resume = Resume(Phase.DECODE, decode_worker=WorkerId("hybrid-1"), tokens=3)
        async with await client.place(want(attempt=2, resume=resume)):
            await eventually(listen, lambda fleet: [m.leases for m in fleet.members] == [1])
        await worker.stop()
    await client.close()


async def test_who_stops_waiting_for_an_answer_keeps_the_lease() -> None:
    async with router() as address:
        client = RouterClient(address)
        async with await client.place(want()) as lease:
            assert isinstance(await hear(lease), Queued)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(lease)
            async with FakeWorker(address, "hybrid-1"):
                assert isinstance(await hear(lease), SkipTo)
        await client.close()


async def test_a_router_that_is_not_there_is_lost_within_the_deadline() -> None:
    client = RouterClient("127.0.0.1:1")
    with pytest.raises(Lost):
        await client.place(want(deadline_s=0.2))
    with pytest.raises(Lost):
        await status("127.0.0.1:1", SOON_S)
    await client.close()


@pytest.mark.parametrize(
    "message",
    [
        pb.PlaceUp(),
        pb.PlaceUp(progress=pb.Progress(phase="decode")),
        pb.PlaceUp(want=pb.Want(request_id="r", attempt=1, prompt_len=0, max_new=1)),
        pb.PlaceUp(want=pb.Want(request_id="r", attempt=1, prompt_len=3, max_new=1, hashes=b"x")),
        pb.PlaceUp(
            want=pb.Want(
                request_id="r", attempt=1, prompt_len=3, max_new=1, resume=pb.Resume(phase="?")
            )
        ),
    ],
    ids=["empty", "not want", "no prompt", "half a hash", "unknown phase"],
)
async def test_a_malformed_message_ends_its_lease_and_no_other(message: pb.PlaceUp) -> None:
    ups: asyncio.Queue[pb.PlaceUp] = asyncio.Queue()

    async def send() -> AsyncIterator[pb.PlaceUp]:
        while True:
            yield await ups.get()

    async with router() as address, connect(address) as channel:
        call = pb_grpc.RouterStub(channel).Place(send())
        ups.put_nowait(wire.place_up_to_pb(1, want()))
        message.lease = 2
        ups.put_nowait(message)
        async with asyncio.timeout(SOON_S):
            said = [await call.read() for _ in range(2)]
            assert [(down.lease, down.WhichOneof("body")) for down in said] == [
                (1, "queued"),
                (2, "ended"),
            ]
            assert said[1].ended.kind == "BadRequest"
            assert (await status(address, SOON_S)).leases == 1
            ups.put_nowait(wire.place_up_to_pb(1, want()))  # comes once
            down = await call.read()
        assert (down.lease, down.ended.kind) == (1, "BadRequest")
        await eventually(address, lambda fleet: fleet.leases == 0)


async def test_an_unknown_error_costs_its_lease_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_(self: Dispatcher, want: Want, now_s: float) -> int:
        if want.request_id == "bad":
            raise KeyError(want.request_id)
        return opened(self, want, now_s)

    opened = Dispatcher.open
    monkeypatch.setattr(Dispatcher, "open", open_)
    async with router() as address:
        client = RouterClient(address)
        async with await client.place(want()) as lease:
            assert isinstance(await hear(lease), Queued)
            with pytest.raises(Broken):
                await client.place(want(request_id="bad"))
            async with FakeWorker(address, "hybrid-1"):
                assert isinstance(await hear(lease), SkipTo)
        await client.close()


async def test_a_second_process_of_one_name_takes_over_and_the_first_is_told() -> None:
    async with router() as address, FakeWorker(address, "hybrid-1"):
        channel = connect(address)
        try:
            ups: asyncio.Queue[pb.ReportUp] = asyncio.Queue()

            async def send() -> AsyncIterator[pb.ReportUp]:
                while True:
                    yield await ups.get()

            join = pb.Join(member_id="hybrid-1", role="hybrid", incarnation=2)
            ups.put_nowait(pb.ReportUp(join=join))
            call = pb_grpc.RouterStub(channel).Report(send())
            async with asyncio.timeout(SOON_S):
                down = await call.read()
            assert [m.join.incarnation for m in down.fleet.members] == [2]
            # The first one's next report ends its stream; it joins again and wins in turn.
            await eventually(
                address, lambda fleet: [m.join.incarnation for m in fleet.members] == [1]
            )
            ups.put_nowait(pb.ReportUp(load=pb.Load()))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                async with asyncio.timeout(SOON_S):
                    while True:
                        await call.read()
            assert "another process joined" in (refusal.value.details() or "")
        finally:
            await channel.close()


async def test_who_watches_hears_what_was_decided_and_how_many_workers_there_should_be() -> None:
    async with router() as address, FakeWorker(address, "hybrid-1") as worker:
        client = RouterClient(address)
        async with await client.place(want(request_id="req_1")) as lease:
            await hear(lease)
            fleet = await status(address, SOON_S)
        await client.close()
        assert (fleet.policy, fleet.desired) == ("cost", {"hybrid": 1})
        (decided,) = fleet.decisions
        assert (decided.request_id, decided.worker) == ("req_1", "hybrid-1")
        assert decided.phase is Phase.PREFILL and "the best of 1" in decided.reasons[1]
        heard = worker.reporter.fleet
        assert heard is not None and heard.decisions == ()  # members need not know


class Deaf(StreamRegistry):
    """Hears no reports when the test says so."""

    is_deaf = False

    def drop_silent(self, now_s: float) -> list[Record]:
        self.is_blind = self.is_deaf
        return []


async def test_members_are_told_when_the_router_begins_to_decide_without_reports() -> None:
    registry = Deaf()
    service = RouterService(Dispatcher(registry), registry, Metrics("router"))
    async with (
        Server("127.0.0.1:0", [service.register], grace_s=0) as server,
        FakeWorker(server.address, "hybrid-1") as worker,
        asyncio.timeout(SOON_S),
    ):
        for is_deaf, policy in ((True, "own_ledger"), (False, "cost")):
            change = asyncio.ensure_future(worker.reporter.fleet_changed())
            await asyncio.sleep(0)
            registry.is_deaf = is_deaf
            worker.report()
            assert (await change).policy == policy
    service.stop()
