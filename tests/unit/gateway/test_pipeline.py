"""Stations fail under a running answer."""

from typing import Any

import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.gateway.deadlines import Deadlines
from diptych.router.client import Have
from diptych.text.markers import Marker

TEXT = ("one two three four five six", Marker.EOS)


async def answer(site: Any) -> str:
    reply = await site.ask(return_token_ids=True)
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    assert choice["token_ids"] == list(site.hops.output.token_ids)
    text: str = choice["message"]["content"]
    return text


@pytest.mark.parametrize("is_hybrid", [False, True])
@pytest.mark.parametrize(
    ("stage", "have"),
    [
        ("prefill", Have.NOTHING),
        ("first", Have.NOTHING),
        ("reserve", Have.TICKET),
        ("start", Have.TICKET),
        ("token 2", Have.TICKET),
        ("token 3", Have.TOKENS),
        ("token 6", Have.TOKENS),
    ],
)
async def test_a_lost_worker_costs_no_token(
    serve: Any, stage: str, have: Have, is_hybrid: bool
) -> None:
    site = serve(*TEXT, is_hybrid=is_hybrid)
    site.hops.failures[stage] = [Lost("gone")]
    assert await answer(site) == TEXT[0]
    if not is_hybrid:
        assert site.hops.agains[0] == (2, have)


async def test_a_ticket_that_lapsed_means_computing_again(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["start"] = [Lost("lapsed", code="ticket_gone")]
    assert await answer(site) == TEXT[0]
    first, _, second = site.hops.generations[:3]
    assert (first.forced, len(second.forced)) == ((), 1)


async def test_busy_decode_workers_are_asked_until_one_has_room(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["reserve"] = [Overloaded("full")] * 4
    assert await answer(site) == TEXT[0]
    assert site.hops.agains == [(n, Have.TICKET) for n in range(2, 6)]


async def test_three_losses_are_told(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["prefill"] = [Lost("gone")] * 3
    reply = await site.ask()
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "worker_lost"
    assert reply.headers["x-should-retry"] == "true"


async def test_a_queue_that_never_moves_is_told(serve: Any) -> None:
    site = serve(*TEXT, deadlines=Deadlines(queue_s=0.02))
    site.hops.holds = {"queue"}
    reply = await site.ask()
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "queue_timeout"


async def test_a_silent_decode_worker_is_replaced(serve: Any) -> None:
    site = serve(*TEXT, deadlines=Deadlines(next_token_s=0.05))
    site.hops.holds = {"token 4", "token 5", "token 6"}  # each attempt's prefill adds one
    reply = await site.ask()
    assert reply.status_code == 504
    assert [have for _, have in site.hops.agains] == [Have.TOKENS] * 2


async def test_a_ticket_is_renewed_while_decode_is_awaited(serve: Any) -> None:
    site = serve(*TEXT, deadlines=Deadlines(renew_s=0.01, room_s=0.2, replace_s=0.05))
    site.hops.holds = {"decode_at"}
    site.hops.has_tickets = False
    reply = await site.ask()
    assert reply.status_code == 503
    assert site.hops.agains[0] == (2, Have.TOKENS)


async def test_a_router_that_is_away_for_a_moment_delays_only(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["place"] = [Lost("router")]
    assert await answer(site) == TEXT[0]


async def test_a_router_that_dies_under_running_answers_is_told_of_them(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["decode_at"] = [Lost("router")]
    assert await answer(site) == TEXT[0]
    assert site.hops.wants[1].resume is not None


async def test_an_answer_through_many_failures_is_still_the_answer(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["first"] = [Lost("gone")]
    site.hops.failures["reserve"] = [Overloaded("full"), Overloaded("full")]
    site.hops.failures["token 4"] = [Lost("gone")]
    assert await answer(site) == TEXT[0]
