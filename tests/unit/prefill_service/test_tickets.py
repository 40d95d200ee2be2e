"""Leases: told the time, they never keep their own."""

from hypothesis import given
from hypothesis import strategies as st

from diptych.core.ids import Key
from diptych.prefill_service.tickets import LEASE_S, RENEWED_S, Tickets

A, B = b"a" * 16, b"b" * 16
KEY = Key("r", 1)


def held(at_s: float = 0.0) -> Tickets:
    tickets = Tickets()
    tickets.expect(A, KEY, at_s, deadline_s=60)
    assert tickets.hold(A, at_s)
    return tickets


def test_a_prompt_has_until_its_deadline_for_the_first_token() -> None:
    tickets = Tickets()
    tickets.expect(A, KEY, 10.0, deadline_s=5)
    assert tickets.find(A, 14.9)
    assert not tickets.find(A, 15.0)
    assert not tickets.hold(A, 15.0)


def test_a_held_prompt_has_thirty_seconds_from_its_first_token() -> None:
    tickets = held(at_s=100.0)
    assert tickets.next_expiry_s == 100.0 + LEASE_S
    assert tickets.find(A, 100.0 + LEASE_S - 0.1)
    assert tickets.take(A, 100.0 + LEASE_S) is None


def test_a_renewal_gives_twenty_seconds_from_now_and_never_takes_time_away() -> None:
    tickets = held()
    assert tickets.renew(A, 1.0) == LEASE_S - 1.0
    assert tickets.renew(A, 29.0) == RENEWED_S
    assert tickets.renew(A, 29.0 + RENEWED_S) is None


def test_a_ticket_is_taken_once_and_only_when_held() -> None:
    tickets = Tickets()
    tickets.expect(A, KEY, 0.0, deadline_s=60)
    assert tickets.take(A, 1.0) is None
    tickets.hold(A, 1.0)
    assert tickets.take(A, 2.0) == KEY
    assert tickets.take(A, 2.0) is None
    assert len(tickets) == 0


def test_a_lapse_is_counted_named_and_happens_once() -> None:
    tickets = held()
    tickets.expect(B, Key("other", 1), 0.0, deadline_s=500)
    assert tickets.lapse(LEASE_S - 0.1) == []
    (lapsed,) = tickets.lapse(LEASE_S)
    assert (lapsed.key, lapsed.is_held) == (KEY, True)
    assert tickets.lapse(LEASE_S) == []
    assert (tickets.lapsed_total, len(tickets), tickets.num_held) == (1, 1, 0)
    assert tickets.of(KEY) is None


def test_what_was_never_issued_is_nothing() -> None:
    tickets = Tickets()
    assert tickets.take(A, 0.0) is None
    assert tickets.renew(A, 0.0) is None
    assert tickets.drop(A) is None
    assert tickets.of(KEY) is None
    assert tickets.next_expiry_s is None


@given(
    st.lists(st.tuples(st.sampled_from("ehrtdl"), st.integers(0, 3), st.floats(0, 25)), max_size=60)
)
def test_ledger_and_index_agree_after_any_history(steps: list[tuple[str, int, float]]) -> None:
    tickets, now_s, freed = Tickets(), 0.0, 0
    issued: set[bytes] = set()
    for verb, number, wait_s in steps:
        now_s += wait_s
        ticket_id, key = bytes([number]) * 16, Key(str(number), 1)
        match verb:
            case "e" if tickets.of(key) is None:
                tickets.expect(ticket_id, key, now_s, 10)
                issued.add(ticket_id)
            case "h":
                tickets.hold(ticket_id, now_s)
            case "r":
                tickets.renew(ticket_id, now_s)
            case "t":
                freed += tickets.take(ticket_id, now_s) is not None
            case "d":
                freed += tickets.drop(ticket_id) is not None
            case "l":
                freed += len(tickets.lapse(now_s))
        for number in range(4):
            lease = tickets.of(Key(str(number), 1))
            assert lease is None or lease.ticket_id == bytes([number]) * 16
    freed += len(tickets.lapse(now_s + 1000))
    assert len(tickets) == 0
    assert freed >= len(issued)
