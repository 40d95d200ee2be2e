"""Deadlines and back-off."""

import asyncio

import pytest

from diptych.core.errors import Expired
from diptych.transport.channel import Backoff, deadline


def test_delays_double_up_to_the_cap_and_start_again_after_success() -> None:
    backoff = Backoff(0.1, 1.0, draw=lambda: 1.0)
    assert [backoff.failed() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    backoff.succeeded()
    assert backoff.failed() == pytest.approx(0.1)


def test_jitter_takes_up_to_half_away() -> None:
    assert Backoff(1.0, draw=lambda: 0.0).failed() == pytest.approx(0.5)


def test_a_thousand_failures_stay_at_the_cap() -> None:
    backoff = Backoff(0.1, 2.0)
    assert all(backoff.failed() <= 2.0 for _ in range(1000))


async def test_a_deadline_ends_in_a_named_outcome() -> None:
    with pytest.raises(Expired, match=r"the thing took longer than 0\.01 s") as caught:
        async with deadline(0.01, "the thing", code="thing_timeout"):
            await asyncio.sleep(5)
    assert caught.value.code == "thing_timeout"


async def test_work_within_its_deadline_is_left_alone() -> None:
    async with deadline(5, "the thing"):
        await asyncio.sleep(0)
