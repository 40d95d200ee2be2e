"""Messages to the prompt the model was trained on.

BOS, then `<System>` with the effort line, the first system text, the tools and the answer's
format, then the turns in order, then the header that opens the answer: `<think>` if the model
shall reason, `</think>` if not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import groupby

from diptych.text.image import Image
from diptych.text.markers import GROUNDING, Marker, Segment, split
from diptych.text.tools import (
    OPEN_CALLS,
    Tool,
    ToolCall,
    definitions,
    invocations,
    response_format,
)


class Role(StrEnum):
    """Who speaks. What a developer says, the system says."""

    SYSTEM = auto()
    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()
    REMINDER = auto()


class Task(Enum):
    """Quick instructions: the reply is plain text."""

    ACTION = Marker.ACTION
    QUERY = Marker.QUERY
    AUTHORITY = Marker.AUTHORITY
    DOMAIN = Marker.DOMAIN
    TITLE = Marker.TITLE
    READ_URL = Marker.READ_URL


Content = str | tuple[str | Image, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: Content
    reasoning: str = ""  # of the assistant
    calls: tuple[ToolCall, ...] = ()  # of the assistant, after the content
    call_id: str = ""  # of a tool's result: the call that it answers
    is_prefix: bool = False  # of the last message, the assistant's: to be continued


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to be continued."""

    messages: tuple[Message, ...]
    effort: int | None  # 1-100: think this much; None: answer at once
    tools: tuple[Tool, ...] = ()  # none if the model must not call
    schema: object = None  # of the answer, stated in the prompt
    opens_calls: bool = False  # without thinking: begin inside a block of calls
    task: Task | None = None
    has_header: bool = True  # False: end with the last message, nothing is to be generated


def render(chat: Chat) -> list[Segment]:
    """Markers, images and texts of the prompt, in order."""
    spoken = [m for m in chat.messages if m.role is not Role.SYSTEM or any(_flat(m.content))]
    prefix = spoken.pop() if spoken and spoken[-1].is_prefix else None
    first, rest = _split_system(spoken)
    opening = [*first, *definitions(chat.tools)]
    if chat.schema is not None:
        opening.append(response_format(chat.schema))
    is_thinking, is_asked = chat.effort is not None, bool(spoken or opening)
    if chat.effort is not None and (is_asked or prefix):
        opening.insert(0, effort_line(chat.effort))
    segments: list[Segment] = [Marker.BOS]
    if opening:
        segments += [Marker.SYSTEM, *opening]
    segments += _turns(rest, keeps_reasoning=is_thinking and bool(chat.tools))
    if prefix is None:
        return segments + _header(chat)
    return segments + _continued(prefix, reasons=is_thinking and is_asked)


def effort_line(effort: int) -> str:
    """How hard to think."""
    return (
        f"Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the "
        "reasoning)\n\n"
    )


def _split_system(messages: Sequence[Message]) -> tuple[list[Segment], Sequence[Message]]:
    if messages and messages[0].role is Role.SYSTEM:
        return _flat(messages[0].content), messages[1:]
    return [], messages


def _turns(messages: Iterable[Message], *, keeps_reasoning: bool) -> Iterator[Segment]:
    order: dict[str, int] = {}
    for role, run in groupby(messages, key=_speaker):
        match role:
            case Role.USER:
                yield Marker.USER
                ordered = sorted(run, key=lambda m: order.get(m.call_id, len(order)))
                yield from _joined(map(_item, ordered))
            case Role.ASSISTANT:
                for message in run:
                    order = {call.id: index for index, call in enumerate(message.calls)}
                    yield from _answered(message, keeps_reasoning=keeps_reasoning)
            case Role.SYSTEM:
                for message in run:
                    yield Marker.SYSTEM
                    yield from _flat(message.content)
            case Role.REMINDER:  # of several in a row, the first: so the model's makers do it
                yield Marker.REMINDER
                yield from _flat(next(run).content)


def _speaker(message: Message) -> Role:
    """Results of tools are part of the user's turn."""
    return Role.USER if message.role is Role.TOOL else message.role


def _item(message: Message) -> list[Segment]:
    if message.role is Role.TOOL:
        return ["<tool_result>", *_flat(message.content), "</tool_result>"]
    return _flat(message.content)


def _answered(message: Message, *, keeps_reasoning: bool) -> list[Segment]:
    reasoning = [Marker.THINK, *_own(message.reasoning)] if keeps_reasoning else []
    content = _own(_text(message))
    calls = invocations(message.calls)
    return [Marker.ASSISTANT, *reasoning, Marker.END_THINK, *content, *calls, Marker.EOS]


def _continued(message: Message, *, reasons: bool) -> list[Segment]:
    """The beginning of an answer, left open: its reasoning if there is no text yet.

    Without reasoning if it answers nothing: so the model's makers do it.
    """
    content = _own(_text(message))
    if not reasons:
        return [Marker.ASSISTANT, Marker.END_THINK, *content]
    reasoning = [Marker.THINK, *_own(message.reasoning)]
    return [Marker.ASSISTANT, *reasoning, *([Marker.END_THINK, *content] if content else [])]


def _header(chat: Chat) -> list[Segment]:
    if not chat.has_header:
        return []
    is_thinking = chat.effort is not None
    header: list[Segment] = [Marker.ASSISTANT, Marker.THINK if is_thinking else Marker.END_THINK]
    if chat.task is not None:
        return [*header, chat.task.value] if chat.task is Task.ACTION else [chat.task.value]
    return [*header, *OPEN_CALLS] if chat.opens_calls and not is_thinking else header


def _own(text: str) -> list[Segment]:
    """Text that the model wrote: its grounding is no forgery."""
    return split(text, GROUNDING)


def _text(message: Message) -> str:
    return "".join(part for part in _flat(message.content) if isinstance(part, str))


def _flat(content: Content) -> list[Segment]:
    if isinstance(content, str):
        return [content] if content else []
    return _joined([part] if part else [] for part in content)


def _joined(items: Iterable[list[Segment]]) -> list[Segment]:
    """Items with an empty line between them."""
    segments: list[Segment] = []
    for index, item in enumerate(items):
        segments += ["\n\n", *item] if index else item
    return segments
