"""Mistakes that others made in public, by the number they have in our list: those of chats.

What is the parser's or the renderer's alone is tested in tests/unit/text.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from diptych.core.phases import Finish
from diptych.core.sampling import choice_seed
from diptych.gateway import served
from diptych.gateway.chat.preparation import segments_of
from diptych.gateway.chat.request import read_chat
from diptych.text.image import NUM_SENTINELS, image_of
from diptych.text.markers import Marker, Segment, spell
from diptych.text.markers import split as split_markers

EOS, THINK, END_THINK = Marker.EOS, Marker.THINK, Marker.END_THINK
PATH = "/v1/chat/completions"
TINY = Path(__file__).parents[3] / "golden" / "tiny-text"
ON = {"thinking": {"type": "enabled"}}
USER = {"role": "user", "content": "u"}
MARKUP = {Marker.DSML, THINK, END_THINK}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def calling(*arguments: Any, **fields: Any) -> dict[str, Any]:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    return {"role": "assistant", "tool_calls": calls, **fields}


def result(index: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{index}", "content": content}


def written(*parameters: str) -> list[Segment]:
    """A block with one call, as the model writes it."""
    body = "\n".join(parameters)
    text = (
        f'\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n{body}\n</｜DSML｜ invoke>\n'
        "</｜DSML｜ calls>"
    )
    return split_markers(text, MARKUP)


def parameter(name: str, value: str, is_string: bool) -> str:
    kind = "true" if is_string else "false"
    return f'<｜DSML｜ parameter name="{name}" string="{kind}">{value}</｜DSML｜ parameter>'


async def prompt_of(messages: Iterable[Any], **fields: Any) -> str:
    model = served.load(TINY, "tiny", b"master", lambda: None)
    try:
        body = {"model": "tiny", "messages": list(messages), **fields}
        return spell(await segments_of(read_chat(body)[0]))
    finally:
        model.close()


def texts(events: list[Any], field: str) -> str:
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]
    return "".join(choice["delta"].get(field) or "" for choice in choices)


def roomy(site: Any) -> Any:
    site.fleet = replace(site.fleet, max_model_len=100_000)
    return site


# Text and stops


@pytest.mark.parametrize("where", ["content", "role", "new name"])
async def test_t9_a_lone_surrogate_is_invalid_json(serve: Any, where: str) -> None:
    site = serve("x", EOS)
    body = orjson.dumps(site.body(user="SURROGATE") | {where: "SURROGATE"})
    reply = await site.http.post(PATH, content=body.replace(b"SURROGATE", b"\\ud83d"))
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")
    assert "ud83d" not in reply.text


async def test_t10_control_characters_are_text_and_break_no_event(serve: Any) -> None:
    controls = "".join(map(chr, range(32))) + "\x7f\x85\u2028\u2029"
    site = serve(f"a{controls}z", EOS)
    content = f"say {controls}!"
    reply = await site.ask(stream=True, messages=[{"role": "user", "content": content}])
    prompt = b"".join(map(site.served.tokenizer.token_bytes, site.hops.generations[-1].prompt))
    assert content.encode() in prompt
    lines = reply.text.splitlines()
    assert all(line == "" or line.startswith("data: ") for line in lines)
    events = [orjson.loads(line[6:]) for line in lines if line and line != "data: [DONE]"]
    assert texts(events, "content") == f"a{controls}z"
    whole = await site.ask()
    assert whole.json()["choices"][0]["message"]["content"] == f"a{controls}z"


@pytest.mark.parametrize("stop", ["", [""], ["x", ""]])
async def test_t13_an_empty_stop_string_is_refused(serve: Any, stop: Any) -> None:
    reply = await serve("x", EOS).ask(stop=stop)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"].startswith("stop")
    assert (await serve("x", EOS).ask(stop=[])).status_code == 200


# Reasoning


async def test_t31_reasoning_that_is_cut_keeps_what_there_is(serve: Any) -> None:
    site = serve("one two three", finish=Finish.LENGTH)
    choice = (await site.ask(**ON)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    said = {"role": "assistant", "content": "", "reasoning_content": "one two three"}
    assert choice["message"] == said
    events = await site.events(**ON)
    assert texts(events, "reasoning_content") == "one two three"
    assert texts(events, "content") == ""
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_t33_empty_reasoning_is_not_missing_reasoning() -> None:
    history = [USER, calling("{}", content="", reasoning_content=""), result(0, "r")]
    prompt = await prompt_of(history, tools=TOOLS)
    assert "<｜Assistant｜><think></think>" in prompt
    named = [USER, calling("{}", reasoning="old", reasoning_content=""), result(0, "r")]
    assert "old" not in await prompt_of(named, tools=TOOLS)
    alias = [USER, calling("{}", reasoning="old"), result(0, "r")]
    assert "<think>old</think>" in await prompt_of(alias, tools=TOOLS)


@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": None}])
async def test_t32_missing_reasoning_is_filled_with_none(reasoning: dict[str, Any]) -> None:
    history = [USER, calling("{}", **reasoning), result(0, "r")]
    assert "<｜Assistant｜><think></think>" in await prompt_of(history, tools=TOOLS)


async def test_t34_old_reasoning_is_kept_with_tools_alone() -> None:
    answer = {"role": "assistant", "content": "a1", "reasoning_content": "r1"}
    history = [USER, answer, USER]
    assert "<｜Assistant｜></think>a1" in await prompt_of(history)
    assert "<｜Assistant｜><think>r1</think>a1" in await prompt_of(history, tools=TOOLS)
    plain = await prompt_of(history, tools=TOOLS, thinking={"type": "disabled"})
    assert "<｜Assistant｜></think>a1" in plain and "r1" not in plain


@pytest.mark.parametrize(
    ("effort", "number"),
    [
        ("minimal", 50), ("low", 50), ("medium", 75), ("high", 75), ("xhigh", 75),
        ("max", 100), ("ultra", 100), (1, 1), ("100", 100), (42.0, 42), (None, 75),
    ],
)  # fmt: skip
async def test_t35_the_effort_is_that_of_the_release(effort: Any, number: int) -> None:
    prompt = await prompt_of([USER], reasoning_effort=effort)
    assert f"<｜System｜>Reasoning Effort: {number} (range 1-100" in prompt


async def test_t36_reasoning_tokens_are_counted_without_the_answer(serve: Any) -> None:
    site = serve("one two", END_THINK, "three four five", EOS)
    thought = site.served.tokenizer.encode(["one two"])
    for stream in (False, True):
        if stream:
            usage = (await site.events(**ON, stream_options={"include_usage": True}))[-2]["usage"]
        else:
            usage = (await site.ask(**ON)).json()["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
        assert usage["completion_tokens"] > len(thought) + 2
    plain = (await serve("one two", EOS).ask()).json()["usage"]
    assert plain["completion_tokens_details"] == {"reasoning_tokens": 0}


# Tools


@pytest.mark.parametrize("content", [{"content": ""}, {"content": None}, {}])
async def test_t52_calls_need_no_content(content: dict[str, Any]) -> None:
    prompt = await prompt_of([USER, calling("{}", **content), result(0, "r")], tools=TOOLS)
    assert "</think>\n\n<｜DSML｜ calls>\n" in prompt


async def test_t53_results_come_in_the_order_of_their_calls_and_apart_from_the_user() -> None:
    history = [USER, calling("{}", "{}"), result(1, "second"), result(0, "first"), USER]
    prompt = await prompt_of(history, tools=TOOLS)
    first, second = "<tool_result>first</tool_result>", "<tool_result>second</tool_result>"
    assert f"<｜User｜>{first}\n\n{second}\n\nu<｜Assistant｜>" in prompt


@pytest.mark.parametrize(
    "number", ["9007199254740993", "123456789012345678901234567890", "1.0", "0.10", "-0", "1e3"]
)
@pytest.mark.parametrize("step", [1, 5])
async def test_t54_numbers_keep_their_digits(serve: Any, number: str, step: int) -> None:
    output = written(parameter("a", number, is_string=False))
    site = roomy(serve(*output, EOS, tokens_a_step=step))
    events = await site.events(tools=TOOLS)
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    fragments = [d["tool_calls"][0]["function"] for d in deltas if "tool_calls" in d]
    assert "".join(f["arguments"] for f in fragments) == f'{{"a": {number}}}'


async def test_t55_any_text_of_an_argument_comes_back_exactly(serve: Any) -> None:
    text = 'say "hi"\n\\n\t</｜DSML｜ parameter>\x01 é😀'
    typed = text.replace(
        "｜DSML｜", "｜DSML ｜"
    )  # of the marker, only its token would end the value
    site = roomy(serve(*written(parameter("a", typed, is_string=True)), EOS))
    said = (await site.ask(tools=TOOLS)).json()["choices"][0]["message"]
    (call,) = said["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": typed}
    ids = site.served.tokenizer.encode(
        ["\n\n<", Marker.DSML, " calls>\n<", Marker.DSML, ' invoke name="f">\n<', Marker.DSML,
         ' parameter name="a" string="true">', text, "</", Marker.DSML, " parameter>\n</",
         Marker.DSML, " invoke>\n</", Marker.DSML, " calls>", EOS]
    )  # fmt: skip
    spelled = roomy(serve(token_ids=ids))
    said = (await spelled.ask(tools=TOOLS)).json()["choices"][0]["message"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"a": text}


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ({"a": 1}, parameter("a", "1", is_string=False)),
        ('{"a": 1}', parameter("a", "1", is_string=False)),
        ("{oops", parameter("arguments", "{oops", is_string=True)),
        ("", parameter("arguments", "", is_string=True)),
        ("[1]", parameter("arguments", "[1]", is_string=True)),
    ],
)
async def test_t56_arguments_may_come_back_as_object_or_broken(
    arguments: Any, rendered: str
) -> None:
    history = [USER, calling(arguments), result(0, "r")]
    assert f"\n{rendered}\n" in await prompt_of(history, tools=TOOLS)


async def test_t57_an_answer_that_comes_back_renders_to_what_was_generated(serve: Any) -> None:
    called = written(parameter("a", "x <b>", is_string=True), parameter("b", "[1, 2.0]", False))
    site = roomy(serve("Need it.", END_THINK, "Let me look.", *called, EOS))
    said = (await site.ask(**ON, tools=TOOLS)).json()["choices"][0]["message"]
    generation = site.hops.generations[-1]
    generated = generation.prompt + site.hops.output.token_ids
    call_id = said["tool_calls"][0]["id"]
    answer = {"role": "tool", "tool_call_id": call_id, "content": "r"}
    first = {"role": "user", "content": "Hello"}
    await site.ask(**ON, tools=TOOLS, messages=[first, said, answer])
    assert site.hops.generations[-1].prompt[: len(generated)] == generated


@pytest.mark.parametrize(
    ("tools", "status"),
    [
        ([tool(f"f{i}") for i in range(129)], 200),
        ([tool("x" * 65)], 200),
        ([tool("x" * 128)], 200),
        ([tool("a.b")], 400),
        ([tool("x" * 129)], 400),
        ([tool("größe")], 400),
        ([tool(f"f{i}") for i in range(513)], 400),
    ],
)
async def test_t58_limits_of_tools_are_clear(
    serve: Any, tools: list[dict[str, Any]], status: int
) -> None:
    reply = await roomy(serve("x", EOS)).ask(tools=tools)
    assert reply.status_code == status, reply.text
    if status == 400:
        error = reply.json()["error"]
        assert error["code"] == "invalid_tools" and error["param"].startswith("tools")
        assert "größe" not in error["message"]


@pytest.mark.parametrize(
    ("parameters", "rendered"),
    [
        ({"parameters": None}, '"parameters": {}'),
        ({}, '"parameters": {}'),
        ({"parameters": {"description": "d"}}, '"parameters": {"description": "d"}'),
        ({"parameters": {"type": ["object", "null"]}}, '"parameters": {"type": ["object", "null"]'),
    ],
)
async def test_t59_odd_schemas_of_tools_are_taken(
    parameters: dict[str, Any], rendered: str
) -> None:
    assert rendered in await prompt_of([USER], tools=[tool("f", **parameters)])


# Log-probabilities, sampling, limits


async def test_t77_the_first_token_of_a_prompt_has_no_log_probability(serve: Any) -> None:
    reply = (await serve("x", EOS).ask(prompt_logprobs=1, max_tokens=1)).json()
    first, *others = reply["prompt_logprobs"]
    assert first is None and len(others) == reply["usage"]["prompt_tokens"] - 1
    assert all(max(e["logprob"] for e in each.values()) <= 0 for each in others)


async def test_t78_one_token_is_the_least(serve: Any) -> None:
    assert (await serve("x", EOS).ask(max_tokens=0)).status_code == 400
    cut = serve("one two", finish=Finish.LENGTH)
    ids = cut.served.tokenizer.encode(["one two"])[:1]
    for output, reason in ((ids, "length"), (cut.served.tokenizer.encode([EOS]), "stop")):
        finish = Finish.LENGTH if reason == "length" else Finish.STOP
        site = serve(token_ids=output, finish=finish)
        reply = (await site.ask(max_tokens=1)).json()
        assert site.hops.generations[-1].max_new == 1
        assert reply["choices"][0]["finish_reason"] == reason
        assert reply["usage"]["completion_tokens"] == 1


async def test_t79_an_explicit_limit_is_never_clipped_and_a_default_never_negative(
    serve: Any,
) -> None:
    site = serve("x", EOS)
    for name in ("max_tokens", "max_completion_tokens"):
        reply = await site.ask(**{name: 512})
        assert (reply.status_code, reply.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
    await site.ask()
    generation = site.hops.generations[-1]
    assert generation.max_new == 512 - len(generation.prompt)
    wide = serve("x", EOS)
    wide.fleet = replace(wide.fleet, max_model_len=1_048_576)
    for fields, default in (({}, 8192), (ON, 65_536), ({**ON, "reasoning_effort": 100}, 131_072)):
        await wide.ask(**fields)
        assert wide.hops.generations[-1].max_new == default


@pytest.mark.parametrize(("room", "status"), [(1, 200), (0, 400), (-1, 400)])
@pytest.mark.parametrize("asked", [{}, {"max_tokens": 1}])
async def test_t80_the_boundary_of_the_context_is_exact(
    serve: Any, room: int, status: int, asked: dict[str, int]
) -> None:
    site = serve("x", EOS)
    await site.ask()
    length = len(site.hops.generations[-1].prompt)
    site.fleet = replace(site.fleet, max_model_len=length + room)
    reply = await site.ask(**asked)
    assert reply.status_code == status
    if status == 200:
        assert site.hops.generations[-1].max_new == 1
    else:
        assert f"maximum context length is {length + room} tokens" in reply.text


async def test_t81_a_chat_has_exactly_one_bos(serve: Any) -> None:
    site = serve("x", EOS)
    bos = site.served.tokenizer.find(Marker.BOS)
    typed = [{"role": "user", "content": Marker.BOS.value * 2 + "Hello"}]
    for fields in ({}, ON, {"messages": typed}):
        await site.ask(**fields)
        prompt = site.hops.generations[-1].prompt
        assert prompt[0] == bos and prompt.count(bos) == 1


async def test_t82_greedy_choices_are_allowed_and_equal(serve: Any) -> None:
    site = serve("same", EOS)
    fields = {"n": 3, "top_k": 5, "presence_penalty": 0.5, "repetition_penalty": 1.1}
    choices = (await site.ask(temperature=0, **fields)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) == 1
    sampled = {replace(g.sampling, seed=0) for g in site.hops.generations}
    assert len(sampled) == 1 and sampled.pop().is_greedy


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed"])
async def test_t83_numbers_that_are_none_are_no_json(serve: Any, field: str, number: str) -> None:
    site = serve("x", EOS)
    content = orjson.dumps(site.body())[:-1] + f',"{field}":{number}}}'.encode()
    reply = await site.http.post(PATH, content=content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


NUMBERS = [
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "max_tokens", "max_completion_tokens",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "top_logprobs",
    "prompt_logprobs", "thinking_token_budget", "truncate_prompt_tokens", "priority",
]  # fmt: skip


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", [True, "1", [1], {}])
async def test_t84_only_numbers_are_numbers(serve: Any, field: str, value: Any) -> None:
    site = serve("x", EOS)
    reply = await site.ask(**{field: value})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_type", field)


@pytest.mark.parametrize("key", ["abc", "-1", "1.0", "", " 1", "vocabulary"])
async def test_t85_a_bias_is_of_a_token_that_exists(serve: Any, key: str) -> None:
    site = serve("x", EOS)
    key = str(site.served.tokenizer.vocab_size) if key == "vocabulary" else key
    reply = await site.ask(logit_bias={key: 1})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "logit_bias")
    last = str(site.served.tokenizer.vocab_size - 1)
    assert (await site.ask(logit_bias={last: 1})).status_code == 200


@pytest.mark.parametrize(
    ("seed", "status"),
    [(-1, 200), (-(2**63), 200), (2**63 - 1, 200), (2**63, 400), (-(2**64), 400), (2**64, 400)],
)
async def test_t86_a_seed_is_a_signed_64_bit_integer(serve: Any, seed: int, status: int) -> None:
    site = serve("x", EOS)
    reply = await site.ask(seed=seed)
    assert reply.status_code == status
    if status == 200:
        assert site.hops.generations[-1].sampling.seed == seed % 2**64


async def test_t87_a_seed_gives_the_same_draws_to_each_choice_every_time(serve: Any) -> None:
    expected = [choice_seed(7, index) for index in range(3)]
    found = []
    for fields in ({}, {"stream": True}):
        site = serve("x", EOS)
        await site.ask(n=3, seed=7, **fields)
        seeds = {g.key.request_id: g.sampling.seed for g in site.hops.generations}
        found.append([seeds[name] for name in sorted(seeds)])
    assert found == [expected, expected] and len(set(expected)) == 3


async def test_t88_messages_may_be_blank_but_not_absent_and_many(serve: Any) -> None:
    site = serve("x", EOS)
    assert (await site.ask(messages=[])).json()["error"]["code"] == "invalid_messages"
    for content in ("", " ", "\n\t "):
        reply = await site.ask(messages=[{"role": "user", "content": content}])
        assert reply.status_code == 200, reply.text
    turns = [USER, {"role": "assistant", "content": "a"}] * 50_000
    reply = await site.ask(messages=[*turns, USER])
    assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": {"s3cret": "s3cret" * 500}}] * 400},
        {"messages": [{"role": "s3cret" * 5000, "content": "x"}]},
        {"tools": [tool("s3cret" * 500)] * 100},
        {"logit_bias": {"s3cret" * 5000: 1}},
        {"stop": ["s3cret" * 5000] * 400},
        {"reasoning_effort": "s3cret" * 5000},
        {"tool_choice": {"s3cret": "s3cret" * 5000}},
        {"response_format": {"type": "s3cret" * 5000}},
        {"regex": "(" + "s3cret" * 900},
        {"messages": [{"role": "user", "content": [{"type": "s3cret" * 5000}]}]},
    ],
)
async def test_t91_errors_neither_repeat_nor_grow_with_what_was_sent(
    serve: Any, fields: dict[str, Any]
) -> None:
    reply = await serve("x", EOS).ask(**fields)
    assert reply.status_code == 400
    assert "s3cret" not in reply.text and len(reply.content) < 1500


# Images


def png(width: int, height: int) -> str:
    sizes = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sizes + b"\x08\x02\0\0\0\0\0\0\0"
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def look(url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url, **more}


@pytest.mark.parametrize(
    "url",
    [
        png(640, 480),
        {"url": png(640, 480)},
        {"url": png(640, 480), "detail": None},
        {"url": png(640, 480), "detail": "auto"},
        {"url": png(640, 480), "detail": "high"},
        {"url": png(640, 480), "detail": "original"},
    ],
)
@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
async def test_t98_an_image_may_be_spelled_in_every_way(serve: Any, url: Any, role: str) -> None:
    model = serve("x", EOS).served
    content = [{"type": "text", "text": "What is this?"}, look(url)]
    message = {"role": role, "content": content, "tool_call_id": "c0"}
    history = [USER, calling("{}"), message] if role == "tool" else [message]
    request, _ = read_chat({"model": "tiny", "messages": history, "tools": TOOLS})
    ids = model.tokenizer.encode(await segments_of(request))
    start = model.tokenizer.vocab_size
    run = [token for token in ids if token >= start]
    assert run == list(image_of(640, 480).token_ids(start))
    low = look({"url": png(4000, 3000), "detail": "low"})
    request, _ = read_chat({"model": "tiny", "messages": [{"role": "user", "content": [low]}]})
    ids = model.tokenizer.encode(await segments_of(request))
    assert sum(token >= start for token in ids) == 194


@pytest.mark.parametrize(
    "part",
    [
        look({"url": png(9, 9), "detail": "closely"}),
        look({"detail": "low"}),
        look(7),
        look(None),
        {"type": "image_url"},
    ],
)
async def test_t98_what_is_no_image_part_is_refused(serve: Any, part: dict[str, Any]) -> None:
    reply = await serve("x", EOS).ask(messages=[{"role": "user", "content": [part]}])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("messages[0].content[0].image_url")


async def test_t98_images_of_the_assistant_are_refused(serve: Any) -> None:
    history = [USER, {"role": "assistant", "content": [look(png(9, 9))]}, USER]
    error = (await serve("x", EOS).ask(messages=history)).json()["error"]
    assert (error["code"], error["param"]) == (
        "unsupported_content_part",
        "messages[1].content[0]",
    )


async def test_t99_a_typed_placeholder_is_text_and_every_image_has_its_place(serve: Any) -> None:
    model = serve("x", EOS).served
    typed = f"{Marker.IMAGE.value} and {Marker.IMAGE.value}"
    content = [
        {"type": "text", "text": typed}, look(png(9, 9)), look(png(999, 99)),
    ]  # fmt: skip
    request, _ = read_chat({"model": "tiny", "messages": [{"role": "user", "content": content}]})
    segments = await segments_of(request)
    ids = model.tokenizer.encode(segments)
    vocab = model.tokenizer.vocab_size
    assert model.tokenizer.find(Marker.IMAGE) not in ids
    assert sum(token == vocab for token in ids) == 2  # each run has one start
    assert max(ids) < vocab + NUM_SENTINELS
    assert typed.encode() in b"".join(map(model.tokenizer.token_bytes, ids))


async def test_an_image_counts_before_the_context_is_checked(serve: Any) -> None:
    site = serve("x", EOS)
    picture = [{"role": "user", "content": [look(png(1920, 1080))]}]
    reply = await site.ask(messages=picture)
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    reply = await roomy(site).ask(messages=picture)
    assert (reply.status_code, reply.json()["error"]["code"]) == (501, "not_implemented")
    assert reply.headers["x-should-retry"] == "false"
    cut = await site.ask(messages=picture, truncate_prompt_tokens=5)
    assert cut.json()["error"]["code"] == "conflicting_parameters"


@pytest.mark.parametrize(
    "fields",
    [
        {"bad_words": ["x"] * 1001},
        {"bad_words": ["x" * 1001]},
        {"stop": ["x"] * 17},
        {"stop": "x" * 1025},
        {"stop_token_ids": list(range(129))},
        {"allowed_token_ids": [1] * 1025},
        {"logit_bias": {str(i): 1 for i in range(1025)}},
    ],
)
async def test_t101_lists_are_bounded(serve: Any, fields: dict[str, Any]) -> None:
    (name,) = fields
    reply = await serve("x", EOS).ask(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize("model", [None, ""])
async def test_t109_a_model_must_be_named(serve: Any, model: str | None) -> None:
    site = serve("x", EOS)
    for body in (site.body(model=model), {k: v for k, v in site.body().items() if k != "model"}):
        error = (await site.http.post(PATH, json=body)).json()["error"]
        assert (error["code"], error["param"]) == ("missing_required_parameter", "model")
