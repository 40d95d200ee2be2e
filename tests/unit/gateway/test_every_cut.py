"""An output cut anywhere, in any dialect: what a stream tells is what a whole answer says."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from diptych.text.markers import Marker, Segment
from diptych.text.tools import ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}
CALLS = invocations([ToolCall("", "f", '{"a": "漢\\n", "b": [1.0]}'), ToolCall("", "f", "{}")])
OUTPUT: list[Segment] = ["Hm 😀", END, "\n\nJa 漢\n", *CALLS, EOS]
USER = [{"role": "user", "content": "u"}]
TOOL = {"name": "f", "parameters": SCHEMA}
ID = re.compile(rb'"(?:call_\d\d|resp|msg|rs|fc|call|toolu|chatcmpl|cmpl)_?-?[0-9A-Za-z_]{20,}"')
TIME = re.compile(rb'"(created|created_at|completed_at)":\d+')

Told = Callable[[list[Any]], Any]
Named = Callable[[str], list[tuple[str, Any]]]


def chat(events: list[Any]) -> Any:
    """A message, as clients put it together."""
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    finish = None
    for event in events[:-1]:
        (choice,) = event["choices"]
        assert finish is None
        finish = choice["finish_reason"]
        for name in message:
            message[name] += choice["delta"].get(name) or ""
        for part in choice["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                calls.append({"type": part["type"], "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message | ({"tool_calls": calls} if calls else {}), finish


def message(events: list[tuple[str, Any]]) -> Any:
    """Blocks and the reason, likewise; the input of a call as text."""
    blocks: list[dict[str, Any]] = []
    for name, event in events:
        match name:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append({**event["content_block"], "text of it": ""})
            case "content_block_delta" if event["delta"]["type"] != "signature_delta":
                kind = event["delta"]["type"].removesuffix("_delta")
                text = event["delta"][{"input_json": "partial_json"}.get(kind, kind)]
                blocks[-1]["text of it"] += text
    return blocks, events[-2][1]["delta"], events[-2][1]["usage"]


@pytest.mark.parametrize("step", [1, 4])
async def test_g3_a_cut_chat_is_told_as_it_is_said(serve: Any, step: int) -> None:
    site = serve(*OUTPUT, tokens_a_step=step)
    site.fleet = replace(site.fleet, max_model_len=4096)
    tools = [{"type": "function", "function": TOOL}]
    for limit in limits(site, step):
        fields = {"messages": USER, "tools": tools, "max_tokens": limit}
        fields["thinking"] = {"type": "enabled"}
        (choice,) = (await site.ask(**fields)).json()["choices"]
        told, finish = chat(await site.events(**fields))
        said = choice["message"]
        assert choice["finish_reason"] == finish
        for call in said.get("tool_calls", ()):
            del call["id"]
        assert {**told, "role": "assistant"} == said
        assert "\ufffd" not in orjson.dumps(said).decode()


@pytest.mark.parametrize("step", [1, 4])
async def test_g3_a_cut_message_is_told_as_it_is_said(
    serve: Any, named_events: Named, step: int
) -> None:
    site = serve(*OUTPUT, tokens_a_step=step)
    site.fleet = replace(site.fleet, max_model_len=4096)
    tools = [{"name": "f", "input_schema": SCHEMA}]
    for limit in limits(site, step):
        body = {"model": "tiny", "messages": USER, "tools": tools, "max_tokens": limit}
        said = (await site.http.post("/v1/messages", json=body)).json()
        reply = await site.http.post("/v1/messages", json={**body, "stream": True})
        blocks, delta, usage = message(named_events(reply.text))
        assert delta == {key: said[key] for key in ("stop_reason", "stop_sequence")}
        assert usage == said["usage"]
        assert len(blocks) == len(said["content"])
        for told, block in zip(blocks, said["content"], strict=True):
            assert told["type"] == block["type"]
            if block["type"] != "tool_use":
                assert told["text of it"] == block[block["type"]]
            elif block["input"] or delta["stop_reason"] == "tool_use":
                assert orjson.loads(told["text of it"]) == block["input"]
        assert "\ufffd" not in orjson.dumps(said).decode()


@pytest.mark.parametrize("step", [1, 4])
async def test_g3_a_cut_response_is_told_as_it_is_said(
    serve: Any, named_events: Named, step: int
) -> None:
    site = serve(*OUTPUT, tokens_a_step=step)
    site.fleet = replace(site.fleet, max_model_len=4096)
    tools = [{"type": "function", **TOOL}]
    for limit in limits(site, step):
        body = {"model": "tiny", "input": "u", "tools": tools, "max_output_tokens": limit}
        said = await site.http.post("/v1/responses", json=body)
        reply = await site.http.post("/v1/responses", json={**body, "stream": True})
        *events, (_, last) = named_events(reply.text)
        assert anonymous(orjson.dumps(last["response"])) == anonymous(said.content)
        deltas = "".join(e["delta"] for name, e in events if name == "response.output_text.delta")
        texts = [each["content"] for each in said.json()["output"] if each["type"] == "message"]
        assert deltas == "".join(part["text"] for parts in texts for part in parts)


@pytest.mark.parametrize("step", [1, 4])
async def test_t1_a_cut_text_is_told_as_it_is_said(serve: Any, step: int) -> None:
    site = serve("Ja, 漢字 😀 한국어", EOS, tokens_a_step=step)
    for limit in limits(site, step):
        body = {"model": "tiny", "prompt": "u", "max_tokens": limit}
        (choice,) = (await site.http.post("/v1/completions", json=body)).json()["choices"]
        reply = await site.http.post("/v1/completions", json={**body, "stream": True})
        told = [event["choices"][0] for event in site.parse(reply.text)[:-1]]
        assert "".join(each["text"] for each in told) == choice["text"]
        assert told[-1]["finish_reason"] == choice["finish_reason"]
        assert "\ufffd" not in choice["text"]


def limits(site: Any, step: int) -> range:
    """Every other length; the two sizes of a step take turns."""
    return range(1 + (step > 1), len(site.hops.output.token_ids) + 1, 2)


def anonymous(data: bytes) -> Any:
    """Without what differs from one answer to the next."""
    return orjson.loads(TIME.sub(rb'"\1":0', ID.sub(b'"id"', data)))
