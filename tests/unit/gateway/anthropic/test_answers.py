"""Messages whole and streamed, over scripted engines and under every size of a step."""

import asyncio
import json
import re
from typing import Any

import orjson
import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.gateway.stream import Patience
from diptych.text.markers import Marker, Segment
from diptych.text.tools import ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"name": "weather", "input_schema": SCHEMA}, {"name": "time", "input_schema": {}}]
PARIS = ToolCall("", "weather", '{"city": "Par\\nis 漢字 😀", "days": 3}')
TIME = ToolCall("", "time", "{}")
STEPS = [1, 2, 3, 7, 200]
ANSWER = {"thinking": {"type": "disabled"}}
ALL: list[Segment] = ["Need it.\n", END, "\n\nLet me look.", *invocations([PARIS, TIME]), EOS]


def put_together(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """The message as Anthropic's clients put it together; checks the order on the way."""
    names = [name for name, _ in events]
    assert all(name == data["type"] for name, data in events)
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0][1]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    is_open = False
    for name, data in events[1:-1]:
        if name.startswith("content_block"):
            blocks = message["content"]
            assert data["index"] == len(blocks) - (name != "content_block_start")
        match name:
            case "content_block_start":
                assert not is_open
                is_open = True
                message["content"].append({**data["content_block"], "json": ""})
            case "content_block_delta":
                assert is_open
                block, delta = message["content"][-1], data["delta"]
                kind = delta["type"]
                if kind == "input_json_delta":
                    block["json"] += delta["partial_json"]
                elif kind == "signature_delta":
                    block["signature"] = delta["signature"]
                else:
                    block[kind.removesuffix("_delta")] += delta[kind.removesuffix("_delta")]
            case "content_block_stop":
                is_open = False
                text = message["content"][-1].pop("json")
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = text
            case "message_delta":
                assert not is_open
                message |= data["delta"]
                message["usage"] |= data["usage"]
            case _:
                assert (name, data) == ("ping", {"type": "ping"})
    return message


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from answer to answer."""
    assert re.fullmatch(r"msg_[0-9a-f]{32}", message.pop("id"))
    for block in message["content"]:
        if block["type"] == "thinking":
            assert block.pop("signature")
        if block["type"] == "tool_use":
            assert re.fullmatch(r"toolu_[0-9a-f]{24}", block.pop("id"))
            if isinstance(block["input"], str):
                block["input"] = json.loads(block["input"])
    return message


async def test_a_whole_message_has_blocks_a_reason_and_usage(client: Any) -> None:
    asked = client(*ALL, cached_tokens=4)
    message = plain(await asked.whole(tools=TOOLS))
    prompt = len(asked.prompt)
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [
            {"type": "thinking", "thinking": "Need it."},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "name": "weather", "input": json.loads(PARIS.arguments)},
            {"type": "tool_use", "name": "time", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 4,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(asked.site.hops.output.token_ids),
        },
    }


@pytest.mark.parametrize("tokens_a_step", STEPS)
@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
async def test_t106_a_stream_put_together_is_the_whole_message(
    client: Any, tokens_a_step: int, thinking: str
) -> None:
    segments = ALL if thinking == "enabled" else ALL[2:]
    asked = client(*segments, tokens_a_step=tokens_a_step, cached_tokens=4)
    wish = {"tools": TOOLS, "thinking": {"type": thinking}}
    whole = plain(await asked.whole(**wish))
    assert plain(put_together(await asked.events(**wish))) == whole


async def test_t106_a_stream_has_its_events_in_order_and_usage_where_clients_look(
    client: Any,
) -> None:
    asked = client("Need", " it.", END, "Yes.", EOS, tokens_a_step=1, cached_tokens=4)
    events = await asked.events()
    names = [name for name, _ in events]
    first = names.index("content_block_stop")
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names.count("ping") == 1
    assert events[1][1]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert events[first - 1][1]["delta"]["type"] == "signature_delta"
    assert events[first + 1][1] == {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "text", "text": ""},
    }
    prompt = len(asked.prompt)
    input_usage = {
        "input_tokens": prompt - 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
    }
    assert events[0][1]["message"]["usage"] == {**input_usage, "output_tokens": 0}
    sampled = len(asked.site.hops.output.token_ids)
    assert events[-2][1]["usage"] == {**input_usage, "output_tokens": sampled}
    assert all("usage" not in data for _, data in events[1:-2])


async def test_t106_a_call_begins_with_an_empty_input_that_its_fragments_fill(client: Any) -> None:
    asked = client(*invocations([PARIS]), EOS, tokens_a_step=1)
    events = await asked.events(tools=TOOLS, **ANSWER)
    begin = events[1][1]["content_block"]
    assert (begin["type"], begin["name"], begin["input"]) == ("tool_use", "weather", {})
    fragments = [
        data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"
    ]
    assert "".join(fragments) == PARIS.arguments
    assert len(fragments) > 5
    for fragment in fragments:
        fragment.encode()  # no character is torn


async def test_numbers_of_a_call_are_kept_digit_by_digit(client: Any) -> None:
    raw = '{"days": 123456789012345678901234567890, "x": 0.10, "y": 9007199254740993}'
    call = ["\n\n<", Marker.DSML, " calls>\n<", Marker.DSML, ' invoke name="weather">\n']
    for name, value in (("days", raw[9:39]), ("x", "0.10"), ("y", "9007199254740993")):
        call += ["<", Marker.DSML, f' parameter name="{name}" string="false">{value}</']
        call += [Marker.DSML, " parameter>\n"]
    call += ["</", Marker.DSML, " invoke>\n</", Marker.DSML, " calls>"]
    reply = await client(*call, EOS).post(tools=TOOLS, **ANSWER)
    assert f'"input":{raw}' in reply.text


@pytest.mark.parametrize("tokens_a_step", STEPS)
async def test_a_stop_sequence_is_named_and_not_shown(client: Any, tokens_a_step: int) -> None:
    asked = client("one. STOP two", EOS, tokens_a_step=tokens_a_step)
    wish = {"stop_sequences": ["never", "STOP"], **ANSWER}
    message = await asked.whole(**wish)
    assert message["content"] == [{"type": "text", "text": "one. "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "STOP")
    assert plain(put_together(await asked.events(**wish))) == plain(message)


async def test_why_an_answer_ends(client: Any) -> None:
    asked = client("one two three four", EOS)
    message = await asked.whole(**ANSWER)
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert (await asked.whole(max_tokens=2, **ANSWER))["stop_reason"] == "max_tokens"
    prompt = len(asked.prompt)
    full = client("one two three four", EOS, context=prompt + 2)
    message = await full.whole(max_tokens=2, **ANSWER)
    assert message["stop_reason"] == "model_context_window_exceeded"


async def test_an_answer_without_a_word_has_no_blocks(client: Any) -> None:
    asked = client(EOS)
    assert (await asked.whole(**ANSWER))["content"] == []
    names = [name for name, _ in await asked.events(**ANSWER)]
    assert names == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize("tokens_a_step", [1, 4])
async def test_g3_a_call_that_is_cut_is_never_one_to_be_run(
    client: Any, tokens_a_step: int
) -> None:
    asked = client("Well.", *invocations([TIME, PARIS]), EOS, tokens_a_step=tokens_a_step)
    ids = asked.site.hops.output.token_ids
    seen = set()
    for limit in range(len(asked.encoded("Well.")), len(ids) - 1):
        wish = {"tools": TOOLS, "max_tokens": limit, **ANSWER}
        message = await asked.whole(**wish)
        streamed = put_together(await asked.events(**wish))
        calls = [b for b in message["content"] if b["type"] == "tool_use"]
        told = [b for b in streamed["content"] if b["type"] == "tool_use"]
        seen.add((len(calls), message["stop_reason"]))
        assert streamed["stop_reason"] == message["stop_reason"] == "max_tokens"
        assert [b["name"] for b in told] == [b["name"] for b in calls]
        if len(calls) == 2 and calls[1]["input"] == {}:
            assert PARIS.arguments.startswith(told[1]["input"].rstrip("</"))
            with pytest.raises(ValueError):
                json.loads(told[1]["input"])
        elif len(calls) == 2:
            assert calls[1]["input"] == json.loads(told[1]["input"]) == json.loads(PARIS.arguments)
    assert {count for count, _ in seen} == {0, 1, 2}


async def test_reasoning_and_answer_of_one_step_are_two_blocks(client: Any) -> None:
    asked = client("a", END, "b", EOS, tokens_a_step=9)
    events = await asked.events()
    deltas = [d["delta"] for name, d in events if name == "content_block_delta"]
    assert [d["type"] for d in deltas] == ["thinking_delta", "signature_delta", "text_delta"]


async def test_a_silent_stream_is_pinged(client: Any) -> None:
    asked = client("one two", EOS, patience=Patience(headers_s=0.02, silence_s=0.02, no_op_s=0.04))
    asked.site.hops.holds = {"first"}
    asyncio.get_running_loop().call_later(0.1, asked.site.hops.release)
    events = await asked.events(**ANSWER)
    names = [name for name, _ in events]
    assert names[:2] == ["ping", "ping"]
    begin = names.index("message_start")
    assert set(names[:begin]) == {"ping"}
    message = put_together(events[begin:])
    assert message["content"] == [{"type": "text", "text": "one two"}]


async def test_t92_a_failure_before_the_first_token_keeps_its_status(client: Any) -> None:
    for stream in (False, True):
        asked = client("x", EOS)
        asked.site.hops.failures["place"] = [Overloaded("full", retry_after_s=2)]
        reply = await asked.post(stream=stream)
        assert reply.status_code == 503
        assert reply.json()["error"] == {"type": "overloaded_error", "message": "full"}
        assert int(reply.headers["retry-after"]) >= 2


async def test_t19_a_failure_later_is_an_event_and_the_stream_ends(client: Any) -> None:
    asked = client("one two three four", EOS)
    for stage in ("token 3", "token 4", "token 5"):
        asked.site.hops.failures[stage] = [Lost("gone")]
    events = await asked.events(**ANSWER)
    name, data = events[-1]
    assert name == data["type"] == "error"
    assert data["error"] == {"type": "overloaded_error", "message": "gone"}
    assert data["request_id"].startswith("req_")
    assert "message_stop" not in [name for name, _ in events]


async def test_no_character_breaks_an_event_into_lines(client: Any) -> None:
    text = "a" + "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0x2028, 0x2029, 0xFEFF])) + "x"
    reply = await client(text, EOS).post(stream=True, **ANSWER)
    assert reply.text.splitlines() == reply.text.split("\n")[:-1]
    data = [orjson.loads(x[6:]) for x in reply.text.split("\n") if x.startswith("data: ")]
    deltas = [d["delta"]["text"] for d in data if d["type"] == "content_block_delta"]
    assert "".join(deltas) == text
