"""Tickets: what was sealed comes back, and nothing else does."""

import random

import pytest

from diptych.core.errors import Refused
from diptych.core.ids import BlockHash, Incarnation, Key, WorkerId
from diptych.core.ticket import Ticket, new_ticket_id, seal, unseal


def make_ticket() -> Ticket:
    return Ticket(
        ticket_id=new_ticket_id(),
        key=Key("req_1", 2),
        scope=b"s" * 16,
        worker_id=WorkerId("prefill-1"),
        address="127.0.0.1:4000",
        incarnation=Incarnation(2**63 + 5),
        namespace=b"n" * 16,
        hashes=(BlockHash(b"a" * 16), BlockHash(b"b" * 16)),
        num_tokens=300,
    )


def test_a_sealed_ticket_comes_back_whole() -> None:
    ticket = make_ticket()
    assert unseal(seal(ticket, b"secret"), b"secret") == ticket


def test_another_secret_is_refused() -> None:
    with pytest.raises(Refused, match="signature"):
        unseal(seal(make_ticket(), b"secret"), b"other")


def test_no_bit_of_a_ticket_can_be_changed() -> None:
    sealed = seal(make_ticket(), b"secret")
    dice = random.Random("bits")
    for _ in range(300):
        bit = dice.randrange(len(sealed) * 8)
        forged = bytearray(sealed)
        forged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused):
            unseal(bytes(forged), b"secret")


@pytest.mark.parametrize("size", [0, 10, 32, 40])
def test_a_cut_ticket_is_refused(size: int) -> None:
    with pytest.raises(Refused):
        unseal(seal(make_ticket(), b"secret")[:size], b"secret")


def test_tail_and_slot_of_two_tickets_have_four_names() -> None:
    one, two = make_ticket(), make_ticket()
    assert len({one.tail_hash, one.slot_hash, two.tail_hash, two.slot_hash}) == 4
