"""Promises in days."""

import pytest

from diptych.core.errors import BadRequest
from diptych.kvcache_store.retention import (
    DAY_S,
    SKEW_S,
    Kept,
    Retention,
    day_of,
    later,
    retention_of,
)


@pytest.mark.parametrize(("retention", "days"), [(Retention.AGENT, 3), (Retention.CHAT, 7)])
def test_a_promise_holds_to_the_second_and_ends_within_a_day_after(
    retention: Retention, days: int
) -> None:
    for second in (0, 1, DAY_S // 2, DAY_S - 1):
        accessed_s = 20_000 * DAY_S + second
        kept = Kept(retention, day_of(accessed_s))
        assert not kept.is_over(accessed_s + days * DAY_S)
        assert kept.is_over(accessed_s + (days + 1) * DAY_S + SKEW_S)


def test_f23_a_clock_that_is_an_hour_ahead_breaks_no_promise() -> None:
    kept = Kept(Retention.AGENT, 20_000)
    last_owed_s = 20_004 * DAY_S - 1
    assert not kept.is_over(last_owed_s + 3_600)


def test_pinned_is_never_over() -> None:
    assert not Kept(Retention.PINNED, 0).is_over(1e12)


def test_a_part_of_two_classes_has_the_later_promise() -> None:
    agent, chat = Kept(Retention.AGENT, 10), Kept(Retention.CHAT, 7)
    assert later(agent, chat) == chat
    assert later(chat, agent) == chat
    assert later(Kept(Retention.AGENT, 11), Kept(Retention.CHAT, 7)).retention is Retention.AGENT
    assert later(chat, Kept(Retention.PINNED, 1)).retention is Retention.PINNED


def test_an_unknown_class_is_refused_without_being_repeated() -> None:
    with pytest.raises(BadRequest, match="expected one of agent, chat, pinned, none") as caught:
        retention_of("forever-secret")
    assert "forever-secret" not in caught.value.message
