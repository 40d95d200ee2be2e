"""Clients that wait, leave, or do not read."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.errors import ClientGone
from diptych.gateway.stream import Outbox, Patience
from diptych.text.markers import Marker

EOS = Marker.EOS
TOLD: dict[str, set[str]] = {
    "place": set(),
    "queue": set(),
    "prefill": {"prefill"},
    "first": {"prefill", "decode"},  # reserved meanwhile
    "decode_at": {"prefill"},
    "reserve": {"prefill"},  # the reserving call is itself cut off
    "start": {"prefill", "decode"},
    "token 5": {"decode"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", TOLD)
async def test_t25_g11_f12_a_client_that_leaves_at_any_stage_is_forgotten_at_once(
    serve: Any, visit: Any, stage: str, stream: bool
) -> None:
    site = serve("one two three four five six seven", EOS)
    site.hops.holds = {stage}
    client = visit(site, stream=stream)
    await site.hops.reached(stage)
    client.leave()
    await client.over()
    await site.pipeline.close()
    assert site.hops.is_at_baseline
    told = {name.split()[0] for name in site.hops.cancelled}
    assert told == TOLD[stage]
    assert not any(message.get("status", 200) != 200 for message in client.sent)


async def test_t25_a_client_that_leaves_one_choice_leaves_all(serve: Any, visit: Any) -> None:
    site = serve("one two three four five", EOS)
    site.hops.holds = {"token 5"}
    client = visit(site, n=4)
    await site.hops.reached("token 5")
    client.leave()
    await client.over()
    await site.pipeline.close()
    assert site.hops.is_at_baseline


async def test_headers_do_not_wait_for_ever_and_silence_is_filled(serve: Any, visit: Any) -> None:
    patience = Patience(headers_s=0.02, silence_s=0.02, no_op_s=0.06)
    site = serve("x", EOS, patience=patience)
    site.hops.holds = {"queue"}
    client = visit(site, stream=True)
    await client.heard(b'"delta":{},"finish_reason":null')
    assert client.sent[0]["status"] == 200
    quiet = client.body
    assert quiet.startswith(b": keep-alive\n\n: keep-alive\n\n")
    site.hops.release()
    await client.over()
    rest = client.body.removeprefix(quiet)
    assert b'"role":"assistant"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_an_early_stream_waits_for_its_first_token_before_the_headers(
    serve: Any, visit: Any
) -> None:
    site = serve("x", EOS)
    site.hops.holds = {"first"}
    client = visit(site, stream=True)
    await site.hops.reached("first")
    assert client.sent == []
    site.hops.release()
    await client.over()
    assert client.sent[0]["status"] == 200


async def test_t26_f24_a_client_that_stops_reading_is_cut_off(serve: Any, visit: Any) -> None:
    site = serve("one two three four five", EOS, patience=Patience(unread_s=0.05))
    site.hops.holds = {"token 4"}
    client = visit(site, stream=True)
    await client.heard(b"data:")
    client.stop_reading()
    site.hops.release()
    await client.over()
    assert b"[DONE]" not in client.body
    assert client.sent[-1].get("more_body", True)


async def test_t26_too_much_unread_is_the_end() -> None:
    outbox = Outbox(max_bytes=100)
    outbox.put(b"x" * 100)
    with pytest.raises(ClientGone):
        outbox.put(b"x")


async def test_one_event_may_be_larger_than_all_that_may_wait() -> None:
    """A client that reads is not cut off for what it asked for."""
    outbox = Outbox(max_bytes=100)
    outbox.put(b"x" * 1000)
    assert await outbox.take(1.0) == b"x" * 1000
    outbox.put(b"x" * 1000)
    with pytest.raises(ClientGone):
        outbox.put(b"x")


async def test_an_outbox_gives_all_there_is_then_silence_then_its_end() -> None:
    outbox = Outbox(100)
    outbox.put(b"a")
    outbox.put(b"")
    outbox.put(b"b")
    assert await outbox.take(1.0) == b"ab"
    assert await outbox.take(0.001) == b""
    waiting = asyncio.create_task(outbox.take(5.0))
    await asyncio.sleep(0)
    outbox.put(b"c")
    outbox.close()
    assert await waiting == b"c"
    assert await outbox.take(1.0) is None


async def test_g12_chunks_leave_with_their_step(serve: Any, visit: Any) -> None:
    site = serve("alpha", "beta", EOS)
    last = len(site.hops.output.token_ids)
    site.hops.holds = {f"token {last}"}
    client = visit(site, stream=True)
    await site.hops.reached(f"token {last}")
    before: list[MutableMapping[str, Any]] = list(client.sent)
    await asyncio.sleep(0.01)
    assert client.sent[: len(before)] == before
    assert len(client.sent) >= last - 1
    site.hops.release()
    await client.over()


@pytest.mark.parametrize(
    ("style", "filler"),
    [("comment", b": keep-alive\n\n"), ("chunk", b"data: {"), ("off", b"")],
)
async def test_silence_is_filled_as_the_operator_likes(
    serve: Any, visit: Any, style: Any, filler: bytes
) -> None:
    patience = Patience(headers_s=0.02, silence_s=0.02, no_op_s=0.04, style=style)
    site = serve("x", EOS, patience=patience)
    site.hops.holds = {"queue"}
    client = visit(site, stream=True)
    await site.hops.reached("queue")
    await asyncio.sleep(0.2)
    assert client.sent[0]["status"] == 200
    fillers = [message["body"] for message in client.sent[1:]]
    assert bool(fillers) is bool(filler)
    assert all(each.startswith(filler) for each in fillers)
    if style == "chunk":
        assert all(b'"delta":{},"finish_reason":null' in each for each in fillers)
    else:
        assert not any(b"data:" in each for each in fillers)
    site.hops.release()
    await client.over()
    assert client.body.endswith(b"data: [DONE]\n\n")


async def test_t27_a_whole_answer_waits_with_its_status(serve: Any, visit: Any) -> None:
    site = serve("x", EOS)
    site.hops.failures["prefill"] = [BadRequest("no")]
    site.hops.holds = {"queue"}
    client = visit(site)
    await site.hops.reached("queue")
    await asyncio.sleep(0.05)
    assert client.sent == []
    site.hops.release()
    await client.over()
    assert client.sent[0]["status"] == 400


@pytest.mark.parametrize("fails", [False, True])
async def test_blank_lines_may_come_before_a_whole_answer(
    serve: Any, visit: Any, fails: bool
) -> None:
    site = serve("x", EOS, patience=Patience(blank_s=0.02))
    if fails:
        site.hops.failures["prefill"] = [BadRequest("no")]
    site.hops.holds = {"queue"}
    client = visit(site)
    await client.heard(b"\n\n\n")
    start = client.sent[0]
    assert start["status"] == 200
    names = {name for name, _ in start["headers"]}
    assert b"content-length" not in names and b"x-request-id" in names
    site.hops.release()
    await client.over()
    answer = orjson.loads(client.body)
    assert ("error" in answer) is fails
    assert fails or answer["choices"][0]["message"]["content"] == "x"
    assert not client.sent[-1].get("more_body", False)


async def test_an_early_whole_answer_has_no_blank_lines(serve: Any) -> None:
    site = serve("x", EOS, patience=Patience(blank_s=5))
    reply = await site.ask()
    assert reply.content.startswith(b"{") and int(reply.headers["content-length"])


async def test_a_client_that_leaves_between_blank_lines_is_forgotten(
    serve: Any, visit: Any
) -> None:
    site = serve("x", EOS, patience=Patience(blank_s=0.02))
    site.hops.holds = {"queue"}
    client = visit(site)
    await client.heard(b"\n")
    client.leave()
    await client.over()
    await site.pipeline.close()
    assert site.hops.is_at_baseline
