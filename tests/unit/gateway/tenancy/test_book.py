"""The limits of one gateway."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.gateway.tenancy.book import LEASE_S, MemoryBook, steady_clock
from diptych.gateway.tenancy.meters import Hold, Meter, Places, Quota, Rate, Taken
from diptych.testing.clock import FakeClock
from diptych.testing.histories import Enter, Pass, history, take_part

NOW_S = 2_000_000_000


def a_book() -> tuple[MemoryBook, FakeClock]:
    clock = FakeClock(NOW_S)
    return MemoryBook(now_s=clock), clock


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
async def test_whatever_happens_all_that_was_held_is_given_back(draw: random.Random) -> None:
    book, clock = a_book()
    entered: dict[str, tuple[Hold, ...]] = {}
    used: dict[Meter, int] = {}
    for step in history(draw, NOW_S, 80):
        if isinstance(step, Pass):
            clock.advance(step.us / 1e6)
            continue
        holds = entered.get(step.lease, ())
        taken = await take_part(book, step, entered)
        if isinstance(step, Enter):
            assert taken is not None
            check_readings(step, taken)
        elif holds:
            for hold, units in zip(holds, step.units, strict=True):
                used[hold.meter] = used.get(hold.meter, 0) + units
    assert not entered
    assert book.num_held == 0
    for meter, units in used.items():
        if isinstance(meter, Quota):  # and exactly what was used is missing
            reading = (await book.take("last", [Hold(meter, 0)])).readings[0]
            assert reading.remaining == max(0, meter.limit - units)
        elif isinstance(meter, Rate):
            clock.advance(10**7)
            reading = (await book.take("last", [Hold(meter, 0)])).readings[0]
            assert reading.remaining == meter.limit


def check_readings(step: Enter, taken: Taken) -> None:
    assert [reading.meter for reading in taken.readings] == [hold.meter for hold in step.holds]
    for reading in taken.readings:
        assert 0 <= reading.remaining <= reading.meter.limit
    assert (taken.refused is None) == (taken.wait_us == 0)


async def test_if_one_meter_refuses_nothing_is_taken() -> None:
    book, _ = a_book()
    rate, places = Rate("rpm", 10), Places("places", 1)
    assert (await book.take("a", [Hold(rate, 1), Hold(places, 1)])).refused is None
    refused = await book.take("b", [Hold(rate, 1), Hold(places, 1)])
    assert refused.refused == places
    assert refused.wait_us == 1_000_000
    assert refused.readings[0].remaining == 9


async def test_a_lease_that_nobody_renews_lapses() -> None:
    book, clock = a_book()
    holds = (Hold(Places("places", 1), 1), Hold(Quota("day", 10, NOW_S + 10**6), 10))
    await book.take("crashed", holds)
    clock.advance(LEASE_S - 1)
    assert (await book.take("b", holds)).refused is not None
    await book.renew({"crashed": holds})
    clock.advance(LEASE_S - 1)
    assert (await book.take("b", holds)).refused is not None
    clock.advance(1)
    assert (await book.take("b", holds)).refused is None


async def test_a_quota_ends_with_its_window_and_begins_with_what_was_spent() -> None:
    clock = FakeClock(NOW_S)

    async def spent(quota: Quota) -> int:
        return {"monday": 8, "tuesday": 0}[quota.name]

    book = MemoryBook(spent, clock)
    monday, tuesday = Quota("monday", 10, NOW_S + 60), Quota("tuesday", 10, NOW_S + 86_460)
    assert (await book.take("a", [Hold(monday, 3)])).wait_us == 60_000_000
    assert (await book.take("a", [Hold(monday, 2)])).refused is None
    clock.advance(61)
    assert (await book.take("b", [Hold(tuesday, 10)])).refused is None
    assert book.num_held == 1  # of Monday nothing is left


async def test_reservations_count_until_they_are_settled() -> None:
    book, _ = a_book()
    quota = Quota("day", 100, NOW_S + 60)
    await book.take("a", [Hold(quota, 60)])
    assert (await book.take("b", [Hold(quota, 60)])).refused == quota
    await book.settle("a", [Hold(quota, 60)], [10])
    taken = await book.take("b", [Hold(quota, 60)])
    assert taken.refused is None
    assert taken.readings[0].remaining == 30


@pytest.mark.parametrize("used", [0, 50, 100, 400])
async def test_a_rate_is_charged_what_was_used_more_or_less(used: int) -> None:
    book, clock = a_book()
    hold = Hold(Rate("tpm", 600), 100)
    await book.take("a", [hold])
    await book.settle("a", [hold], [used])
    reading = (await book.take("b", [Hold(hold.meter, 0)])).readings[0]
    assert reading.remaining == 600 - used
    clock.advance(used / 10)
    assert (await book.take("c", [Hold(hold.meter, 600)])).refused is None


def test_nobody_who_sets_the_clock_stops_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before_s = clock()
    assert before_s == pytest.approx(time.time(), abs=1)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before_s <= clock() < before_s + 60


async def test_idle_rates_are_forgotten() -> None:
    book, clock = a_book()
    for number in range(5000):
        await book.take("a", [Hold(Rate(f"rpm {number}", 60), 1)])
        clock.advance(0.01)
    assert len(book._full_at) < 4200
