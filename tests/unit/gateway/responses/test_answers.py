"""Responses whole and streamed, over scripted engines and under every size of a step."""

import asyncio
import json
import re
from itertools import groupby
from typing import Any

import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.gateway.stream import Patience
from diptych.text.markers import Marker, Segment
from diptych.text.tools import ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": SCHEMA},
    {"type": "function", "name": "time", "parameters": None},
]
CRM = {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "get"}]}
PARIS = ToolCall("", "weather", '{"city": "Par\\nis 漢字 😀", "days": 3}')
TIME = ToolCall("", "time", "{}")
STEPS = [1, 2, 3, 7, 200]
ANSWER = {"reasoning": {"effort": "none"}}
ALL: list[Segment] = ["Need it.\n", END, "\n\nLet me look.", *invocations([PARIS, TIME]), EOS]
ENDINGS = {"response.completed", "response.incomplete", "response.failed"}


class Reader:
    """Puts a stream together as OpenAI's clients do; checks the order on the way."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {}
        self.errors: list[dict[str, Any]] = []
        self._is_open = False

    def read(self, events: list[tuple[str, Any]]) -> "Reader":
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
        assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
        for name, data in events[:2]:
            assert name == data["type"]
            assert data["response"]["status"] == "in_progress"
            assert (data["response"]["output"], data["response"]["usage"]) == ([], None)
        for name, data in events[2:]:
            assert name == data["type"]
            self._take(name, data)
        assert events[-1][0] in ENDINGS
        assert self.response["id"] == events[0][1]["response"]["id"]
        return self

    def _take(self, name: str, data: dict[str, Any]) -> None:
        if name in ENDINGS:
            assert not self._is_open or name == "response.failed"
            self.response = data["response"]
            assert data["response"]["status"] == name.removeprefix("response.")
            return
        if name == "response.output_item.added":
            assert not self._is_open
            self._is_open = True
            assert data["output_index"] == len(self.items)
            assert data["item"]["status"] == "in_progress"
            self.items.append(data["item"])
            return
        if name == "error":
            self.errors.append(data)
            return
        item = self.items[-1]
        assert self._is_open
        assert data["output_index"] == len(self.items) - 1
        if name == "response.output_item.done":
            assert data["item"]["id"] == item["id"]
            assert data["item"].get("content") == item.get("content")
            assert data["item"].get("arguments") == item.get("arguments")
            self.items[-1] = data["item"]
            self._is_open = False
            return
        assert data["item_id"] == item["id"]
        kind = name.removeprefix("response.")
        if kind.startswith("function_call_arguments"):
            if kind.endswith("delta"):
                item["arguments"] += data["delta"]
            assert data.get("arguments", item["arguments"]) == item["arguments"]
            return
        assert data["content_index"] == 0
        match kind:
            case "content_part.added":
                item["content"].append(data["part"])
            case "reasoning_text.delta" | "output_text.delta":
                item["content"][0]["text"] += data["delta"]
                if kind == "output_text.delta":
                    item["content"][0]["logprobs"] += data["logprobs"]
            case "reasoning_text.done" | "output_text.done":
                assert data["text"] == item["content"][0]["text"]
                if kind == "output_text.done":
                    assert data["logprobs"] == item["content"][0]["logprobs"]
            case "content_part.done":
                assert data["part"] == item["content"][0]
            case _:
                pytest.fail(f"unknown event {name}")


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from answer to answer."""
    response = dict(response)
    assert re.fullmatch(r"resp_[0-9a-f]{32}", response.pop("id"))
    for name in ("created_at", "completed_at"):
        assert isinstance(response.pop(name), int | None)
    return response | {"output": bare(response["output"])}


def bare(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for item in items:
        item = dict(item)
        prefix = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[item["type"]]
        assert re.fullmatch(rf"{prefix}_[0-9a-f]{{32}}", item.pop("id"))
        if prefix == "fc":
            assert re.fullmatch(r"call_[0-9a-f]{32}", item.pop("call_id"))
        found.append(item)
    return found


def reasoning(text: str, status: str = "completed") -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "summary": [], "content": content, "status": status}


def message(text: str, phase: str = "final_answer", status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"type": "message", "role": "assistant", "content": [part]}
    return {**item, "status": status, "phase": phase}


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "arguments": arguments, "status": "completed"}


async def test_a_whole_response_has_items_a_status_usage_and_repeats_its_request(
    client: Any,
) -> None:
    asked = client(*ALL, cached_tokens=4)
    wish = {
        "instructions": "Be brief.",
        "tools": TOOLS,
        "reasoning": {"effort": "high"},
        "metadata": {"a": "b"},
        "user": "u",
        "store": True,
        "temperature": 0.5,
        "max_output_tokens": 300,
    }
    response = await asked.whole(**wish)
    prompt, sampled = len(asked.prompt), len(asked.site.hops.output.token_ids)
    assert isinstance(response["completed_at"], int)
    said = asked.site.hops.generations[-1]
    assert said.sampling.temperature == 0.5
    assert plain(response) == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "Be brief.",
        "max_output_tokens": 300,
        "metadata": {"a": "b"},
        "model": "tiny",
        "output": [
            reasoning("Need it."),
            message("Let me look.", "commentary"),
            called("weather", PARIS.arguments),
            called("time", "{}"),
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": "high", "summary": None},
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": TOOLS,
        "top_logprobs": 0,
        "top_p": 0.95,
        "truncation": "disabled",
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {
                "reasoning_tokens": response["usage"]["output_tokens_details"]["reasoning_tokens"]
            },
            "total_tokens": prompt + sampled,
        },
        "user": "u",
    }
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("tokens_a_step", STEPS)
@pytest.mark.parametrize("effort", ["high", "none"])
async def test_a_stream_put_together_is_the_whole_response(
    client: Any, tokens_a_step: int, effort: str
) -> None:
    segments = ALL if effort == "high" else ALL[2:]
    asked = client(*segments, tokens_a_step=tokens_a_step, cached_tokens=4)
    wish = {"tools": TOOLS, "reasoning": {"effort": effort}}
    whole = plain(await asked.whole(**wish))
    reader = Reader().read(await asked.events(**wish))
    assert plain(reader.response) == whole
    assert reader.response["output"] == reader.items


async def test_the_events_of_each_kind_of_item_come_in_order(client: Any) -> None:
    asked = client(*ALL[:-1], EOS, tokens_a_step=200)
    events = await asked.events(tools=TOOLS)
    names = [name for name, _ in groupby(name for name, _ in events)]
    item, part = "response.output_item", "response.content_part"
    call = [
        f"{item}.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        f"{item}.done",
    ]
    assert names == [
        "response.created",
        "response.in_progress",
        f"{item}.added",
        f"{part}.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        f"{part}.done",
        f"{item}.done",
        f"{item}.added",
        f"{part}.added",
        "response.output_text.delta",
        "response.output_text.done",
        f"{part}.done",
        f"{item}.done",
        *call,
        *call,
        "response.completed",
    ]


async def test_there_is_no_done_and_every_event_has_its_name(client: Any) -> None:
    reply = await client("Hi", EOS).post(stream=True)
    assert "[DONE]" not in reply.text
    for block in reply.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")


async def test_a_message_before_calls_is_commentary_and_one_alone_the_final_answer(
    client: Any,
) -> None:
    (item,) = (await client("Yes.", EOS).whole(**ANSWER))["output"]
    assert item["phase"] == "final_answer"
    first, *_ = (await client("Yes.", *invocations([TIME]), EOS).whole(tools=TOOLS, **ANSWER))[
        "output"
    ]
    assert first["phase"] == "commentary"


@pytest.mark.parametrize("tokens_a_step", [1, 5])
async def test_a_response_that_is_cut_is_incomplete_and_so_is_its_last_item(
    client: Any, tokens_a_step: int
) -> None:
    asked = client("one two", END, "three four five", EOS, tokens_a_step=tokens_a_step)
    for limit in range(1, len(asked.site.hops.output.token_ids) - 1):
        response = await asked.whole(max_output_tokens=limit)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["completed_at"] is None
        assert [i["status"] for i in response["output"][:-1]] == ["completed"] * (
            len(response["output"]) - 1
        )
        reader = Reader().read(await asked.events(max_output_tokens=limit))
        assert plain(reader.response) == plain(response)
        if response["output"]:
            assert response["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("tokens_a_step", [1, 4])
async def test_g3_a_call_that_is_cut_is_streamed_as_it_is_and_left_out_of_the_response(
    client: Any, tokens_a_step: int
) -> None:
    asked = client("Well.", *invocations([TIME, PARIS]), EOS, tokens_a_step=tokens_a_step)
    ids = asked.site.hops.output.token_ids
    counts = set()
    for limit in range(len(asked.encoded("Well.")), len(ids) - 1):
        wish = {"tools": TOOLS, "max_output_tokens": limit, **ANSWER}
        whole = plain(await asked.whole(**wish))
        reader = Reader().read(await asked.events(**wish))
        assert plain(reader.response) == whole
        assert whole["status"] == "incomplete"
        calls = [item for item in whole["output"] if item["type"] == "function_call"]
        counts.add(len(calls))
        assert calls == [called("time", "{}"), called("weather", PARIS.arguments)][: len(calls)]
        *finished, last = reader.items
        if last["type"] == "function_call" and last["status"] == "incomplete":
            assert finished == reader.response["output"]
            with pytest.raises(ValueError):
                json.loads(last["arguments"])
        else:
            assert reader.items == reader.response["output"]
    assert counts == {0, 1, 2}


async def test_functions_of_namespaces_are_called_by_namespace_and_name(client: Any) -> None:
    call = ToolCall("", "crm::get", '{"id": 1}')
    asked = client(*invocations([call]), EOS, tokens_a_step=1)
    (item,) = (await asked.whole(tools=[CRM], **ANSWER))["output"]
    assert (item["namespace"], item["name"]) == ("crm", "get")
    reader = Reader().read(await asked.events(tools=[CRM], **ANSWER))
    assert bare(reader.items) == bare([item])
    assert (
        "crm::get" in b"".join(map(asked.site.served.tokenizer.token_bytes, asked.prompt)).decode()
    )


@pytest.mark.parametrize("tokens_a_step", [1, 3, 200])
async def test_log_probabilities_stand_with_the_text_whole_and_streamed(
    client: Any, tokens_a_step: int
) -> None:
    asked = client("a", END, "Hé 漢字", EOS, tokens_a_step=tokens_a_step, num_top=2)
    wish = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    thought, item = (await asked.whole(**wish))["output"]
    assert "logprobs" not in thought["content"][0]
    entries = item["content"][0]["logprobs"]
    said = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    assert said == item["content"][0]["text"] == "Hé 漢字"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert {"token", "logprob", "bytes", "top_logprobs"} == entries[0].keys()
    reader = Reader().read(await asked.events(**wish))
    assert reader.items[1]["content"][0]["logprobs"] == entries
    assert asked.site.hops.generations[-1].sampling.logprobs == 2


async def test_log_probabilities_come_only_if_asked_for(client: Any) -> None:
    asked = client("Hi", EOS)
    (item,) = (await asked.whole(**ANSWER))["output"]
    assert item["content"][0]["logprobs"] == []
    assert asked.site.hops.generations[-1].sampling.logprobs is None
    await asked.whole(include=["message.output_text.logprobs"])
    assert asked.site.hops.generations[-1].sampling.logprobs == 0


async def test_encrypted_reasoning_is_accepted_and_empty(client: Any) -> None:
    asked = client("a", END, "b", EOS)
    item, _ = (await asked.whole(include=["reasoning.encrypted_content"]))["output"]
    assert item["encrypted_content"] == ""
    item, _ = (await asked.whole())["output"]
    assert "encrypted_content" not in item


async def test_what_a_response_says_can_be_sent_back_as_it_is(client: Any) -> None:
    asked = client(*ALL)
    first = await asked.whole(tools=TOOLS)
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": c["call_id"], "output": "9C"} for c in calls
    ]
    history = [{"role": "user", "content": "Hello"}, *first["output"], *results]
    await asked.whole(tools=TOOLS, input=history)
    turn = asked.encoded("Need it.", END, "Let me look.", *invocations([PARIS, TIME]), EOS)
    assert f",{turn}"[2:-1] in f"{asked.prompt}"


async def test_t24_a_silent_stream_says_again_that_it_is_in_progress(client: Any) -> None:
    patience = Patience(headers_s=0.02, silence_s=0.02, no_op_s=0.04)
    asked = client("one two", EOS, patience=patience)
    asked.site.hops.holds = {"first"}
    asyncio.get_running_loop().call_later(0.6, asked.site.hops.release)
    reply = await asked.post(stream=True, **ANSWER)
    assert reply.text.startswith(": keep-alive\n\n")
    events = asked.parse(reply.text)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [name for name, _ in events]
    assert names.count("response.created") == 1
    assert names[0] == "response.created"
    assert names.count("response.in_progress") >= 2
    assert names[-1] == "response.completed"


async def test_a_failure_before_the_first_token_keeps_its_status(client: Any) -> None:
    for stream in (False, True):
        asked = client("x", EOS)
        asked.site.hops.failures["place"] = [Overloaded("full", retry_after_s=2)]
        reply = await asked.post(stream=stream)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "no_capacity"


@pytest.mark.parametrize("tokens_a_step", [1, 2])
async def test_t20_a_failure_later_is_an_error_and_a_failed_response(
    client: Any, tokens_a_step: int
) -> None:
    asked = client("one two three four five six", EOS, tokens_a_step=tokens_a_step)
    for stage in ("token 3", "token 4", "token 5", "token 6"):
        asked.site.hops.failures[stage] = [Lost("gone")]
    events = await asked.events(**ANSWER)
    assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
    reader = Reader().read(events)
    (error,) = reader.errors
    assert error.keys() == {"type", "code", "message", "param", "sequence_number"}
    assert error["code"] == "worker_lost"
    assert error["message"].startswith("gone (req_")
    assert reader.response["status"] == "failed"
    assert reader.response["error"] == {"code": "worker_lost", "message": error["message"]}


async def test_no_character_breaks_an_event_into_lines(client: Any) -> None:
    text = "a" + "".join(map(chr, [*range(0x20), 0x7F, 0x85, 0x2028, 0x2029, 0xFEFF])) + "x"
    asked = client(text, EOS)
    reply = await asked.post(stream=True, **ANSWER)
    assert reply.text.splitlines() == reply.text.split("\n")[:-1]
    assert Reader().read(asked.parse(reply.text)).items[0]["content"][0]["text"] == text
