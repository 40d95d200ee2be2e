"""Mistakes that others made in public, by the number they have in our list: those of streams.

Each under every size of an engine's step, since that is what decides where a text is cut.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from diptych.core.errors import Lost
from diptych.core.phases import Finish
from diptych.gateway.stream import Patience
from diptych.text.markers import Marker, Segment
from diptych.text.tools import ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
STEPS = [1, 2, 3, 4, 5, 7, 11, 1000]
ON = {"thinking": {"type": "enabled"}}
USAGE = {"stream_options": {"include_usage": True}}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
SHELL = json.dumps({"a": "make 2>&1"})

Build = Callable[..., Any]


@pytest.fixture
def site(serve: Any) -> Build:
    def build(*segments: Segment, **output: Any) -> Any:
        built = serve(*segments, **output)
        built.fleet = replace(built.fleet, max_model_len=4096)
        return built

    return build


def called(*arguments: str) -> list[Segment]:
    return invocations([ToolCall("", "f", each) for each in arguments])


def chunks_of(events: list[Any], index: int) -> list[dict[str, Any]]:
    """Of one choice."""
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]
    return [choice for choice in choices if choice["index"] == index]


def joined(chunks: list[dict[str, Any]], field: str) -> str:
    return "".join(chunk["delta"].get(field) or "" for chunk in chunks)


def arguments_of(chunks: list[dict[str, Any]]) -> list[str]:
    """Of each call, put together as clients do."""
    made: list[str] = []
    for chunk in chunks:
        for fragment in chunk["delta"].get("tool_calls", ()):
            if fragment["index"] == len(made):
                made.append("")
            made[fragment["index"]] += fragment["function"]["arguments"]
    return made


@pytest.mark.parametrize("step", STEPS)
async def test_t14_t15_t16_t18_t21_a_stream_has_its_frame(site: Build, step: int) -> None:
    built = site("Hm.", END, "Look.", *called(SHELL, "{}"), EOS, tokens_a_step=step)
    *events, usage, done = await built.events(tools=TOOLS, n=3, **ON, **USAGE)
    assert done == "[DONE]" and "[DONE]" not in events
    assert usage["choices"] == [] and usage["usage"]["total_tokens"]
    assert all(len(event["choices"]) == 1 and event["usage"] is None for event in events)
    for field in ("id", "created", "model", "system_fingerprint", "object"):
        assert len({event[field] for event in [*events, usage]}) == 1
    for index in range(3):
        first, *middle, last = chunks_of(events, index)
        assert first["delta"]["role"] == "assistant"
        assert not any("role" in chunk["delta"] for chunk in [*middle, last])
        assert all(chunk["finish_reason"] is None for chunk in [first, *middle])
        assert (last["delta"], last["finish_reason"]) == ({}, "tool_calls")
    plain = await built.events(tools=TOOLS, **ON)
    assert plain.count("[DONE]") == 1
    assert all("usage" not in event for event in plain[:-1])


@pytest.mark.parametrize("step", STEPS)
async def test_t22_choices_keep_their_texts_apart(site: Build, step: int) -> None:
    built = site("Hm.", END, "Straße 漢字 😀", *called(SHELL), EOS, tokens_a_step=step)
    events = await built.events(tools=TOOLS, n=4, **ON)
    assert {event["choices"][0]["index"] for event in events[:-1]} == {0, 1, 2, 3}
    for index in range(4):
        chunks = chunks_of(events, index)
        assert joined(chunks, "reasoning_content") == "Hm."
        assert joined(chunks, "content") == "Straße 漢字 😀"
        assert arguments_of(chunks) == [SHELL]


async def test_t17_t111_silence_is_filled_with_nothing_that_is_data(serve: Any, visit: Any) -> None:
    patience = Patience(headers_s=0.02, silence_s=0.02, no_op_s=0.06)
    built = serve("x", EOS, patience=patience)
    built.hops.holds = {"queue"}
    client = visit(built, stream=True)
    await client.heard(b'"finish_reason":null')
    assert b'llm_ttft_seconds_count{role="gateway"} 0.0' in built.pipeline.measures.metrics.text()
    built.hops.release()
    await client.over()
    blocks = client.body.decode().split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        assert block == ": keep-alive" or block.startswith("data: ")
        assert "\n" not in block
    filled = [
        block for block in blocks if '"delta":{}' in block and '"finish_reason":null' in block
    ]
    assert filled


@pytest.mark.parametrize("step", STEPS)
async def test_g1_a_lost_worker_at_the_end_of_a_call_costs_no_finish(
    site: Build, step: int
) -> None:
    """A worker that says nothing more is replaced, and the stream ends as any other."""
    built = site(*called(SHELL), EOS, tokens_a_step=step)
    count = len(built.hops.output.token_ids)
    last = 1 + -(-(count - 1) // step) * step  # what the last step would bring it to
    built.hops.failures[f"token {last}"] = [Lost("gone")]
    built.hops.failures[f"token {count}"] = [Lost("gone")]
    *events, usage, done = await built.events(tools=TOOLS, **USAGE)
    assert len(built.hops.agains) >= 1
    assert done == "[DONE]" and usage["choices"] == []
    finishes = [event["choices"][0]["finish_reason"] for event in events]
    assert finishes[-1] == "tool_calls" and set(finishes[:-1]) == {None}
    assert arguments_of(chunks_of(events, 0)) == [SHELL]


@pytest.mark.parametrize("step", STEPS)
async def test_g2_the_finish_comes_after_the_last_fragment(site: Build, step: int) -> None:
    built = site(*called(SHELL), EOS, tokens_a_step=step)
    chunks = chunks_of(await built.events(tools=TOOLS), 0)
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert json.loads(arguments_of(chunks[:-1])[0]) == {"a": "make 2>&1"}


@pytest.mark.parametrize("step", STEPS)
async def test_t39_g9_no_marker_is_ever_content(site: Build, step: int) -> None:
    built = site("Hm.", END, "Look.", *called(SHELL, SHELL), EOS, tokens_a_step=step)
    chunks = chunks_of(await built.events(tools=TOOLS, **ON), 0)
    assert (joined(chunks, "reasoning_content"), joined(chunks, "content")) == ("Hm.", "Look.")
    assert arguments_of(chunks) == [SHELL, SHELL]
    message = (await built.ask(tools=TOOLS, **ON)).json()["choices"][0]["message"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [SHELL, SHELL]


@pytest.mark.parametrize("step", STEPS)
async def test_t47_g3_a_call_that_is_cut_anywhere_is_no_call_to_run(site: Build, step: int) -> None:
    built = site(*called("{}", SHELL), EOS, tokens_a_step=step)
    for limit in range(1, len(built.hops.output.token_ids) - 1):
        whole = (await built.ask(tools=TOOLS, max_tokens=limit)).json()["choices"][0]
        chunks = chunks_of(await built.events(tools=TOOLS, max_tokens=limit), 0)
        assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "length"
        made = [call["function"]["arguments"] for call in whole["message"].get("tool_calls", ())]
        assert arguments_of(chunks) == made
        assert not made or "{}".startswith(made[0])
        assert len(made) < 2 or SHELL.startswith(made[1].removesuffix("/").removesuffix("<"))


@pytest.mark.parametrize("step", STEPS)
async def test_t1_t11_g6_characters_arrive_whole(site: Build, step: int) -> None:
    text = " 한국어 漢字 👩‍👩‍👧 e\u0301 \u202eabc"
    built = site(text, EOS, tokens_a_step=step)
    assert joined(chunks_of(await built.events(), 0), "content") == text
    ids = built.served.tokenizer.encode([text])
    for limit in range(1, len(ids)):
        cut = joined(chunks_of(await built.events(max_tokens=limit), 0), "content")
        assert text.startswith(cut) and "\ufffd" not in cut


@pytest.mark.parametrize("step", STEPS)
async def test_t3_t5_g10_a_stop_string_shows_nothing_of_itself(site: Build, step: int) -> None:
    for said, shown in (("one\nUser: two", "one"), ("one\nUsage", "one\nUsage")):
        built = site("Q\nUser: ", END, said, EOS, tokens_a_step=step)
        chunks = chunks_of(await built.events(stop=["\nUser:"], **ON), 0)
        assert joined(chunks, "reasoning_content") == "Q\nUser: "
        assert joined(chunks, "content") == shown
        assert chunks[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("step", STEPS)
async def test_g5_a_beginning_of_a_tag_is_text_in_the_end(site: Build, step: int) -> None:
    for segments, field in ((["x </thi"], "reasoning_content"), (["r", END, "x </thi"], "content")):
        for finish in (Finish.STOP, Finish.LENGTH):
            built = site(*segments, tokens_a_step=step, finish=finish)
            chunks = chunks_of(await built.events(**ON), 0)
            assert joined(chunks, field) == "x </thi"


@pytest.mark.parametrize("step", STEPS)
async def test_t31_t36_reasoning_cut_by_its_length_is_all_there_is(site: Build, step: int) -> None:
    built = site("one two three four", END, "five", EOS, tokens_a_step=step)
    for limit in (1, 2, 3):
        events = await built.events(max_tokens=limit, **ON, **USAGE)
        chunks = chunks_of(events, 0)
        assert joined(chunks, "content") == "" and chunks[-1]["finish_reason"] == "length"
        usage = events[-2]["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == limit
        assert usage["completion_tokens"] == limit
