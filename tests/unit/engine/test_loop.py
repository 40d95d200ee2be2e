import asyncio
import threading

import pytest
import torch

from diptych.core.errors import BadRequest, Broken, Lost
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.step import Chunk

from .conftest import FakeRunner, fake_engine, make_generation, make_ledger


async def test_tokens_come_out_in_order_and_the_sequence_ends() -> None:
    async with fake_engine(FakeRunner()) as it:
        await it.engine.submit(make_generation("a", max_new=5), hold=False)
        await it.finished("a")
        assert it.tokens("a") == (7,) * 5
        assert [output.step for output in it.outputs] == [0, 0, 1, 2, 3, 4]
        assert it.outputs[0].chunks == (Chunk(Key("a", 1), 0, last_chunk_started=True),)
        assert it.engine.counts().tokens_total == 5


async def test_a_request_that_can_never_fit_is_refused_to_its_caller() -> None:
    async with fake_engine(FakeRunner(), make_ledger(num_blocks=2)) as it:
        with pytest.raises(BadRequest, match="may need"):
            await it.engine.submit(make_generation(prompt_len=100), hold=False)


async def test_requests_that_arrive_during_a_step_join_the_next_one() -> None:
    runner = FakeRunner()
    async with fake_engine(runner) as it:
        runner.may_go_on.clear()
        await it.engine.submit(make_generation("a", max_new=3), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        submits = asyncio.gather(
            *(it.engine.submit(make_generation(name, max_new=2), hold=False) for name in "bc")
        )
        await asyncio.sleep(0)
        runner.may_go_on.set()
        await submits
        await it.finished("a", "b", "c")
        assert [len(plan.pieces) for plan in runner.plans] == [1, 3, 3]


async def test_dropping_waits_for_the_step_under_way_and_silences_the_key() -> None:
    runner = FakeRunner()
    async with fake_engine(runner) as it:
        runner.may_go_on.clear()
        await it.engine.submit(make_generation("a", max_new=100), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        dropping = asyncio.create_task(it.engine.drop(Key("a", 1)))
        await asyncio.sleep(0.05)
        assert not dropping.done()
        runner.may_go_on.set()
        assert await dropping
        heard = len(it.rows("a"))
        assert it.engine.counts().free_blocks == 64
        await it.engine.submit(make_generation("b"), hold=False)
        await it.finished("b")
        assert len(it.rows("a")) == heard
        assert not await it.engine.drop(Key("a", 1))


async def test_dropping_works_in_every_state() -> None:
    runner = FakeRunner(paced=True)
    async with fake_engine(runner, make_ledger(num_slots=3)) as it:
        assert not await it.engine.drop(Key("nobody", 1))
        runner.permits.release()
        await it.engine.submit(make_generation("held"), hold=True)
        await it.until(lambda: it.rows("held"))
        assert await it.engine.held(Key("held", 1)) is not None
        assert await it.engine.reserve(Key("reserved", 1), 20) is not None
        runner.permits.release()
        await it.engine.submit(make_generation("running", max_new=200), hold=False)
        await it.until(lambda: it.rows("running"))
        await runner.between_steps(it.engine.submit(make_generation("waiting"), hold=False))
        counts = it.engine.counts()
        assert (counts.held, counts.reserved, counts.running, counts.waiting) == (1, 1, 1, 1)
        assert await runner.between_steps(it.engine.reserve(Key("later", 1), 20)) is None
        for name in ("waiting", "held", "reserved", "running"):
            assert await runner.between_steps(it.engine.drop(Key(name, 1)))


async def test_a_queue_that_cannot_move_waits_without_spinning_until_pages_come_back() -> None:
    runner = FakeRunner()
    async with fake_engine(runner, make_ledger(num_slots=1)) as it:
        await it.engine.reserve(Key("reserved", 1), 20)
        await it.engine.submit(make_generation("a"), hold=False)
        await asyncio.sleep(0.05)
        assert it.engine.counts().waiting == 1 and it.engine.idle_s() == 0
        assert not runner.plans
        await it.engine.drop(Key("reserved", 1))
        await it.finished("a")


async def test_a_broken_step_ends_its_rows_with_a_message_and_the_engine_goes_on() -> None:
    runner = FakeRunner(breaks=True)
    async with fake_engine(runner) as it:
        await it.engine.submit(make_generation("a"), hold=False)
        await it.finished("a")
        assert it.rows("a")[-1].finish is Finish.ERROR and "broke" in it.rows("a")[-1].message
        runner.breaks = False
        await it.engine.submit(make_generation("b"), hold=False)
        await it.finished("b")
        assert it.tokens("b") == (7,) * 4


async def test_one_bad_row_does_not_touch_its_neighbours() -> None:
    runner = FakeRunner(outcome=lambda name: Broken("bad") if name == "a" else 7)
    async with fake_engine(runner) as it:
        for name in "ab":
            await it.engine.submit(make_generation(name), hold=False)
        await it.finished("a", "b")
        assert it.rows("a")[-1].finish is Finish.ERROR
        assert it.rows("b")[-1].finish is Finish.LENGTH


async def test_idle_is_how_long_the_engine_has_not_answered() -> None:
    runner = FakeRunner()
    async with fake_engine(runner) as it:
        assert it.engine.idle_s() < 1
        runner.may_go_on.clear()
        await it.engine.submit(make_generation("a"), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        before = it.engine.idle_s()
        await asyncio.sleep(0.05)
        assert it.engine.idle_s() >= before + 0.05
        runner.may_go_on.set()
        await it.finished("a")
        await it.until(lambda: it.engine.counts().running == 0)


@pytest.mark.parametrize("verb", ["submit", "reserve"])
async def test_a_caller_that_leaves_before_the_answer_leaves_nothing_behind(verb: str) -> None:
    runner = FakeRunner()
    async with fake_engine(runner) as it:
        runner.may_go_on.clear()
        await it.engine.submit(make_generation("a"), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        if verb == "submit":
            call = it.engine.submit(make_generation("b", max_new=200), hold=False)
        else:
            call = it.engine.reserve(Key("b", 1), 20)
        leaving = asyncio.create_task(call)
        await asyncio.sleep(0)
        leaving.cancel()
        runner.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert not await it.engine.drop(Key("b", 1))
        await it.finished("a")


async def test_after_stop_every_call_says_so() -> None:
    async with fake_engine(FakeRunner()) as it:
        await it.engine.submit(make_generation("a"), hold=False)
        await it.finished("a")
    with pytest.raises(Lost, match="stopped"):
        await it.engine.submit(make_generation("b"), hold=False)
    await it.engine.stop()


async def test_stop_ends_the_engine_between_two_steps_and_refuses_what_is_queued() -> None:
    runner = FakeRunner()
    async with fake_engine(runner) as it:
        runner.may_go_on.clear()
        await it.engine.submit(make_generation("a", max_new=1), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        stopping = asyncio.create_task(it.engine.stop())
        await asyncio.sleep(0)
        late = asyncio.create_task(it.engine.submit(make_generation("b"), hold=False))
        await asyncio.sleep(0)
        runner.may_go_on.set()
        await stopping
        with pytest.raises(Lost, match="stopped"):
            await late
        assert it.rows("a")[-1].finish is Finish.LENGTH


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_bug_in_the_books_stops_the_engine_and_nobody_waits_for_it() -> None:
    ledger = make_ledger()
    ledger.commit = None  # type: ignore[assignment, method-assign]
    runner = FakeRunner()
    with pytest.raises(Lost, match="stopped"):
        async with fake_engine(runner, ledger) as it:
            runner.may_go_on.clear()
            await it.engine.submit(make_generation("a"), hold=False)
            await asyncio.to_thread(runner.entered.wait)
            waiting = asyncio.create_task(it.engine.drop(Key("a", 1)))
            await asyncio.sleep(0)
            runner.may_go_on.set()
            await waiting


async def test_the_engine_computes_on_one_thread_of_its_own() -> None:
    seen: list[tuple[str, int]] = []

    def look(name: str) -> int:
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return 7

    torch.set_num_threads(1)
    async with fake_engine(FakeRunner(outcome=look)) as it:
        await it.engine.submit(make_generation("a", max_new=1), hold=False)
        await it.finished("a")
    assert seen == [("engine", 1)]
