"""Sessions between gateways and workers: ends, silence, cuts, tombstones, frames."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc.aio
import pytest

from diptych.contract import worker_pb2 as pb
from diptych.contract.worker_pb2_grpc import (
    WorkerServicer,
    WorkerStub,
    add_WorkerServicer_to_server,
)
from diptych.core.errors import (
    CANCELLED,
    BadRequest,
    Broken,
    DiptychError,
    Expired,
    Lost,
    Misconfigured,
    Overloaded,
    Refused,
)
from diptych.core.ids import Incarnation, Key, Rank, WorkerId
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row, StepOutput
from diptych.decode_service.client import DecodeClient
from diptych.prefill_service.client import Accepted, PrefillClient
from diptych.telemetry.traces import Span, Trace, traceparent_var
from diptych.testing.clock import settle
from diptych.testing.scripted import Script, continuation
from diptych.testing.workers import decode_worker, prefill_worker
from diptych.transport.channel import connect
from diptych.transport.errors import from_rpc
from diptych.transport.server import Server
from diptych.transport.session import SessionPool
from diptych.transport.session_server import Identity, SessionServer
from diptych.transport.wire import key_to_pb

IDENTITY = Identity(WorkerId("worker-1"), Incarnation(77), b"n" * 16)


def request(name: str = "r", *, length: int = 21, max_new: int = 6, attempt: int = 1) -> Generation:
    prompt = tuple(range(3, 3 + length))
    return Generation(Key(name, attempt), prompt, Sampling(seed=5), max_new, scope=b"s" * 16)


@asynccontextmanager
async def pool_of(gateway_id: str = "gateway-1", **limits: float) -> AsyncIterator[SessionPool]:
    pool = SessionPool(gateway_id, **limits)
    yield pool
    await pool.close()


class Recorder:
    """A handler that only remembers."""

    def __init__(self) -> None:
        self.served: list[Key] = []
        self.released: list[Key] = []

    async def serve(self, key: Key, up: pb.SessionUp) -> None:
        self.served.append(key)

    async def release(self, key: Key) -> None:
        self.released.append(key)


@asynccontextmanager
async def bare_server(
    **options: object,
) -> AsyncIterator[tuple[SessionServer, Recorder, Rank]]:
    recorder = Recorder()
    sessions = SessionServer(IDENTITY, recorder, lambda: 0.0, **options)
    server = Server("127.0.0.1:0", [lambda s: add_WorkerServicer_to_server(sessions, s)], grace_s=0)
    async with server:
        yield sessions, recorder, Rank(IDENTITY.worker_id, server.address, IDENTITY.incarnation)


def reserve(key: Key) -> pb.SessionUp:
    return pb.SessionUp(reserve=pb.Reserve(key=key_to_pb(key), capacity=8, deadline_ms=5000))


async def test_a_step_is_one_frame_for_each_gateway() -> None:
    async with bare_server() as (sessions, recorder, rank), pool_of() as one, pool_of("b") as two:
        keys = [Key(f"r{i}", 1) for i in range(4)]
        talks = [await (one if i < 3 else two).converse(rank, key) for i, key in enumerate(keys)]
        for talk in talks:
            talk.send(reserve(talk.key))
        await settle(lambda: len(recorder.served) == 4)
        frames: list[pb.SessionDown] = []
        for session in sessions._sessions:
            put = session.outbox.put
            session.outbox.put = lambda down, put=put: (frames.append(down), put(down))[1]
        sessions.publish(StepOutput(9, tuple(Row(key, (5, 6)) for key in keys)))
        assert sorted(len(f.step.rows) for f in frames) == [1, 3]
        for talk in talks:
            row = await talk.receive()
            assert isinstance(row, pb.StepRow)
            assert row.key.request_id == talk.key.request_id


async def test_the_trace_of_a_request_goes_with_it_to_the_worker() -> None:
    told: list[tuple[Span, str]] = []

    class Ours:
        def begin(self, name: str, headers: Mapping[str, str]) -> Trace:
            raise AssertionError("a worker begins no trace")

        def tell(self, span: Span, traceparent: str) -> None:
            told.append((span, traceparent))

        def close(self) -> None: ...

    async def ask(pool: SessionPool, rank: Rank, name: str, parent: str) -> None:
        traceparent_var.set(parent)
        talk = await pool.converse(rank, Key(name, 2))
        talk.send(reserve(talk.key))

    async with bare_server(tracer=Ours()) as (_, recorder, rank), pool_of() as pool:
        for name, parent in (("traced", "00-ab-cd-01"), ("not", "")):
            await asyncio.create_task(ask(pool, rank, name, parent))
        await settle(lambda: len(recorder.served) == 2)
    [(span, parent)] = told
    assert (span.name, parent) == ("worker.reserve", "00-ab-cd-01")
    assert span.attributes["diptych.request_id"] == "traced"
    assert span.attributes["diptych.attempt"] == 2
    assert span.began_s <= span.ended_s


async def test_a_row_with_finish_ends_the_request_at_the_worker() -> None:
    async with bare_server() as (sessions, recorder, rank), pool_of() as pool:
        talk = await pool.converse(rank, Key("r", 1))
        talk.send(reserve(talk.key))
        await settle(lambda: sessions.num_requests == 1)
        sessions.publish(StepOutput(0, (Row(talk.key, (4,), Finish.STOP),)))
        assert sessions.num_requests == 0
        assert recorder.released == []


async def test_hello_with_another_incarnation_is_refused() -> None:
    async with bare_server() as (_, _, rank), pool_of() as pool:
        with pytest.raises(Refused) as caught:
            await pool.session(replace(rank, incarnation=Incarnation(78)))
        assert caught.value.code == "wrong_incarnation"


async def test_a_worker_with_another_name_is_refused() -> None:
    async with bare_server() as (_, _, rank), pool_of() as pool:
        with pytest.raises(Refused, match="worker-1 now"):
            await pool.session(replace(rank, worker_id=WorkerId("worker-2")))


async def test_a_session_that_does_not_begin_with_hello_is_refused() -> None:
    async with bare_server() as (_, _, rank):
        channel = connect(rank.address)
        call = WorkerStub(channel).Session()
        await call.write(reserve(Key("r", 1)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert "Hello" in from_rpc(caught.value).message
        await channel.close()


async def test_cancel_before_arrival_leaves_a_tombstone() -> None:
    async with prefill_worker() as worker, pool_of() as pool:
        session = await pool.session(worker.rank)
        session.send(pb.SessionUp(cancel=pb.Cancel(request_id="r", up_to_attempt=2)))
        for attempt in (1, 2):
            call = PrefillClient(pool).open(worker.rank, request(attempt=attempt), 3.0)
            with pytest.raises(Refused) as caught:
                [event async for event in call]
            assert caught.value.code == CANCELLED
        assert worker.is_at_baseline()
        third = PrefillClient(pool).open(worker.rank, request(attempt=3), 3.0)
        assert isinstance(await anext(aiter(third)), Accepted)
        await third.cancel()


async def test_a_tombstone_is_gone_after_the_time_of_a_lease() -> None:
    now_s = [100.0]
    async with bare_server(clock=lambda: now_s[0]) as (_, recorder, rank), pool_of() as pool:
        session = await pool.session(rank)
        session.send(pb.SessionUp(cancel=pb.Cancel(request_id="r", up_to_attempt=1)))
        talk = await pool.converse(rank, Key("r", 1))
        talk.send(reserve(talk.key))
        with pytest.raises(Refused):
            await talk.receive()
        now_s[0] += 31
        talk = await pool.converse(rank, Key("r", 1))
        talk.send(reserve(talk.key))
        await settle(lambda: recorder.served == [Key("r", 1)])


async def test_a_later_attempt_replaces_an_earlier_one() -> None:
    async with bare_server() as (sessions, recorder, rank), pool_of() as pool:
        for attempt in (1, 2):
            talk = await pool.converse(rank, Key("r", attempt))
            talk.send(reserve(talk.key))
        await settle(lambda: recorder.released == [Key("r", 1)])
        assert sessions.num_requests == 1
        late = await pool.converse(rank, Key("r", 1))
        late.send(reserve(late.key))
        with pytest.raises(Refused):
            await late.receive()


async def test_f11_a_gateway_that_ends_frees_everything_it_had() -> None:
    script = Script(step_s=0.01)
    async with prefill_worker(script=script) as prefill, decode_worker(script=script) as decode:
        async with pool_of() as pool:
            held = PrefillClient(pool).open(prefill.rank, request("held"), 3.0)
            assert len([event async for event in held]) == 3
            await DecodeClient(pool).reserve(decode.rank, Key("reserved", 1), 30, 30.0)
            running = DecodeClient(pool).open(decode.rank, Key("running", 1))
            await running.start(request("running", max_new=1500), None, 5.0)
            first = await anext(aiter(running))
            assert first.finish is None
            assert not prefill.is_at_baseline() and not decode.is_at_baseline()
        await settle(lambda: prefill.is_at_baseline() and decode.is_at_baseline())
        assert len(prefill.service.holdings.tickets) == 0
        assert decode.service.num_reservations == 0
        assert decode.service.sessions.num_sessions == 0


async def test_a_client_that_leaves_stops_the_decode_within_steps() -> None:
    async with decode_worker(script=Script(step_s=0.01)) as decode, pool_of() as pool:
        call = DecodeClient(pool).open(decode.rank, Key("r", 1))
        await call.start(request(max_new=1500), None, 5.0)
        async for _ in call:
            break
        await call.cancel()
        await settle(decode.is_at_baseline, 0.5)


async def test_p5_a_prompt_given_up_in_mid_prefill_stops_at_the_next_chunk() -> None:
    script = Script(step_s=0.02, chunk_tokens=16)
    async with prefill_worker(script=script) as prefill, pool_of() as pool:
        call = PrefillClient(pool).open(prefill.rank, request(length=2000), 10.0)
        async for event in call:
            if not isinstance(event, Accepted):
                break
        await call.cancel()
        await settle(prefill.is_at_baseline, 0.5)


class Mute(WorkerServicer):
    """A worker that greets and then says nothing."""

    async def Session(self, requests: AsyncIterator[pb.SessionUp], context: object) -> None:
        welcome = pb.Welcome(worker_id="worker-1", incarnation=77)
        await context.write(pb.SessionDown(welcome=welcome))
        async for _ in requests:
            pass


async def test_f4_a_silent_worker_is_lost_within_the_limit() -> None:
    mute = Mute()
    server = Server("127.0.0.1:0", [lambda s: add_WorkerServicer_to_server(mute, s)], grace_s=0)
    async with server, pool_of(silence_s=0.3) as pool:
        rank = Rank(WorkerId("worker-1"), server.address, Incarnation(77))
        call = PrefillClient(pool).open(rank, request(), 10.0)
        async with asyncio.timeout(2):
            with pytest.raises(Lost) as caught:
                [event async for event in call]
        assert caught.value.code == "silent"
        assert pool.num_sessions == 0


async def test_beats_keep_a_quiet_session_alive() -> None:
    async with bare_server(beat_s=0.05) as (_, _, rank), pool_of(silence_s=0.3) as pool:
        session = await pool.session(rank)
        await asyncio.sleep(0.6)
        assert session.is_alive


async def test_a_worker_whose_engine_hangs_is_lost() -> None:
    async with bare_server(beat_s=0.05) as (sessions, _, rank), pool_of() as pool:
        talk = await pool.converse(rank, Key("r", 1))
        sessions._idle_s = lambda: 10.5
        with pytest.raises(Lost) as caught:
            async with asyncio.timeout(2):
                await talk.receive()
        assert caught.value.code == "engine_hung"


async def test_a_worker_that_dies_is_lost_at_once_and_found_again() -> None:
    async with pool_of() as pool:
        async with decode_worker(script=Script(step_s=0.01)) as decode:
            call = DecodeClient(pool).open(decode.rank, Key("r", 1))
            await call.start(request(max_new=1500), None, 5.0)
            rows = aiter(call)
            await anext(rows)
            await decode.server.stop(0)
            with pytest.raises(Lost):
                async with asyncio.timeout(1):
                    while True:
                        await anext(rows)
        with pytest.raises(Lost):
            await pool.session(decode.rank)
        async with decode_worker() as second:
            call = DecodeClient(pool).open(second.rank, Key("r", 2))
            generation = request(attempt=2)
            await call.start(generation, None, 5.0)
            tokens = [token async for row in call for token in row.token_ids]
            assert tokens == continuation(generation)


async def test_sessions_that_are_not_used_are_closed() -> None:
    async with bare_server(beat_s=0.05) as (sessions, _, rank), pool_of(unused_s=0.2) as pool:
        await pool.session(rank)
        await settle(lambda: pool.num_sessions == 0 and sessions.num_sessions == 0)


async def test_f24_a_gateway_that_does_not_read_is_cut_and_its_requests_released() -> None:
    async with bare_server(unread_bytes=1 << 20) as (sessions, recorder, rank):
        channel = connect(rank.address)
        call = WorkerStub(channel).Session()
        await call.write(pb.SessionUp(hello=pb.Hello(gateway_id="slow")))
        await call.write(reserve(Key("r", 1)))
        await settle(lambda: recorder.served == [Key("r", 1)])
        for step in range(600):
            sessions.publish(StepOutput(step, (Row(Key("r", 1), tuple(range(4000))),)))
            await asyncio.sleep(0)
        await settle(lambda: sessions.num_sessions == 0)
        await settle(lambda: recorder.released == [Key("r", 1)])
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # once it reads, it learns why
            while await call.read() is not grpc.aio.EOF:
                pass
        assert from_rpc(caught.value).code == "slow_reader"
        await channel.close()


async def test_the_unread_limit_is_8_mib() -> None:
    sessions = SessionServer(IDENTITY, Recorder(), lambda: 0.0)
    assert sessions._unread_bytes == 8 << 20


async def test_a_prompt_past_its_deadline_is_expired_and_freed() -> None:
    async with prefill_worker(script=Script(step_s=0.3)) as prefill, pool_of() as pool:
        call = PrefillClient(pool).open(prefill.rank, request(), 0.1)
        with pytest.raises(Expired):
            [event async for event in call]
        await settle(prefill.is_at_baseline)


async def test_a_start_past_its_deadline_is_expired_and_freed() -> None:
    async with decode_worker(script=Script(step_s=0.3)) as decode, pool_of() as pool:
        call = DecodeClient(pool).open(decode.rank, Key("r", 1))
        await call.start(request(), None, 0.1)
        with pytest.raises(Expired):
            [row async for row in call]
        await settle(decode.is_at_baseline)


async def test_a_row_that_fails_fails_its_request_only() -> None:
    async with decode_worker() as decode, pool_of() as pool:
        decode.engine.fail_row = lambda key: "boom" if key.request_id == "bad" else None
        calls = {
            name: DecodeClient(pool).open(decode.rank, Key(name, 1)) for name in ("bad", "good")
        }
        for name, call in calls.items():
            await call.start(request(name), None, 5.0)
        with pytest.raises(DiptychError, match="boom"):
            [row async for row in calls["bad"]]
        tokens = [token async for row in calls["good"] for token in row.token_ids]
        assert tokens == continuation(request("good"))
        await settle(decode.is_at_baseline)


async def test_what_contradicts_itself_is_the_callers_mistake() -> None:
    async with decode_worker() as decode, pool_of() as pool:
        decode.engine.fail_row = lambda key: "no token is left"
        decode.engine.blames_callers = True
        call = DecodeClient(pool).open(decode.rank, Key("r", 1))
        await call.start(request("r"), None, 5.0)
        with pytest.raises(BadRequest, match="no token is left") as caught:
            [row async for row in call]
        assert caught.value.code == "conflicting_parameters"
        await settle(decode.is_at_baseline)


async def test_a_bug_while_serving_fails_that_request_as_broken() -> None:
    async with bare_server() as (_, recorder, rank), pool_of() as pool:

        async def stumble(key: Key, up: pb.SessionUp) -> None:
            raise RuntimeError("a secret")

        recorder.serve = stumble  # type: ignore[method-assign]
        talk = await pool.converse(rank, Key("r", 1))
        talk.send(reserve(talk.key))
        with pytest.raises(Broken) as caught:
            await talk.receive()
        assert "a secret" not in caught.value.message
        await settle(lambda: recorder.released == [Key("r", 1)])


async def test_draining_refuses_new_requests_and_waits_for_old_ones() -> None:
    async with decode_worker(script=Script(step_s=0.01)) as decode, pool_of() as pool:
        old = DecodeClient(pool).open(decode.rank, Key("old", 1))
        await old.start(request("old", max_new=20), None, 5.0)
        rows = aiter(old)
        await anext(rows)
        draining = asyncio.create_task(decode.service.sessions.drain(3.0))
        await asyncio.sleep(0)
        new = DecodeClient(pool).open(decode.rank, Key("new", 1))
        await new.start(request("new"), None, 5.0)
        with pytest.raises(Overloaded) as caught:
            [row async for row in new]
        assert caught.value.code == "draining"
        assert [row async for row in rows][-1].finish is Finish.LENGTH
        await draining
        await settle(lambda: decode.service.sessions.num_sessions == 0)


async def test_f21_a_worker_that_was_told_to_end_has_left_and_one_that_was_killed_is_lost() -> None:
    async with decode_worker(script=Script(step_s=0.01)) as decode, pool_of() as pool:
        for end, code in (
            (lambda: decode.service.sessions.drain(0.05), "worker_left"),
            (lambda: decode.server.stop(0), "worker_lost"),
        ):
            long = DecodeClient(pool).open(decode.rank, Key(code, 1))
            await long.start(request(code, max_new=400), None, 5.0)
            rows = aiter(long)
            await anext(rows)
            await end()
            with pytest.raises(Lost) as caught:
                [row async for row in rows]
            assert caught.value.code == code
            decode.service.sessions._is_stopping = False
            decode.service.sessions._closed.clear()


async def test_who_stands_aside_serves_what_comes_and_hands_back_what_stays_too_long() -> None:
    async with decode_worker(script=Script(step_s=0.01)) as decode, pool_of() as pool:
        sessions = decode.service.sessions
        sessions.stand_aside(True)
        assert sessions.is_draining
        short = DecodeClient(pool).open(decode.rank, Key("placed a moment before", 1))
        await short.start(request("placed a moment before"), None, 5.0)
        assert [row async for row in short][-1].finish is Finish.LENGTH
        long = DecodeClient(pool).open(decode.rank, Key("long", 1))
        await long.start(request("long", max_new=400), None, 5.0)
        rows = aiter(long)
        await anext(rows)
        sessions.stand_aside(True, limit_s=0.1)
        with pytest.raises(Overloaded) as caught:
            [row async for row in rows]
        assert caught.value.code == "draining"
        await settle(decode.is_at_baseline)
        sessions.stand_aside(False)
        assert not sessions.is_draining


async def test_a_worker_that_is_to_work_again_hands_nothing_back() -> None:
    async with decode_worker(script=Script(step_s=0.01)) as decode, pool_of() as pool:
        stream = DecodeClient(pool).open(decode.rank, Key("r", 1))
        await stream.start(request("r", max_new=40), None, 5.0)
        decode.service.sessions.stand_aside(True, limit_s=0.1)
        decode.service.sessions.stand_aside(False)
        assert [row async for row in stream][-1].finish is Finish.LENGTH


async def test_a_role_refuses_what_is_not_its_work() -> None:
    async with prefill_worker() as prefill, decode_worker() as decode, pool_of() as pool:
        with pytest.raises(Refused, match="prefill worker"):
            await DecodeClient(pool).reserve(prefill.rank, Key("r", 1), 10, 3.0)
        with pytest.raises(Refused, match="decode worker"):
            [e async for e in PrefillClient(pool).open(decode.rank, request(), 3.0)]


async def test_a_taken_port_names_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Misconfigured, match=address):
            await Server(address, []).start()


async def test_two_servers_never_share_a_port() -> None:
    async with Server("127.0.0.1:0", []) as first:
        with pytest.raises(Misconfigured):
            await Server(first.address, []).start()
