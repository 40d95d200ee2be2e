"""What single fields of a chat change, from the body to the answer."""

from dataclasses import replace
from typing import Any

import pytest

from diptych.core.sampling import Budget
from diptych.gateway.policy import Policy
from diptych.text.markers import Marker

EOS, END_THINK = Marker.EOS, Marker.END_THINK
ON = {"thinking": {"type": "enabled"}}
SPAN = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = (
    "\n\n<", Marker.DSML, " calls>\n<", Marker.DSML, ' invoke name="f">\n\n</', Marker.DSML,
    " invoke>\n</", Marker.DSML, " calls>",
)  # fmt: skip


def joined(events: list[Any], field: str) -> str:
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"]]
    return "".join(delta.get(field) or "" for delta in deltas)


async def message(site: Any, **fields: Any) -> Any:
    reply = await site.ask(**fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


@pytest.mark.parametrize("step", [1, 3])
async def test_t12_the_stop_string_is_part_of_the_answer_on_demand(serve: Any, step: int) -> None:
    site = serve("one two three", EOS, tokens_a_step=step)
    for kept, text in ((False, "one "), (True, "one two")):
        fields = {"stop": ["two"], "include_stop_str_in_output": kept}
        reply = (await site.ask(**fields)).json()
        assert reply["choices"][0]["message"]["content"] == text
        assert reply["choices"][0]["stop_reason"] == "two"
        assert joined(await site.events(**fields), "content") == text


async def test_special_tokens_are_spelled_on_demand(serve: Any) -> None:
    site = serve("a", Marker.FIM_HOLE, "b", EOS)
    assert (await message(site))["content"] == "ab"
    spelled = f"a{Marker.FIM_HOLE.value}b"
    assert (await message(site, skip_special_tokens=False))["content"] == spelled
    assert joined(await site.events(skip_special_tokens=False), "content") == spelled


@pytest.mark.parametrize("step", [1, 4, 50])
async def test_reasoning_that_is_not_separate_is_part_of_the_content(serve: Any, step: int) -> None:
    site = serve("Need it.\n", END_THINK, "\n\nHello", EOS, tokens_a_step=step)
    fields = {**ON, "separate_reasoning": False}
    whole = (await site.ask(**fields)).json()
    text = "Need it.\n</think>\n\nHello"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = await site.events(**fields)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(events, "content") == text
    assert joined(events, "reasoning_content") == ""
    hidden = await message(site, **fields, include_reasoning=False)
    assert hidden == {"role": "assistant", "content": "Hello"}


async def test_log_probabilities_of_reasoning_follow_its_text(serve: Any) -> None:
    site = serve("Hm", END_THINK, "Hi", EOS)
    reply = (await site.ask(**ON, separate_reasoning=False, logprobs=True)).json()
    choice = reply["choices"][0]
    assert choice["logprobs"].keys() == {"content", "refusal"}
    text = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert text.decode() == choice["message"]["content"] == "Hm</think>Hi"


async def test_reasoning_may_come_at_once_when_it_ends(serve: Any) -> None:
    site = serve("one two three", END_THINK, "Hello", " you", EOS)
    events = await site.events(**ON, stream_reasoning=False)
    deltas = [e["choices"][0]["delta"] for e in events[:-1]]
    thoughts = [d["reasoning_content"] for d in deltas if d.get("reasoning_content")]
    assert thoughts == ["one two three"]
    assert joined(events, "content") == "Hello you"
    assert len([d for d in deltas if d.get("content")]) > 1
    cut = serve("one two three", EOS)
    assert joined(await cut.events(**ON, stream_reasoning=False), "reasoning_content") == (
        "one two three"
    )


async def test_a_budget_reaches_the_engine_with_what_ends_reasoning(serve: Any) -> None:
    site = serve("x", END_THINK, "a", EOS)
    site.fleet = replace(site.fleet, max_model_len=8192)
    find = site.served.tokenizer.find
    budgets = []
    for fields in (
        {**ON, "thinking_token_budget": 7},
        {**ON, "thinking_token_budget": 0, "tools": [SPAN]},
        {**ON, "thinking_token_budget": 3, "tools": [SPAN], "regex": "a+"},
        {"thinking_token_budget": 7},
        ON,
    ):
        await message(site, **fields)
        budgets.append(site.hops.generations[-1].sampling.thinking)
    assert budgets == [
        Budget(7, (find(END_THINK),)),
        Budget(0, (find(END_THINK), find(Marker.DSML))),
        Budget(3, (find(END_THINK),)),
        None,
        None,
    ]


async def test_a_continued_answer_has_no_budget(serve: Any) -> None:
    site = serve("x", EOS)
    begun = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    await site.ask(
        **ON,
        messages=begun,
        continue_final_message=True,
        add_generation_prompt=False,
        thinking_token_budget=7,
    )
    assert site.hops.generations[0].sampling.thinking is None


async def test_continuing_the_final_message_is_a_prefix(serve: Any) -> None:
    site = serve(" you", EOS)
    user = {"role": "user", "content": "u"}
    final = {"role": "assistant", "content": "Hello"}
    switch = {"continue_final_message": True, "add_generation_prompt": False}
    await site.ask(messages=[user, final], **switch)
    await site.ask(messages=[user, {**final, "prefix": True}])
    prompts = {generation.prompt for generation in site.hops.generations}
    assert len(prompts) == 1
    (prompt,) = prompts
    assert prompt[-1] == site.served.tokenizer.encode(["Hello"])[-1]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"continue_final_message": True}, "conflicting_parameters", "add_generation_prompt"),
        ({"add_generation_prompt": False}, "conflicting_parameters", "add_generation_prompt"),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "invalid_messages",
            "messages[0]",
        ),
        ({"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "invalid_value", "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": True}, "invalid_type", "truncate_prompt_tokens"),
        ({"thinking_token_budget": -1}, "invalid_value", "thinking_token_budget"),
        ({"thinking_token_budget": "1"}, "invalid_type", "thinking_token_budget"),
        ({"separate_reasoning": 1}, "invalid_type", "separate_reasoning"),
        ({"stream_reasoning": "no"}, "invalid_type", "stream_reasoning"),
        ({"priority": 1.5}, "invalid_type", "priority"),
        ({"cache_salt": ""}, "invalid_value", "cache_salt"),
        ({"user": 5}, "invalid_type", "user"),
        ({"task": "dance"}, "invalid_value", "task"),
        ({"task": "title"}, "not_implemented", None),
    ],
)
async def test_a_wrong_value_is_refused(
    serve: Any, fields: dict[str, Any], code: str, param: str | None
) -> None:
    site = serve("x", EOS)
    reply = await site.ask(**fields)
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert reply.status_code == (501 if code == "not_implemented" else 400)
    assert not site.hops.generations


async def test_the_last_tokens_of_a_prompt_are_kept(serve: Any) -> None:
    site = serve("x", EOS)
    long = [{"role": "user", "content": "word " * 2000}]
    assert (await site.ask(messages=long)).status_code == 400
    await site.ask()
    whole = site.hops.generations[-1].prompt
    for kept in (1, 3, len(whole), len(whole) + 1, 10_000):
        reply = (await site.ask(truncate_prompt_tokens=kept)).json()
        assert site.hops.generations[-1].prompt == whole[-kept:]
        assert reply["usage"]["prompt_tokens"] == min(kept, len(whole))
    await site.ask(messages=long, truncate_prompt_tokens=-1, max_tokens=12)
    fitted = site.hops.generations[-1]
    assert (len(fitted.prompt), fitted.max_new) == (500, 12)
    assert fitted.prompt[-2:] == whole[-2:]
    await site.ask(messages=long, truncate_prompt_tokens=-1)
    fitted = site.hops.generations[-1]
    assert (len(fitted.prompt), fitted.max_new) == (511, 1)
    reply = await site.ask(messages=long, truncate_prompt_tokens=600)
    assert reply.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("priority", "queued"), [(-5, ""), (0, ""), (1, "batch"), (2, "batch"), (10**9, "batch")]
)
async def test_a_priority_can_only_be_less_urgent(serve: Any, priority: int, queued: str) -> None:
    site = serve("x", EOS)
    await site.ask(priority=priority)
    assert site.hops.wants[-1].priority_class == queued
    assert site.hops.generations[-1].priority == (queued or "normal")


@pytest.mark.parametrize(
    ("fields", "tail"),
    [
        ({"task": "title"}, [Marker.TITLE]),
        ({"task": "read_url"}, [Marker.READ_URL]),
        ({"task": "action"}, [Marker.ASSISTANT, END_THINK, Marker.ACTION]),
        ({"task": "action", **ON}, [Marker.ASSISTANT, Marker.THINK, Marker.ACTION]),
        ({"messages": [{"role": "user", "content": "u", "task": "query"}]}, [Marker.QUERY]),
        (
            {"messages": [{"role": "user", "content": "u", "task": "query"}], "task": "domain"},
            [Marker.DOMAIN],
        ),
    ],
)
async def test_a_task_ends_the_prompt_and_its_reply_is_plain_text(
    serve: Any, fields: dict[str, Any], tail: list[Marker]
) -> None:
    site = serve("\n", END_THINK, "go", *CALL[:3], EOS, policy=Policy(allow_tasks=True))
    reply = (await site.ask(**fields)).json()
    prompt = site.hops.generations[-1].prompt
    assert prompt[-len(tail) :] == site.served.tokenizer.encode(tail)
    said = reply["choices"][0]["message"]
    assert said.keys() == {"role", "content"} and said["content"].startswith("\n")
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a"},
        {"response_format": {"type": "json_object"}},
        {"tools": [SPAN], "tool_choice": "required"},
        {
            "messages": [
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "a", "prefix": True},
            ]
        },
    ],
)
async def test_a_task_goes_with_nothing_that_shapes_its_reply(
    serve: Any, fields: dict[str, Any]
) -> None:
    site = serve("x", EOS, policy=Policy(allow_tasks=True))
    reply = await site.ask(task="title", **fields)
    assert reply.json()["error"]["code"] == "conflicting_parameters"


async def test_fields_that_only_label_a_request_change_nothing(serve: Any) -> None:
    site = serve("x", EOS)
    labels = {
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "flex",
        "verbosity": "low",
        "user": "me",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "request_id": "mine",
        "rid": "mine",
        "modalities": ["text"],
    }
    reply = await site.ask(**labels, seed=1)
    plain = await site.ask(seed=1)
    assert "x-ignored-params" not in reply.headers
    assert reply.json().keys() == plain.json().keys()
    first, *_, last = site.hops.generations
    assert (first.prompt, first.sampling, first.scope) == (last.prompt, last.sampling, last.scope)
    assert "mine" not in first.key.request_id
