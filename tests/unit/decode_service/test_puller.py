"""Which tickets a decode worker takes, and a whole transfer without services around it."""

from dataclasses import replace

import pytest

from diptych.core.blocks import chain
from diptych.core.errors import BadRequest, DiptychError, Refused
from diptych.core.ids import Incarnation, Key, WorkerId
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.ticket import Ticket, seal
from diptych.decode_service.puller import Puller, check
from diptych.engine.port import Pages
from diptych.testing.scripted import ScriptedEngine

GRAIN = 8
NAMESPACE = b"n" * 16
GENERATION = Generation(
    Key("r", 2), tuple(range(20)), Sampling(), max_new=5, forced=(50, 51), scope=b"s" * 16
)
TICKET = Ticket(
    ticket_id=b"t" * 16,
    key=Key("r", 1),
    scope=b"s" * 16,
    worker_id=WorkerId("prefill-1"),
    address="127.0.0.1:1",
    incarnation=Incarnation(1),
    namespace=NAMESPACE,
    hashes=tuple(chain(b"s" * 16, (*range(20), 50), GRAIN)),
    num_tokens=21,
)


def test_a_ticket_of_an_earlier_attempt_of_the_same_text_is_taken() -> None:
    check(TICKET, GENERATION, NAMESPACE, GRAIN)


@pytest.mark.parametrize(
    ("ticket", "kind", "message"),
    [
        (replace(TICKET, namespace=b"x" * 16), Refused, "another model"),
        (replace(TICKET, key=Key("q", 1)), BadRequest, "another request"),
        (replace(TICKET, num_tokens=22), BadRequest, "22 positions"),
        (replace(TICKET, scope=b"z" * 16), BadRequest, "positions"),
        (replace(TICKET, hashes=TICKET.hashes[::-1]), BadRequest, "another text"),
    ],
)
def test_any_other_ticket_is_refused(
    ticket: Ticket, kind: type[DiptychError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check(ticket, GENERATION, NAMESPACE, GRAIN)


async def test_a_holder_that_cannot_be_reached_loses_the_ticket_quickly() -> None:
    engine = ScriptedEngine(lambda output: None)
    puller = Puller(engine, WorkerId("decode-1"), b"secret")
    ticket = replace(TICKET, namespace=engine.namespace)
    pages = Pages((0, 1, 2), 0, 24)
    with pytest.raises(DiptychError) as caught:
        await puller.fetch(seal(ticket, b"secret"), GENERATION, pages)
    assert caught.value.code == "kv_not_fetched"
    assert caught.value.message == "0 of 2 blocks arrived from prefill-1 (worker_lost)"
    assert puller.num_pulls == 0
    await puller.close()
