"""Errors of a chat request, said back in the words of the request that it came from."""

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.translation import Names

NAMES = Names({
    "messages": "input",
    "messages[1]": "input[4]",
    "messages[1].tool_calls[0].id": "input[5].call_id",
    "max_tokens": "limit",
})  # fmt: skip


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("messages", "input"),
        ("messages[0].content", "input[0].content"),
        ("messages[1]", "input[4]"),
        ("messages[1].content[2].text", "input[4].content[2].text"),
        ("messages[1].tool_calls[0].id", "input[5].call_id"),
        ("messages[10]", "input[10]"),
        ("max_tokens", "limit"),
        ("max_tokens_more", "max_tokens_more"),
        ("temperature", "temperature"),
        ("", ""),
    ],
)
def test_the_longest_known_path_is_renamed_and_the_rest_kept(path: str, own: str) -> None:
    assert NAMES.own(path) == own


def test_a_message_is_reworded_where_it_names_fields() -> None:
    error = BadRequest(
        "messages[1].content: expected text; max_tokens: required; other: max_tokens is fine",
        code="invalid_type",
        param="messages[1].content",
    )
    said = NAMES.reword(error)
    assert (
        said.message
        == "input[4].content: expected text; limit: required; other: max_tokens is fine"
    )
    assert (said.code, said.param) == ("invalid_type", "input[4].content")
    assert NAMES.reword(BadRequest("no field")).param is None


def test_what_is_refused_inside_is_reworded_and_other_errors_pass() -> None:
    with pytest.raises(BadRequest, match=r"^limit: no$"), NAMES.spoken():
        raise BadRequest("max_tokens: no", param="max_tokens")
    with pytest.raises(KeyError), NAMES.spoken():
        raise KeyError("x")
