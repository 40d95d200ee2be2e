"""Where the time of an answer went."""

from typing import Any

import pytest

from diptych.core.errors import Lost
from diptych.core.phases import Phase
from diptych.gateway import timings
from diptych.gateway.notes import Course, Notes, Stay
from diptych.text.markers import Marker

TEXT = ("one two three four five six", Marker.EOS)
ASKED = {"x-diptych-timings": "1"}
SPLIT = {
    "tokenize_ms", "queue_ms", "prefill_ms", "handoff_ms", "decode_ms", "first_token_ms",
    "total_ms", "route", "route_reasons", "attempts", "cached_tokens",
}  # fmt: skip


def split(start_s: float = 10.0, **fields: Any) -> Course:
    stays = (
        Stay(Phase.ROUTE, start_s, start_s + 0.25),
        Stay(Phase.PREFILL, start_s + 0.25, start_s + 0.75, worker="prefill-1"),
        Stay(Phase.HANDOFF, start_s + 0.75, start_s + 0.8, worker="decode-1"),
        Stay(Phase.DECODE, start_s + 0.8, start_s + 2, worker="decode-1"),
    )
    return Course(stays, "ok", first_s=start_s + 0.75, **fields)


def test_each_phase_is_told_in_milliseconds() -> None:
    notes = Notes(began_s=9.0, tokenizing=[(9.5, 9.53)])
    notes.courses = [split(cached_tokens=128, reasons=("prefill-1: idle",))]
    assert timings.of(notes, now_s=lambda: 12.5) == {
        "tokenize_ms": 30.0,
        "queue_ms": 250.0,
        "prefill_ms": 500.0,
        "handoff_ms": 50.0,
        "decode_ms": 1200.0,
        "first_token_ms": 1750.0,
        "route": "split",
        "attempts": 1,
        "cached_tokens": 128,
        "total_ms": 3500.0,
    }
    told = timings.of(notes, shows_reasons=True)
    assert told["route_reasons"] == ["prefill-1: idle"]


def test_attempts_add_up_and_a_phase_that_never_was_is_absent() -> None:
    stays = (
        Stay(Phase.ROUTE, 1, 2),
        Stay(Phase.DECODE, 2, 4),
        Stay(Phase.ROUTE, 4, 4.5, attempt=2),
        Stay(Phase.DECODE, 4.5, 5, attempt=2),
    )
    told = timings.of(Notes(began_s=1, courses=[Course(stays, "ok")]), now_s=lambda: 5)
    assert (told["queue_ms"], told["decode_ms"], told["attempts"]) == (1500, 2500, 2)
    assert told["route"] == "hybrid"
    assert not told.keys() & {"prefill_ms", "handoff_ms", "first_token_ms", "route_reasons"}


def test_of_several_outputs_the_longest_is_told() -> None:
    short = Course((Stay(Phase.ROUTE, 1, 2), Stay(Phase.DECODE, 2, 2.5)), "ok")
    told = timings.of(Notes(began_s=0, courses=[short, split(), short]), now_s=lambda: 9)
    assert told["decode_ms"] == 1200


async def test_a_whole_answer_has_timings_for_who_asked(serve: Any) -> None:
    site = serve(*TEXT, cached_tokens=3)
    url, body = "/v1/chat/completions", site.body()
    assert "timings" not in (await site.http.post(url, json=body)).json()
    told = (await site.http.post(url, json=body, headers=ASKED)).json()["timings"]
    assert told.keys() == SPLIT
    assert (told["route"], told["attempts"], told["cached_tokens"]) == ("split", 1, 3)
    parts = sum(
        told[f"{name}_ms"] for name in ("tokenize", "queue", "prefill", "handoff", "decode")
    )
    assert 0 < parts <= told["total_ms"] + 0.01
    assert 0 < told["first_token_ms"] <= told["total_ms"]


@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("has_usage", [True, False])
async def test_a_stream_has_timings_once_in_its_last_chunk(
    serve: Any, has_usage: bool, num_choices: int
) -> None:
    site = serve(*TEXT)
    options = {"stream_options": {"include_usage": True}} if has_usage else {}
    body = site.body(stream=True, n=num_choices, **options)
    reply = await site.http.post("/v1/chat/completions", json=body, headers=ASKED)
    *chunks, done = site.parse(reply.text)
    assert done == "[DONE]"
    assert [index for index, chunk in enumerate(chunks) if "timings" in chunk] == [len(chunks) - 1]
    assert chunks[-1]["timings"].keys() == SPLIT
    assert bool(chunks[-1]["choices"]) != has_usage


async def test_a_lost_worker_shows_in_the_attempts(serve: Any) -> None:
    site = serve(*TEXT)
    site.hops.failures["token 3"] = [Lost("gone")]
    reply = await site.http.post("/v1/chat/completions", json=site.body(), headers=ASKED)
    assert reply.json()["timings"]["attempts"] == 2
