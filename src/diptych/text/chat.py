"""Messages to the prompt the model was trained on.

BOS, then `<System>` with the effort line, the first system text and the schema of the answer, then
the turns in order, then the header that opens the answer: `<think>` if the model shall reason,
`</think>` if not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import groupby

from diptych.text.tokenizer import Marker, Segment


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = auto()
    USER = auto()
    ASSISTANT = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str
    reasoning: str = ""  # of the assistant


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be continued."""

    messages: tuple[Message, ...]
    effort: int | None  # 1-100: think this much; None: answer at once
    keep_reasoning: bool = False  # of earlier turns; the model needs it between tool calls only
    answer_schema: str = ""  # JSON that the answer must satisfy; none: it is free


def render(chat: Chat) -> list[Segment]:
    """Markers and texts of the prompt, in order."""
    spoken = [m for m in chat.messages if m.text or m.role is not Role.SYSTEM]
    first, rest = _split_system(spoken)
    opening = effort_line(chat.effort) + first if spoken else ""
    opening += schema_lines(chat.answer_schema)
    segments: list[Segment] = [Marker.BOS]
    if opening:
        segments += [Marker.SYSTEM, opening]
    for role, run in groupby(rest, key=lambda message: message.role):
        match role:
            case Role.USER:
                segments += [Marker.USER, "\n\n".join(message.text for message in run)]
            case Role.SYSTEM:
                for message in run:
                    segments += [Marker.SYSTEM, message.text]
            case Role.ASSISTANT:
                for message in run:
                    segments += _answered(message, chat)
    is_thinking = chat.effort is not None
    return [*segments, Marker.ASSISTANT, Marker.THINK if is_thinking else Marker.END_THINK]


def effort_line(effort: int | None) -> str:
    """How hard to think; nothing when not thinking."""
    if effort is None:
        return ""
    return (
        f"Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the "
        "reasoning)\n\n"
    )


def schema_lines(schema: str) -> str:
    """What the answer must look like; nothing if it is free."""
    if not schema:
        return ""
    return (
        "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        + schema
    )


def _split_system(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    if messages and messages[0].role is Role.SYSTEM:
        return messages[0].text, messages[1:]
    return "", messages


def _answered(message: Message, chat: Chat) -> list[Segment]:
    keep = chat.effort is not None and chat.keep_reasoning
    reasoning: list[Segment] = [Marker.THINK, message.reasoning] if keep else []
    return [Marker.ASSISTANT, *reasoning, Marker.END_THINK, message.text, Marker.EOS]
