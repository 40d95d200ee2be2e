"""Fields of a request: what they accept, what they mean, what is said when they are wrong."""

from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.chat.request import read_chat

MESSAGES = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES, **fields}


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read_chat(body(**fields))
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("temperature", 3, "invalid_value"),
        ("temperature", -0.1, "invalid_value"),
        ("temperature", "1", "invalid_type"),
        ("temperature", True, "invalid_type"),
        ("top_p", 0, "invalid_value"),
        ("top_p", 1.5, "invalid_value"),
        ("top_k", -2, "invalid_value"),
        ("min_p", 2, "invalid_value"),
        ("max_tokens", 0, "invalid_value"),
        ("max_tokens", -1, "invalid_value"),
        ("max_tokens", 2.5, "invalid_type"),
        ("max_tokens", "7", "invalid_type"),
        ("max_tokens", 393_217, "invalid_value"),
        ("max_completion_tokens", 0, "invalid_value"),
        ("n", 0, "invalid_value"),
        ("n", 17, "invalid_value"),
        ("n", True, "invalid_type"),
        ("seed", 2**63, "invalid_value"),
        ("seed", 1e30, "invalid_value"),
        ("stop", "", "invalid_value"),
        ("stop", [""], "invalid_value"),
        ("stop", ["x"] * 17, "invalid_value"),
        ("stop", "x" * 1025, "invalid_value"),
        ("stop", 3, "invalid_type"),
        ("stop_token_ids", [-1], "invalid_value"),
        ("stop_token_ids", list(range(129)), "invalid_value"),
        ("stream", 1, "invalid_type"),
        ("stream", "true", "invalid_type"),
        ("ignore_eos", 0, "invalid_type"),
        ("thinking", "enabled", "invalid_type"),
        ("thinking", {"type": "maybe"}, "invalid_value"),
        ("reasoning_effort", "huge", "invalid_value"),
        ("reasoning_effort", 0, "invalid_value"),
        ("reasoning_effort", 101, "invalid_value"),
        ("reasoning_effort", 7.5, "invalid_value"),
        ("reasoning_effort", True, "invalid_value"),
        ("user_id", 5, "invalid_type"),
        ("user_id", "é" * 300, "invalid_value"),
        ("cache_salt", "a/b", "invalid_value"),
        ("model", 5, "invalid_type"),
        ("model", None, "missing_required_parameter"),
        ("model", "", "missing_required_parameter"),
        ("messages", None, "missing_required_parameter"),
        ("messages", "hi", "invalid_type"),
        ("messages", [], "invalid_messages"),
        ("stream_options", {"include_usage": True}, "conflicting_parameters"),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any, code: str) -> None:
    error = refused(**{field: value})
    assert error.code == code
    assert error.param is not None
    assert error.param.split("[")[0].split(".")[0] == field


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ({"role": "king", "content": "x"}, "invalid_messages", "messages[1]"),
        ({"content": "x"}, "invalid_messages", "messages[1]"),
        ("x", "invalid_messages", "messages[1]"),
        (
            {"role": "tool", "content": "x"},
            "missing_required_parameter",
            "messages[1].tool_call_id",
        ),
        (
            {"role": "tool", "tool_call_id": "c", "content": None},
            "invalid_type",
            "messages[1].content",
        ),
        ({"role": "tool", "tool_call_id": "c", "content": "x"}, "invalid_messages", "messages[1]"),
        ({"role": "function", "content": "x"}, "unsupported_parameter", "messages[1]"),
        ({"role": "user"}, "missing_required_parameter", "messages[1].content"),
        ({"role": "user", "content": None}, "invalid_type", "messages[1].content"),
        ({"role": "user", "content": 7}, "invalid_type", "messages[1].content"),
        ({"role": "assistant"}, "invalid_messages", "messages[1]"),
        ({"role": "assistant", "tool_calls": []}, "invalid_messages", "messages[1]"),
        (
            {"role": "assistant", "tool_calls": [{"function": {}}]},
            "missing_required_parameter",
            "messages[1].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]},
            "invalid_value",
            "messages[1].tool_calls[0].type",
        ),
        ({"role": "assistant", "content": None, "prefix": True}, "invalid_messages", "messages[1]"),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "unsupported_content_part",
            "messages[1].content[0]",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": 1}]},
            "invalid_type",
            "messages[1].content[0].text",
        ),
    ],
)
def test_a_wrong_message_is_refused_by_its_path(message: Any, code: str, param: str) -> None:
    error = refused(messages=[*MESSAGES, message])
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "x"},
        {"role": "developer", "content": "x", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": "x", "tool_calls": [], "prefix": False, "audio": None},
        {"role": "assistant", "content": None, "refusal": "x"},
        {"role": "assistant", "content": "x", "reasoning_content": None, "reasoning": "r"},
        {"role": "assistant", "content": "x", "prefix": True},
        {"role": "latest_reminder", "content": "x"},
    ],
)
def test_messages_that_clients_send_are_accepted(message: Any) -> None:
    request, _ = read_chat(body(messages=[message]))
    assert request.messages[0].read().content == "x"


def test_parts_are_paragraphs() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request, _ = read_chat(body(messages=[{"role": "user", "content": parts}]))
    assert request.messages[0].read().content == "a\n\nb"
    request, _ = read_chat(body(messages=[{"role": "user", "content": []}]))
    assert request.messages[0].read().content == ""


def test_of_two_names_of_reasoning_the_first_counts() -> None:
    message = {"role": "assistant", "content": "x", "reasoning_content": "", "reasoning": "r"}
    request, _ = read_chat(body(messages=[message]))
    assert request.messages[0].read().reasoning == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": []},
        {"guided_json": {}},
        {"guided_regex": "a"},
        {"guided_choice": ["a"]},
        {"guided_decoding_backend": "any"},
        {"audio": {}},
        {"modalities": ["text", "audio"]},
        {"chat_template": "x"},
        {"kv_transfer_params": {}},
        {"web_search_options": {}},
        {"prediction": {}},
        {"moderation": {}},
        {"lora": "x"},
        {"documents": []},
        {"mm_processor_kwargs": {}},
        {"data_parallel_rank": 0},
    ],
)
def test_what_we_cannot_do_is_refused_and_not_ignored(fields: dict[str, Any]) -> None:
    error = refused(**fields)
    assert (error.code, [error.param]) == ("unsupported_parameter", list(fields))


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    neutral = {
        "logprobs": False,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "modalities": ["text"],
        "functions": None,
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
    }
    assert read_chat(body(**neutral))[1] == []


DOCUMENTED = [
    "model", "messages", "stream", "stream_options", "max_completion_tokens", "max_tokens",
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "n", "logprobs", "top_logprobs", "logit_bias",
    "response_format", "tools", "tool_choice", "parallel_tool_calls", "thinking",
    "reasoning_effort", "user_id", "user", "safety_identifier", "prompt_cache_key", "metadata",
    "store", "service_tier", "verbosity", "functions", "function_call", "audio", "modalities",
    "prediction", "web_search_options", "moderation", "min_tokens", "ignore_eos",
    "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "bad_words",
    "allowed_token_ids", "structured_outputs", "regex", "ebnf", "chat_template_kwargs",
    "thinking_token_budget", "include_reasoning", "separate_reasoning", "stream_reasoning",
    "continue_final_message", "add_generation_prompt", "task", "cache_salt", "priority",
    "request_id", "rid", "return_token_ids", "prompt_logprobs", "truncate_prompt_tokens",
    "kv_transfer_params", "data_parallel_rank", "chat_template", "documents",
    "mm_processor_kwargs", "lora", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "guided_decoding_backend", "guided_whitespace_pattern",
]  # fmt: skip


def test_every_documented_field_is_known_by_what_it_refuses_or_does() -> None:
    """An object of no use to any field: it is refused, or the field takes anything."""
    takes_anything = {"metadata", "store", "service_tier", "verbosity"}
    has_all_optional = {"chat_template_kwargs", "stream_options", "response_format", "logit_bias"}
    silent = set()
    for name in DOCUMENTED:
        try:
            _, unknown = read_chat({**body(stream=True), name: {"odd": True}})
            silent.add(name)
            assert unknown == []
        except BadRequest as error:
            assert (error.param or "").startswith(name), error
    assert silent - takes_anything <= has_all_optional | {"structured_outputs"}


def test_unknown_fields_are_named() -> None:
    assert read_chat(body(tempature=1, nothing=None))[1] == ["tempature"]


def test_an_integral_float_is_an_integer() -> None:
    request, _ = read_chat(body(max_tokens=256.0, n=2.0))
    assert (request.output_limit, request.n) == (256, 2)


def test_the_newer_name_of_the_limit_counts() -> None:
    request, _ = read_chat(body(max_tokens=5, max_completion_tokens=7))
    assert request.output_limit == 7


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, 75),
        ({"thinking": {"type": "enabled"}}, 75),
        ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, 75),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, None),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, 75),
        ({"reasoning_effort": "none"}, None),
        ({"reasoning_effort": "minimal"}, 50),
        ({"reasoning_effort": "low"}, 50),
        ({"reasoning_effort": "medium"}, 75),
        ({"reasoning_effort": "high"}, 75),
        ({"reasoning_effort": "xhigh"}, 75),
        ({"reasoning_effort": "max"}, 100),
        ({"reasoning_effort": "ultra"}, 100),
        ({"reasoning_effort": 33}, 33),
        ({"reasoning_effort": 33.0}, 33),
        ({"reasoning_effort": "33"}, 33),
        ({"chat_template_kwargs": {"thinking": False}}, None),
        ({"chat_template_kwargs": {"enable_thinking": False, "other": 1}}, None),
        ({"chat_template_kwargs": {"reasoning_effort": "max"}}, 100),
        ({"chat_template_kwargs": {"thinking": True}, "thinking": {"type": "disabled"}}, None),
    ],
)
def test_effort_follows_the_first_control_that_speaks(
    fields: dict[str, Any], effort: int | None
) -> None:
    assert read_chat(body(**fields))[0].effort == effort


def test_what_is_said_about_errors_neither_grows_with_nor_repeats_the_input() -> None:
    secret = "s3cret" * 1000
    error = refused(messages=[{"role": "user", "content": {"x": secret}}] * 5000)
    assert "s3cret" not in error.message
    assert len(error.message) < 1000
    assert error.message.startswith("messages[0].content: ")
    names = ["temperature", "top_p", "top_k", "min_p", "seed", "n", "min_tokens", "logprobs"]
    names += ["max_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"]
    many = refused(**dict.fromkeys(names, secret))
    assert "s3cret" not in many.message and many.message.endswith("; and 2 more")
    assert len(many.message) < 1000


@pytest.mark.parametrize(
    "biases",
    [
        {"abc": 1},
        {"-1": 1},
        {"1.5": 1},
        {"\u0661": 1},
        {"9" * 5000: 1},
        {"1": 101},
        {"1": True},
        {"1": "2"},
        {"1": None},
        {str(token): 0 for token in range(1025)},
    ],
)
def test_a_wrong_bias_is_refused_without_repeating_it(biases: dict[str, Any]) -> None:
    error = refused(logit_bias=biases)
    assert (error.code, error.param) == ("invalid_value", "logit_bias")
    assert len(error.message) < 200


def test_biases_name_tokens_by_decimal_strings() -> None:
    request, _ = read_chat(body(logit_bias={"7": 1, "007": -100, "0": 0.5}))
    assert request.logit_bias == {7: -100.0, 0: 0.5}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("presence_penalty", -2.1, "invalid_value"),
        ("presence_penalty", False, "invalid_type"),
        ("frequency_penalty", 2.1, "invalid_value"),
        ("frequency_penalty", "1", "invalid_type"),
        ("repetition_penalty", 0, "invalid_value"),
        ("repetition_penalty", 2.5, "invalid_value"),
        ("logprobs", 1, "invalid_type"),
        ("top_logprobs", 21, "invalid_value"),
        ("top_logprobs", -1, "invalid_value"),
        ("prompt_logprobs", 21, "invalid_value"),
        ("prompt_logprobs", -1, "invalid_value"),
        ("min_tokens", -1, "invalid_value"),
        ("min_tokens", True, "invalid_type"),
        ("allowed_token_ids", [], "invalid_value"),
        ("allowed_token_ids", [1] * 1025, "invalid_value"),
        ("logit_bias", [1], "invalid_type"),
        ("bad_words", "word", "invalid_type"),
        ("response_format", "json", "invalid_type"),
        ("structured_outputs", [], "invalid_type"),
        ("regex", 1, "invalid_type"),
    ],
)
def test_a_wrong_wish_is_refused_by_its_name(field: str, value: Any, code: str) -> None:
    error = refused(**{field: value})
    assert (error.code, error.param) == (code, field)


@pytest.mark.parametrize("words", [[""], ["x" * 1001], ["x"] * 1001])
def test_bad_words_are_bounded(words: list[str]) -> None:
    error = refused(bad_words=words)
    assert error.code == "invalid_value" and (error.param or "").startswith("bad_words")


def test_alternatives_without_log_probabilities_are_a_contradiction() -> None:
    error = refused(top_logprobs=3)
    assert (error.code, error.param) == ("conflicting_parameters", "top_logprobs")
    assert read_chat(body(top_logprobs=0))[0].top is None


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20.0}, 20),
    ],
)
def test_log_probabilities_are_on_or_off_and_have_a_number_of_alternatives(
    fields: dict[str, Any], top: int | None
) -> None:
    assert read_chat(body(**fields))[0].top == top
