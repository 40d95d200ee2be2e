"""Calls of tools through the whole gateway, from a request's tools to what a client reads."""

import re
from dataclasses import replace
from typing import Any

import pytest

from diptych.core.constraint import Kind
from diptych.gateway.chat import calls
from diptych.text.chat import Chat, Message, Role, render
from diptych.text.markers import Marker, Segment
from diptych.text.pieces import CallEnd
from diptych.text.tools import Tool, ToolCall, invocations

END, EOS = Marker.END_THINK, Marker.EOS
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]
SHOWN = (Tool("weather", "", SCHEMA), Tool("time"))
PARIS = ToolCall("", "weather", '{"city": "Par\\nis", "days": 3}')
TIME = ToolCall("", "time", "{}")
MADE = [("weather", PARIS.arguments), ("time", "{}")]
THINKING = {"thinking": {"type": "enabled"}}


@pytest.fixture
def site(serve: Any) -> Any:
    def build(*segments: Segment, **output: Any) -> Any:
        built = serve(*segments, **output)
        built.fleet = replace(built.fleet, max_model_len=4096)
        return built

    return build


def spelled(*made: ToolCall) -> list[Segment]:
    return invocations(made)


def after_opening(*made: ToolCall) -> list[Segment]:
    return invocations(made)[3:]


def read(made: list[dict[str, Any]]) -> list[tuple[str, str]]:
    for index, call in enumerate(made):
        assert call.keys() == {"id", "type", "function"}
        assert re.fullmatch(rf"call_{index:02d}_[0-9A-Za-z]{{24}}", call["id"])
        assert call["type"] == "function"
    assert len({call["id"] for call in made}) == len(made)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in made]


def gathered(events: list[Any], index: int = 0) -> tuple[list[dict[str, Any]], str | None]:
    """Calls put together from their fragments, as clients do, and the finish."""
    made: list[dict[str, Any]] = []
    finish = None
    for event in events[:-1]:
        (choice,) = event["choices"]
        if choice["index"] != index:
            continue
        assert finish is None, "a chunk after the finish"
        finish = choice["finish_reason"]
        for fragment in choice["delta"].get("tool_calls", ()):
            assert len(choice["delta"]) == 1
            if fragment["index"] == len(made):
                assert fragment["function"]["arguments"] == ""
                made.append({**fragment, "function": dict(fragment["function"])})
                del made[-1]["index"]
            else:
                assert fragment.keys() == {"index", "function"}
                assert fragment["function"].keys() == {"arguments"}
                assert fragment["index"] == len(made) - 1
                made[-1]["function"]["arguments"] += fragment["function"]["arguments"]
    return made, finish


async def test_calls_stand_in_a_whole_answer(site: Any) -> None:
    built = site("Let me look.", *spelled(PARIS, TIME), EOS)
    (choice,) = (await built.ask(tools=TOOLS)).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    assert read(choice["message"]["tool_calls"]) == MADE


async def test_an_answer_of_calls_alone_has_empty_content(site: Any) -> None:
    built = site("Need it.", END, *spelled(TIME), EOS)
    (choice,) = (await built.ask(tools=TOOLS, **THINKING)).json()["choices"]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "Need it."
    assert read(choice["message"]["tool_calls"]) == MADE[1:]


@pytest.mark.parametrize("tokens_a_step", [1, 2, 3, 7, 200])
async def test_streamed_fragments_make_the_same_calls(site: Any, tokens_a_step: int) -> None:
    segments = ["Let me look.", *spelled(PARIS, TIME), EOS]
    events = await site(*segments, tokens_a_step=tokens_a_step).events(tools=TOOLS)
    made, finish = gathered(events)
    assert read(made) == MADE
    assert finish == "tool_calls"
    said = [event["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(said) == "Let me look."


async def test_without_calls_there_is_no_field_of_them(site: Any) -> None:
    (choice,) = (await site("No need.", EOS).ask(tools=TOOLS)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "No need."}
    assert choice["finish_reason"] == "stop"


async def test_every_choice_has_ids_of_its_own(site: Any) -> None:
    built = site(*spelled(TIME), EOS)
    choices = (await built.ask(tools=TOOLS, n=3)).json()["choices"]
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in choices]
    assert len(set(ids)) == 3
    events = await built.events(tools=TOOLS, n=3)
    assert [read(gathered(events, index)[0]) for index in range(3)] == [MADE[1:]] * 3


@pytest.mark.parametrize("missing", [2, 9])
async def test_a_call_that_is_cut_finishes_by_length_and_keeps_what_it_has(
    site: Any, missing: int
) -> None:
    built = site(*spelled(PARIS), EOS)
    ids = built.hops.output.token_ids
    close = len(built.served.tokenizer.encode(["\n</", Marker.DSML, " invoke>\n"]))
    limit = len(ids) - close - missing
    (choice,) = (await built.ask(tools=TOOLS, max_tokens=limit)).json()["choices"]
    assert choice["finish_reason"] == "length"
    ((name, arguments),) = read(choice["message"]["tool_calls"])
    assert name == "weather"
    assert PARIS.arguments.startswith(arguments)
    assert arguments != PARIS.arguments
    made, finish = gathered(await built.events(tools=TOOLS, max_tokens=limit))
    assert (read(made), finish) == ([(name, arguments)], "length")


async def test_a_complete_call_before_the_cut_does_not_change_the_finish(site: Any) -> None:
    built = site(*spelled(TIME, PARIS), EOS)
    limit = len(built.hops.output.token_ids) - 12
    (choice,) = (await built.ask(tools=TOOLS, max_tokens=limit)).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"]) == 2


async def test_the_first_call_ends_a_turn_that_may_have_one_only(site: Any) -> None:
    built = site(*spelled(PARIS, TIME), EOS)
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    (choice,) = (await built.ask(**fields)).json()["choices"]
    assert read(choice["message"]["tool_calls"]) == MADE[:1]
    assert choice["finish_reason"] == "tool_calls"
    made, finish = gathered(await built.events(**fields))
    assert (read(made), finish) == (MADE[:1], "tool_calls")


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_calls_that_nobody_may_make_are_not_shown(site: Any, fields: Any) -> None:
    built = site("Well.", *spelled(PARIS), EOS)
    (choice,) = (await built.ask(**fields)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Well.\n\n"}
    assert choice["finish_reason"] == "stop"
    prompt = built.hops.generations[0].prompt
    user = Message(Role.USER, "Hello")
    assert prompt == built.served.tokenizer.encode(render(Chat((user,), None)))


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": TOOLS[0]["function"]}]
)
async def test_a_forced_call_goes_on_inside_the_block_that_the_prompt_opens(
    site: Any, choice: Any
) -> None:
    built = site(*after_opening(PARIS), EOS)
    fields = {"tools": TOOLS, "tool_choice": choice}
    (answer,) = (await built.ask(**fields)).json()["choices"]
    assert answer["message"]["content"] == ""
    assert read(answer["message"]["tool_calls"]) == MADE[:1]
    assert answer["finish_reason"] == "tool_calls"
    generation = built.hops.generations[0]
    chat = Chat((Message(Role.USER, "Hello"),), None, tools=SHOWN, opens_calls=True)
    assert generation.prompt == built.served.tokenizer.encode(render(chat))
    assert generation.constraint.kind is Kind.TOOL_CALLS
    assert generation.constraint_after == ""


async def test_tools_that_are_not_allowed_are_not_in_the_prompt(site: Any) -> None:
    built = site(*spelled(TIME), EOS)
    wish = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": wish}
    (answer,) = (await built.ask(tools=TOOLS, tool_choice=choice)).json()["choices"]
    assert read(answer["message"]["tool_calls"]) == MADE[1:]
    chat = Chat((Message(Role.USER, "Hello"),), None, tools=SHOWN[1:])
    generation = built.hops.generations[0]
    assert generation.prompt == built.served.tokenizer.encode(render(chat))
    assert generation.constraint is None


async def test_a_forced_call_is_thought_about_first(site: Any) -> None:
    built = site("Hm.", END, *spelled(PARIS), EOS)
    fields = {"tools": TOOLS, "tool_choice": "required", **THINKING}
    (answer,) = (await built.ask(**fields)).json()["choices"]
    assert read(answer["message"]["tool_calls"]) == MADE[:1]
    generation = built.hops.generations[0]
    assert generation.constraint.kind is Kind.TOOL_CALLS
    assert generation.constraint_after == END.value
    assert generation.prompt[-1] == built.served.tokenizer.find(Marker.THINK)


async def test_history_with_calls_is_rendered_as_the_model_wrote_it(site: Any) -> None:
    built = site("Mild.", EOS)
    function = {"name": "weather", "arguments": PARIS.arguments}
    messages = [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Need both.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": function},
                {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "9C"}]},
        {"role": "user", "content": "And?"},
    ]
    assert (await built.ask(messages=messages, tools=TOOLS, **THINKING)).status_code == 200
    asked = (replace(PARIS, id="a"), replace(TIME, id="b"))
    history = (
        Message(Role.USER, "u"),
        Message(Role.ASSISTANT, "", "Need both.", asked),
        Message(Role.TOOL, "9C", call_id="a"),
        Message(Role.TOOL, "noon", call_id="b"),
        Message(Role.USER, "And?"),
    )
    expected = render(Chat(history, 75, tools=SHOWN))
    assert "Need both." in expected
    assert built.hops.generations[0].prompt == built.served.tokenizer.encode(expected)


async def test_a_tool_that_cannot_be_enforced_is_refused_by_its_path(site: Any) -> None:
    bad = {"type": "object", "properties": {"n": {"type": "array", "uniqueItems": True}}}
    function = {"name": "f", "strict": True, "parameters": bad}
    reply = await site("x", EOS).ask(tools=[{"type": "function", "function": function}])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("tools[0].function.parameters.properties.n")


async def test_log_probabilities_of_calls_are_not_told(site: Any) -> None:
    fields = {"tools": TOOLS, "logprobs": True}
    (choice,) = (await site("Hi", *spelled(TIME), EOS).ask(**fields)).json()["choices"]
    told = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert told == "Hi"


def test_ends_of_calls_are_not_told() -> None:
    assert calls.fragment(CallEnd(0)) is None
