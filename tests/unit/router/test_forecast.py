"""When a first token comes, and who is told at once that it would be too late."""

from dataclasses import replace

import pytest

from diptych.core.phases import Phase
from diptych.router.forecast import EXPECTED_NEW, Forecast, Room
from diptych.router.ledger import Pending
from diptych.router.messages import PrefillAt, Progress, Queued, RefusedBy, Want
from diptych.testing.house import House

LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)
FULL = Room(0, 10, 0, 1000, gap_ms=100.0, block_tokens=16)
LIFE_S = EXPECTED_NEW * 0.1
WANT = Want("r", prompt_len=21, max_new=300, deadline_s=30)  # 20 blocks


@pytest.mark.parametrize(
    ("room", "ahead", "waits_s"),
    [
        (Room(1, 10, 64, 1000, 100.0, 16), 0, 0.0),
        (FULL, 0, LIFE_S / 10),
        (FULL, 4, LIFE_S * 5 / 10),
        (Room(5, 10, 0, 1000, 100.0, 16), 0, LIFE_S * 20 / 1000),  # blocks are what is missing
        (Room(0, 0, 0, 0, 100.0, 16), 9, 0.0),  # it will never have more room
        (Room(), 9, 0.0),  # nothing is known
    ],
)
def test_rows_are_free_when_enough_outputs_have_ended(
    room: Room, ahead: int, waits_s: float
) -> None:
    assert Forecast().row_s(room, Pending(), WANT, ahead) == pytest.approx(waits_s)


def test_prompts_that_are_being_computed_will_take_rows_first() -> None:
    assert Forecast().row_s(FULL, Pending(3, 60), WANT, 0) == pytest.approx(LIFE_S * 4 / 10)


def test_the_mean_output_is_learned() -> None:
    forecast = Forecast()
    for _ in range(200):
        forecast.ended(10)
    assert forecast.row_s(FULL, Pending(), WANT, 0) == pytest.approx(0.1, rel=0.05)


def test_short_outputs_are_taken_to_wait_for_short_ones() -> None:
    short = replace(WANT, max_new=4)
    assert Forecast().row_s(FULL, Pending(), short, 0) == pytest.approx(4 * 0.1 / 10)


def test_its_own_work_counts_beside_the_queue() -> None:
    house = House("prefill-1", "decode-1", slots=64)
    house.want(500_000, 600)  # 28 s
    house.answers()
    short, long = house.want(10_000, 30), house.want(250_000, 30)
    answers = house.answers()
    assert isinstance(answers[short], Queued)
    refused = answers[long]
    assert isinstance(refused, RefusedBy)
    assert refused.retry_after_s == pytest.approx(9, abs=3)


def test_who_takes_longer_than_its_time_all_alone_is_judged_by_what_it_waits() -> None:
    house = House("prefill-1", "decode-1", slots=64)
    assert isinstance(house.answers_to(house.want(900_000, 30)), PrefillAt)
    waiting = house.want(900_000, 30)
    assert isinstance(house.answers()[waiting], RefusedBy)
    house = House("prefill-1", "decode-1", slots=64)
    house.want(200_000, 600)
    house.answers()
    assert isinstance(house.answers_to(house.want(900_000, 30)), Queued)


def test_decode_that_will_still_be_full_when_the_prompt_is_done_is_reason_enough() -> None:
    house = House("prefill-1", "decode-1", slots=2, queue_limit=5000)
    for _ in range(2):
        lease = house.want(deadline_s=600)  # of 7 tokens
        house.answers()
        house.progress(lease, LAST_CHUNK)
        house.answers()
        house.progress(lease, Progress(Phase.DECODE, 1))
    house.report("prefill-1")  # it has room
    waiting = [house.want(deadline_s=3) for _ in range(100)]
    answers = house.answers()
    assert isinstance(answers[waiting[0]], Queued)
    assert isinstance(answers[waiting[-1]], RefusedBy)
    assert house.dispatcher.is_export_blocked
