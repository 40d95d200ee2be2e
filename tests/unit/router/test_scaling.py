"""How many workers each pool should have, by formula and as a router sees it on a fake clock."""

import math
import re
from typing import Any

import pytest

from diptych.core.phases import Phase, Role
from diptych.router.costs import Costs
from diptych.router.messages import Have, Progress
from diptych.router.scaling import (
    Lateness,
    Prompts,
    Rows,
    Smoothed,
    desired,
    most_rows,
    pressures,
    workers_for_prompts,
    workers_for_rows,
)
from diptych.router.signals import Scale, Signals, readings
from diptych.router.windows import SPAN_S, Level, Samples, Window
from diptych.telemetry.metrics import Metrics
from diptych.testing.house import House

COSTS = Costs(step_ms=10.0, row_ms=0.5, context_ms=0.0)
SLOTS = {"num_blocks": 1000, "num_slots": 256, "costs": COSTS}
LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)
INTERACTIVE, NORMAL, BATCH = 60.0, 150.0, math.inf


@pytest.mark.parametrize(
    ("prompts", "workers"),
    [
        (Prompts(), 0.0),
        (Prompts(arriving=65_000, rate=10_000), 10.0),
        (Prompts(arriving=65_000, hit_share=0.5, rate=10_000), 5.0),
        (Prompts(backlog=600_000, rate=10_000), 2.0),
        (Prompts(arriving=65_000, hit_share=0.5, backlog=600_000, rate=10_000), 7.0),
        (Prompts(arriving=65_000, hit_share=1.0), 0.0),
        (Prompts(arriving=1.0), None),  # nobody knows how fast they are
        (Prompts(rate=10_000), 0.0),
    ],
)
def test_prefill_workers_follow_what_is_not_cached_and_what_waits(
    prompts: Prompts, workers: float | None
) -> None:
    assert workers_for_prompts(prompts) == (workers if workers is None else pytest.approx(workers))


@pytest.mark.parametrize(
    ("rows", "workers"),
    [
        (Rows(), 0.0),
        (Rows(**SLOTS), 0.0),
        (Rows({NORMAL: 280}, **SLOTS), 280 / 256),  # 280 keep the pace, 256 fit
        (Rows({INTERACTIVE: 100}, **SLOTS), 1.0),
        (Rows({INTERACTIVE: 50, BATCH: 128}, **SLOTS), 1.0),
        (Rows({NORMAL: 1}, used_blocks=850, **SLOTS), 1.0),
        (Rows({BATCH: 256}, tokens=0.8 * 256_000 / 138, **SLOTS), 1.0),
        (Rows({NORMAL: 1}), None),  # nobody said how many fit
    ],
)
def test_decode_workers_follow_rows_at_their_pace_tokens_and_room(
    rows: Rows, workers: float | None
) -> None:
    assert workers_for_rows(rows) == (workers if workers is None else pytest.approx(workers))


def test_one_row_needs_one_worker_however_few_tokens_it_gets() -> None:
    alone = Rows({NORMAL: 1}, context=100.0, tokens=1000 / COSTS.gap_ms(1, 100), **SLOTS)
    assert desired(None, alone) == {Role.DECODE: 1}


def test_a_pace_that_nobody_could_keep_is_no_reason_for_more_workers() -> None:
    slow = Rows({INTERACTIVE: 8}, num_blocks=100, num_slots=8, costs=Costs(step_ms=100.0))
    assert most_rows(slow, INTERACTIVE) == 8


def test_what_cannot_be_computed_is_absent_and_nothing_is_below_one() -> None:
    assert desired(Prompts(arriving=1.0), Rows({NORMAL: 1})) == {}
    assert desired(Prompts(), None) == {Role.PREFILL: 1}


@pytest.mark.parametrize(
    ("late", "prefill", "decode"),
    [
        (Lateness(), 0.0, 0.0),
        (Lateness(first_token=1.5, prefill_queue=3), 1.5, 0.0),
        (Lateness(first_token=1.5, prefill_queue=3, waited_for_rows_s=9), 1.5, 0.0),
        (Lateness(first_token=1.5, gap=0.5, waited_for_rows_s=9), 0.0, 1.5),
        (Lateness(first_token=1.5, gap=1.7), 1.5, 1.7),
        (Lateness(first_token=90.0, gap=90.0, prefill_queue=1), 2.0, 2.0),
    ],
)
def test_late_first_tokens_without_a_prefill_queue_are_decodes_shortage(
    late: Lateness, prefill: float, decode: float
) -> None:
    assert pressures(late) == {Role.PREFILL: prefill, Role.DECODE: decode}


def test_pressure_comes_and_goes_slowly() -> None:
    smoothed = Smoothed()
    smoothed.update({Role.DECODE: 0.0}, 100.0)
    assert smoothed.update({Role.DECODE: 2.0}, 105.0)[Role.DECODE] < 0.25
    assert smoothed.update({Role.DECODE: 2.0}, 400.0)[Role.DECODE] == pytest.approx(2.0, rel=0.01)
    assert smoothed.update({Role.DECODE: 0.0}, 900.0)[Role.DECODE] < 0.001


def test_a_window_holds_a_minute_and_a_young_one_exaggerates_nothing() -> None:
    window, samples, level = Window(), Samples(), Level()
    assert window.rate(5.0) == 0.0
    window.add(600.0, 5.0)
    assert window.rate(6.0) == 60.0
    assert window.rate(5.0 + SPAN_S / 2) == 20.0
    assert window.rate(5.0 + SPAN_S) == 0.0
    for value in range(10):
        samples.add(value, 5.0)
    assert samples.p90(6.0) == 8
    assert samples.p90(5.0 + SPAN_S) is None
    level.set(2.0, 5.0)
    assert (level.total(8.0), level.recent(8.0)) == (6.0, 6.0)
    level.set(0.0, 10.0)
    assert (level.total(500.0), level.recent(500.0)) == (10.0, 0.0)


# As a router sees it


class Observed:
    """A house whose signals are looked at."""

    def __init__(self, *workers: str, **fields: Any) -> None:
        self.house = House(*workers, **fields)
        self.scale = Scale(self.house.dispatcher)

    @property
    def signals(self) -> Signals:
        return self.scale.now(self.house.now_s)

    def page(self) -> str:
        """What Prometheus would see."""
        metrics, now_s = Metrics("router"), self.house.now_s
        metrics.pull(lambda: readings(self.signals, self.house.dispatcher.demand, now_s))
        return metrics.text().decode()

    def minute(self, prompts_a_second: int, length: int) -> None:
        """Prefill computes all that comes, 10,000 tokens a second, a quarter of it cached."""
        house = self.house
        for _ in range(60):
            leases = [house.want(length) for _ in range(prompts_a_second)]
            house.answers()
            record = house.registry.find("prefill-1")
            assert record is not None
            tokens, load = prompts_a_second * length, record.load
            computed = tokens * 3 // 4
            house.report(
                "prefill-1",
                query_tokens_total=load.query_tokens_total + tokens,
                hit_tokens_total=load.hit_tokens_total + tokens - computed,
                prompt_rows_total=load.prompt_rows_total + computed,
                busy_us_total=load.busy_us_total + computed * 100,
                steps_total=load.steps_total + 1,
            )
            for lease in leases:
                house.dispatcher.close(lease)
            house.stay_alive(1)


def test_a_fleet_that_nobody_asked_yet_has_its_minimum() -> None:
    seen = Observed("prefill-1", "decode-1")
    assert seen.signals.desired == {Role.PREFILL: 1, Role.DECODE: 1}
    assert seen.signals.hit_share is None and "hit_share" not in seen.page()


def test_load_scales_up_and_ten_minutes_of_nothing_scale_down_without_nan() -> None:
    seen = Observed("prefill-1", "decode-1", slots=1000)
    seen.minute(20, 1000)
    busy = seen.signals
    assert busy.prompts.arriving == pytest.approx(20_000, rel=0.02)
    assert busy.prompts.rate == pytest.approx(10_000)
    assert busy.hit_share == pytest.approx(0.25)
    assert busy.desired[Role.PREFILL] == math.ceil(20_000 * 0.75 / 6500)
    assert 'llm_desired_workers{pool="prefill",role="router"} 3.0' in seen.page()
    seen.house.stay_alive(600)
    idle = seen.signals
    assert idle.desired == {Role.PREFILL: 1, Role.DECODE: 1}
    assert (idle.prompts.arriving, idle.rows.tokens, idle.prompts.backlog) == (0.0, 0.0, 0.0)
    values = re.findall(r"^llm_\S+ (\S+)$", seen.page(), re.MULTILINE)
    assert len(values) > 8 and all(math.isfinite(float(value)) for value in values)


def test_a_prompt_whose_kv_waits_for_a_row_is_decodes_shortage_and_measured() -> None:
    seen = Observed("prefill-1", "decode-1", slots=1)
    house = seen.house
    lease = house.want()
    house.answers()
    house.report("decode-1", running=1)
    house.stay_alive(4)  # another router's row: it is believed after some reports
    house.progress(lease, LAST_CHUNK)
    waiting = house.want(500)
    assert house.stay_alive(10).keys() == {waiting}  # which is told that it waits
    demand = house.dispatcher.demand
    assert demand.slot_wait.total(house.now_s) == pytest.approx(10, abs=1.1)
    assert demand.export_blocked.total(house.now_s) == pytest.approx(10, abs=1.1)
    signals = seen.signals
    assert signals.prompts.backlog == 0.0  # more prefill workers would not help
    assert signals.desired[Role.DECODE] == 3  # the row that runs, and two that wait


def test_a_prompt_that_prefill_has_room_for_waits_for_the_row_behind_it() -> None:
    seen = Observed("prefill-1", "prefill-2", "decode-1", slots=1)
    house = seen.house
    house.want()
    house.answers()
    house.want()
    house.answers(1)
    house.answers(5)
    assert house.dispatcher.demand.export_blocked.total(house.now_s) == pytest.approx(5)
    assert house.dispatcher.demand.slot_wait.total(house.now_s) == 0


def test_hybrids_are_sized_by_both_demands() -> None:
    seen = Observed("hybrid-1", slots=4)
    leases = [seen.house.want() for _ in range(4)]
    seen.house.answers()
    assert seen.signals.desired == {Role.HYBRID: 2}  # all rows, and some prompts
    for lease in leases:
        seen.house.dispatcher.close(lease)
    seen.house.stay_alive(61)
    assert seen.signals.desired == {Role.HYBRID: 1}


def test_what_first_tokens_took_is_told_once_of_what_was_expected() -> None:
    house = House("prefill-1", "decode-1")
    told: list[float] = []
    house.dispatcher.on_first_token = told.append
    lease = house.want(32_000)
    house.answers()
    house.now_s += 2.1
    house.progress(lease, Progress(Phase.HANDOFF, 1))
    house.progress(lease, Progress(Phase.DECODE, 2))
    assert told == [pytest.approx(2.0, rel=0.1)]
    again = house.want(32_000)
    house.answers()
    house.again(again, "prefill-1", Have.NOTHING)
    house.progress(again, Progress(Phase.HANDOFF, 1))
    assert len(told) == 1  # another attempt's
