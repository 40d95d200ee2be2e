"""Fields of a completion: what they accept, what they mean, what is said when they are wrong."""

from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.completions.preparation import constraint_of
from diptych.gateway.completions.request import read_completion


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hi", **fields}


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read_completion(body(**fields))
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", ("",)),
        ("one", ("one",)),
        (["one", "two"], ("one", "two")),
        ([5, 6.0], ((5, 6),)),
        ([[5], [6, 7]], ((5,), (6, 7))),
        (["x"] * 256, ("x",) * 256),
    ],
    ids=str,
)
def test_a_prompt_is_text_or_ids_or_a_list_of_either(prompt: Any, expected: Any) -> None:
    assert read_completion(body(prompt=prompt))[0].prompt == expected


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("prompt", None, "missing_required_parameter"),
        ("prompt", 5, "invalid_type"),
        ("prompt", {"text": "x"}, "invalid_type"),
        ("prompt", [], "invalid_value"),
        ("prompt", [[]], "invalid_value"),
        ("prompt", [[1], []], "invalid_value"),
        ("prompt", ["x", 5], "invalid_type"),
        ("prompt", [5, "x"], "invalid_type"),
        ("prompt", [[5], "x"], "invalid_type"),
        ("prompt", [[5], 6], "invalid_type"),
        ("prompt", [True], "invalid_type"),
        ("prompt", [1.5], "invalid_type"),
        ("prompt", [[["x"]]], "invalid_type"),
        ("prompt", ["x"] * 257, "invalid_value"),
        ("prompt", [[1]] * 257, "invalid_value"),
        ("suffix", 5, "invalid_type"),
        ("max_tokens", -1, "invalid_value"),
        ("max_tokens", 0, "invalid_value"),
        ("max_tokens", True, "invalid_type"),
        ("logprobs", True, "invalid_type"),
        ("logprobs", -1, "invalid_value"),
        ("logprobs", 21, "invalid_value"),
        ("echo", "yes", "invalid_type"),
        ("best_of", 2, "unsupported_parameter"),
        ("add_special_tokens", 1, "invalid_type"),
        ("temperature", 3, "invalid_value"),
        ("stream_options", {"include_usage": True}, "conflicting_parameters"),
        ("messages", [], "unsupported_parameter"),
        ("tools", [{}], "unsupported_parameter"),
        ("guided_regex", "a", "unsupported_parameter"),
        ("model", "", "missing_required_parameter"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any, code: str) -> None:
    error = refused(**{field: value})
    assert (error.code, error.param) == (code, field)
    assert len(error.message) < 200


def test_a_null_is_an_absent_field() -> None:
    names = ("suffix", "max_tokens", "logprobs", "echo", "best_of", "n", "stop", "stream")
    assert read_completion(body(**dict.fromkeys(names))) == read_completion(body())


def test_choices_of_all_prompts_together_are_bounded() -> None:
    read_completion(body(prompt=["x"] * 64, n=16))
    assert refused(prompt=["x"] * 65, n=16).param == "n"
    assert "prompt" not in refused(prompt=["x"] * 65, n=16).message.split(":")[0]


def test_best_of_is_n_or_nothing() -> None:
    read_completion(body(best_of=3, n=3))
    assert refused(best_of=1, n=3).param == "best_of"


@pytest.mark.parametrize("fields", [{"echo": True}, {"prompt_logprobs": 0}], ids=str)
def test_t77_no_output_is_wanted_only_by_those_who_look_at_the_prompt(fields: Any) -> None:
    assert read_completion(body(max_tokens=0, **fields))[0].is_scored_only
    assert refused(max_tokens=0).param == "max_tokens"
    assert not read_completion(body(max_tokens=1, **fields))[0].is_scored_only


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({}, None),
        ({"logprobs": 3}, None),
        ({"logprobs": 3, "echo": True}, 3),
        ({"logprobs": 0, "echo": True}, 0),
        ({"echo": True}, None),
        ({"prompt_logprobs": 2}, 2),
        ({"prompt_logprobs": 2, "logprobs": 3}, 2),
        ({"prompt_logprobs": 2, "logprobs": 3, "echo": True}, 3),
    ],
    ids=str,
)
def test_the_engine_scores_the_prompt_for_an_echo_or_because_it_was_asked(
    fields: Any, top: int | None
) -> None:
    assert read_completion(body(**fields))[0].prompt_top == top


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x", "prompt": [1, 2]}, "prompt"),
        ({"suffix": "x", "prompt": [[1]]}, "prompt"),
        ({"suffix": "", "echo": True}, "echo"),
        ({"suffix": "x", "logprobs": 0}, "logprobs"),
    ],
    ids=str,
)
def test_a_hole_is_between_texts_and_has_neither_echo_nor_logprobs(fields: Any, param: str) -> None:
    assert refused(**fields).param == param
    assert read_completion(body(suffix="x", prompt=["a", "b"]))[0].suffix == "x"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "a+"}},
        {"regex": "a+"},
        {"ebnf": 'root ::= "a"'},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    ],
    ids=str,
)
def test_a_text_may_be_constrained_by_the_fields_that_chats_have(fields: Any) -> None:
    request, ignored = read_completion(body(**fields))
    assert (constraint_of(request) is not None, ignored) == (True, [])
    with pytest.raises(BadRequest, match="ends when it is complete"):
        constraint_of(read_completion(body(ignore_eos=True, **fields))[0])


def test_free_text_has_no_constraint() -> None:
    for fields in ({}, {"response_format": {"type": "text"}}):
        assert constraint_of(read_completion(body(**fields))[0]) is None


def test_fields_that_nobody_knows_are_named() -> None:
    assert read_completion(body(tempature=1, user="u", tools=[]))[1] == ["tempature"]
