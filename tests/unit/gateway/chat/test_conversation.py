"""Calls, their results, and an answer that has begun: what may stand where."""

from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.gateway.chat.request import read_chat
from diptych.text.chat import Message, Role
from diptych.text.tools import ToolCall

USER = {"role": "user", "content": "x"}


def calls(*ids: str, **more: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    made = [{"id": i, "type": "function", "function": function} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


def read(*messages: Any) -> list[Message]:
    request, _ = read_chat({"model": "m", "messages": list(messages)})
    return [message.read() for message in request.messages]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([USER, result("a")], "messages[1]"),
        ([USER, calls("a"), result("a"), USER, result("a")], "messages[4]"),
        ([USER, calls("a"), result("b")], "messages[2].tool_call_id"),
        ([USER, calls("a"), result("a"), result("a")], "messages[3].tool_call_id"),
        ([USER, calls("a")], "messages[1].tool_calls"),
        ([USER, calls("a", "b"), result("b")], "messages[1].tool_calls"),
        ([USER, calls("a", "b"), result("b"), USER, result("a")], "messages[1].tool_calls"),
        ([USER, calls("a"), USER], "messages[1].tool_calls"),
        ([USER, calls("a"), calls("b"), result("b")], "messages[1].tool_calls"),
        ([USER, calls("a", "a"), result("a")], "messages[1].tool_calls[1].id"),
        ([{"role": "assistant", "content": "a", "prefix": True}, USER], "messages[0].prefix"),
    ],
)
def test_messages_that_do_not_fit_together_are_refused_by_path(
    messages: list[Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read(*messages)
    assert (caught.value.code, caught.value.param) == ("invalid_messages", param)


def test_results_may_come_in_any_order_and_ids_may_return_in_later_turns() -> None:
    read(USER, calls("a", "b"), result("b"), result("a"), calls("a", content=""), result("a"))


def test_calls_and_results_keep_what_was_sent() -> None:
    sent = calls("a", content="c", reasoning_content="r")
    sent["tool_calls"][0]["function"] = {"name": "f", "arguments": {"é": [1, 2.0]}}
    _, asked, answered = read(USER, sent, result("a"))
    call = ToolCall("a", "f", '{"é": [1, 2.0]}')
    assert asked == Message(Role.ASSISTANT, "c", "r", (call,))
    assert answered == Message(Role.TOOL, "r", call_id="a")


def test_a_role_that_is_gone_is_refused_with_a_hint() -> None:
    with pytest.raises(BadRequest, match="use role tool") as caught:
        read({"role": "function", "name": "f", "content": "x"})
    assert caught.value.code == "unsupported_parameter"
