"""Who is let in, and who is kept away from whom."""

import pytest

from diptych.core.ids import Incarnation, WorkerId
from diptych.router.admission import (
    BLOCK_S,
    BLOCKED_LIMIT,
    OPEN_S,
    RETRY_FLOOR,
    TRIP_AFTER,
    Blocked,
    Breaker,
    Breakers,
    Death,
    Deaths,
    RetryBudget,
    class_of,
    is_death,
)

W = WorkerId("w")


def death(phase: str) -> Death:
    return Death(phase, W, Incarnation(1), 0.0)


def nobody(death: Death) -> bool:
    return False


def tripped() -> Breaker:
    breaker = Breaker()
    for lease in range(TRIP_AFTER):
        breaker.failed(0.0, lease)
    return breaker


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_request_try() -> None:
    breaker = Breaker()
    assert not breaker.failed(0.0, 1)
    assert not breaker.failed(0.0, 2)
    assert breaker.failed(0.0, 3)
    assert breaker.is_open(OPEN_S - 0.1)
    assert not breaker.is_open(OPEN_S)
    breaker.placed(4)
    assert breaker.is_open(OPEN_S)  # for all others
    assert breaker.failed(OPEN_S, 4)
    assert breaker.is_open(2.9 * OPEN_S)  # for longer this time
    assert not breaker.is_open(3 * OPEN_S)


def test_r1_a_lease_that_ends_without_a_token_moves_no_breaker() -> None:
    """A prompt of the wrong kind is refused by the worker (4xx): its lease just ends."""
    breakers = Breakers()
    breakers.failed(W, 0.0, 1)
    breakers.failed(W, 0.0, 2)
    for lease in range(3, 13):
        breakers.placed(W, lease)
        breakers.ended(W, lease)
    assert not breakers.is_open(W, 0.0)  # they opened nothing
    breakers.failed(W, 0.0, 13)
    assert breakers.is_open(W, 0.0)  # and they did not count as successes
    for lease in range(14, 24):  # half open: each may try, and none of them closes it
        assert not breakers.is_open(W, OPEN_S)
        breakers.placed(W, lease)
        assert breakers.is_open(W, OPEN_S)
        breakers.ended(W, lease)
    breakers.placed(W, 24)
    breakers.failed(W, OPEN_S, 24)
    assert breakers.is_open(W, OPEN_S + 0.1)


def test_a_success_closes_a_breaker() -> None:
    breakers = Breakers()
    for lease in range(TRIP_AFTER):
        breakers.failed(W, 0.0, lease)
    assert breakers.num_open(0.0) == 1
    assert breakers.next_close_s(0.0) == OPEN_S
    breakers.succeeded(W)
    assert not breakers.is_open(W, 0.0)
    assert breakers.next_close_s(0.0) is None


def test_old_failures_of_leases_given_before_it_opened_do_not_open_it_longer() -> None:
    breaker = tripped()
    until_s = breaker.open_until_s
    breaker.failed(1.0, 99)
    assert breaker.open_until_s == until_s


def test_the_second_death_in_the_same_phase_is_poison() -> None:
    once = Deaths().another(death("prefill"))
    assert not once.is_poison("prefill", nobody)
    assert not once.another(death("decode")).is_poison("decode", nobody)
    twice = once.another(death("prefill"))
    assert twice.is_poison("prefill", nobody)
    assert not twice.is_poison("prefill", lambda death: True)  # only the links had died


@pytest.mark.parametrize(
    ("kind", "code", "is_one"),
    [
        ("Lost", "worker_lost", True),
        ("", "worker_lost", True),  # an older gateway
        ("Broken", "internal_error", True),
        ("Lost", "worker_left", False),
        ("Lost", "silent", False),
        ("Lost", "ticket_gone", False),
        ("Lost", "kv_not_fetched", False),
        ("Overloaded", "no_capacity", False),
        ("Overloaded", "draining", False),
        ("Expired", "upstream_timeout", False),
    ],
)
def test_f21_what_counts_as_a_death(kind: str, code: str, is_one: bool) -> None:
    assert is_death(code, kind) is is_one


def test_a_blocked_prompt_is_let_in_again_after_its_time() -> None:
    blocked = Blocked()
    blocked.add(b"x", 0.0)
    assert blocked.left_s(b"x", 1.0) == BLOCK_S - 1
    assert blocked.left_s(b"y", 1.0) == 0
    assert blocked.left_s(b"x", BLOCK_S) == 0
    assert len(blocked) == 0


def test_a_request_without_a_fingerprint_blocks_nobody_and_the_list_is_bounded() -> None:
    blocked = Blocked()
    blocked.add(b"", 0.0)
    assert blocked.left_s(b"", 0.0) == 0
    for number in range(BLOCKED_LIMIT + 5):
        blocked.add(number.to_bytes(4, "little"), 0.0)
    assert len(blocked) == BLOCKED_LIMIT


def test_retries_are_at_most_a_tenth_of_the_requests_beyond_the_floor() -> None:
    budget = RetryBudget()
    allowed = sum(budget.spend() for _ in range(1000))
    assert allowed == RETRY_FLOOR
    for _ in range(200):
        budget.earned()
    assert sum(budget.spend() for _ in range(1000)) in (19, 20)


def test_a_class_that_is_not_known_is_normal() -> None:
    assert class_of("") == class_of("research") == class_of("normal")
    assert class_of("interactive").gap_target_ms < class_of("normal").gap_target_ms
