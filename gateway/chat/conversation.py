"""Whether messages, each fine by itself, make a conversation."""

from collections.abc import Sequence

from diptych.core.errors import BadRequest
from diptych.gateway.chat.messages import AssistantMessage, ChatMessage, ToolMessage


def check_conversation(messages: Sequence[ChatMessage]) -> None:
    """Every call is answered at once, by one result; only the last message is a prefix."""
    asking, unanswered = 0, set[str]()
    is_answering = False  # this message may be the result of a call
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if not is_answering:
                raise _wrong("no call is before this result", f"messages[{index}]")
            if message.tool_call_id not in unanswered:
                text = "no call with this id waits for a result"
                raise _wrong(text, f"messages[{index}].tool_call_id")
            unanswered.remove(message.tool_call_id)
            continue
        _check_answered(unanswered, asking)
        is_answering = isinstance(message, AssistantMessage) and bool(message.tool_calls)
        if isinstance(message, AssistantMessage):
            asking, unanswered = index, _call_ids(message, index)
            if message.prefix and index + 1 < len(messages):
                text = "only the last message can be continued"
                raise _wrong(text, f"messages[{index}].prefix")
    _check_answered(unanswered, asking)


def check_continued(messages: Sequence[ChatMessage]) -> None:
    """The last message is the beginning of an answer."""
    last = messages[-1]
    if not isinstance(last, AssistantMessage) or (last.content is None and last.refusal is None):
        text = "only an assistant's message with content can be continued"
        raise _wrong(text, f"messages[{len(messages) - 1}]")


def check_reasoning(messages: Sequence[ChatMessage]) -> None:
    """Each call of a tool comes with the reasoning that led to it, be it empty."""
    for index, message in enumerate(messages):
        if not isinstance(message, AssistantMessage) or not message.tool_calls:
            continue
        if message.reasoning_content is None and message.reasoning is None:
            text = "The `reasoning_content` in the thinking mode must be passed back to the API."
            param = f"messages[{index}].reasoning_content"
            raise BadRequest(text, code="invalid_messages", param=param)


def _check_answered(unanswered: set[str], asking: int) -> None:
    if unanswered:
        text = "each call needs the message of its result right after this message"
        raise _wrong(text, f"messages[{asking}].tool_calls")


def _call_ids(message: AssistantMessage, index: int) -> set[str]:
    ids = set[str]()
    for place, call in enumerate(message.tool_calls or ()):
        if call.id in ids:
            text = "an earlier call of this message has the same id"
            raise _wrong(text, f"messages[{index}].tool_calls[{place}].id")
        ids.add(call.id)
    return ids


def _wrong(text: str, param: str) -> BadRequest:
    return BadRequest(f"{param}: {text}", code="invalid_messages", param=param)
