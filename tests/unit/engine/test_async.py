"""The engine's thread while a step is under way on the device's: commands, drops, ends."""

import asyncio

import pytest

from diptych.core.errors import Broken, Lost
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.engine.device import DeviceThread

from .conftest import FakeRunner, fake_engine, make_generation, make_ledger


async def test_commands_are_answered_while_a_step_is_under_way() -> None:
    runner = FakeRunner(paced=True)
    async with fake_engine(runner, device=DeviceThread()) as it:
        await it.engine.submit(make_generation("a", max_new=3), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        runner.permits.release(6)
        await it.finished("a")
        assert it.tokens("a") == (7,) * 3


async def test_drop_returns_when_no_step_touches_the_pages_any_more() -> None:
    runner = FakeRunner(paced=True)
    async with fake_engine(runner, device=DeviceThread()) as it:
        await it.engine.submit(make_generation("a", max_new=100), hold=False)
        runner.permits.release()  # one step; the next one is launched and waits
        await it.until(lambda: it.rows("a"))
        dropping = asyncio.create_task(it.engine.drop(Key("a", 1)))
        await asyncio.sleep(0.05)
        assert not dropping.done()
        runner.permits.release(2)
        assert await dropping
        counts, heard = it.engine.counts(), len(it.rows("a"))
        assert counts.free_blocks == counts.num_blocks and counts.running == 0
        await it.engine.submit(make_generation("b"), hold=False)
        runner.permits.release(9)
        await it.finished("b")
        assert len(it.rows("a")) == heard


async def test_dropping_what_no_step_holds_waits_for_nothing() -> None:
    async with fake_engine(FakeRunner(), device=DeviceThread()) as it:
        assert not await it.engine.drop(Key("nobody", 1))
        await it.engine.submit(make_generation("a"), hold=True)
        await it.until(lambda: it.rows("a"))
        assert await it.engine.held(Key("a", 1)) is not None
        assert await it.engine.drop(Key("a", 1))


async def test_a_sequence_that_is_held_is_in_no_later_step() -> None:
    runner = FakeRunner()
    async with fake_engine(runner, device=DeviceThread()) as it:
        await it.engine.submit(make_generation("held", max_new=9), hold=True)
        await it.engine.submit(make_generation("b", max_new=5), hold=False)
        await it.finished("b")
        names = [[p.request.key.request_id for p in plan.pieces] for plan in runner.plans]
        assert sum("held" in step for step in names) == 1
        assert await it.engine.drop(Key("held", 1))


async def test_stop_retires_the_step_under_way() -> None:
    runner = FakeRunner()
    async with fake_engine(runner, device=DeviceThread()) as it:
        runner.may_go_on.clear()
        await it.engine.submit(make_generation("a", max_new=1), hold=False)
        await asyncio.to_thread(runner.entered.wait)
        stopping = asyncio.create_task(it.engine.stop())
        await asyncio.sleep(0)
        late = asyncio.create_task(it.engine.drop(Key("a", 1)))
        await asyncio.sleep(0)
        runner.may_go_on.set()
        await stopping
        with pytest.raises(Lost, match="stopped"):
            await late
        assert it.rows("a")[-1].finish is Finish.LENGTH


async def test_a_bad_row_ends_its_sequence_alone_though_its_next_row_is_under_way() -> None:
    bad = FakeRunner(outcome=lambda name: Broken("bad") if name == "a" else 7)
    async with fake_engine(bad, make_ledger(), DeviceThread()) as it:
        for name in "ab":
            await it.engine.submit(make_generation(name), hold=False)
        await it.finished("a", "b")
        assert [row.finish for row in it.rows("a")] == [Finish.ERROR]
        assert it.tokens("b") == (7,) * 4


async def test_a_step_that_breaks_ends_its_rows_and_the_engine_goes_on() -> None:
    runner = FakeRunner(breaks_at=2)
    async with fake_engine(runner, device=DeviceThread()) as it:
        await it.engine.submit(make_generation("a", max_new=9), hold=False)
        await it.finished("a")
        assert it.tokens("a") == (7,) * 2 and it.rows("a")[-1].finish is Finish.ERROR
        await it.engine.submit(make_generation("b"), hold=False)
        await it.finished("b")
        assert it.tokens("b") == (7,) * 4
