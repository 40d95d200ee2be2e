"""A conversation to learn from, and the token ids it becomes: what the gateway would send."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diptych.text.chat import Chat, Message, Role, render
from diptych.text.markers import Marker, Segment
from diptych.text.tokenizer import Tokenizer
from diptych.text.tools import Tool, ToolCall, invocations
from train_tiny.shards import Document


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages that end with the assistant's; `effort` as in a request, None without thinking."""

    messages: tuple[Message, ...]
    effort: int | None = None
    tools: tuple[Tool, ...] = ()
    schema: object = None


def system(text: str) -> Message:
    return Message(Role.SYSTEM, text)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def assistant(text: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Message:
    return Message(Role.ASSISTANT, text, reasoning=reasoning, calls=tuple(calls))


def result(text: str, call_id: str) -> Message:
    return Message(Role.TOOL, text, call_id=call_id)


def prompt_of(dialogue: Dialogue) -> list[Segment]:
    """What is sent for the last message to be answered."""
    return render(
        Chat(
            dialogue.messages[:-1],
            effort=dialogue.effort,
            tools=dialogue.tools,
            schema=dialogue.schema,
        )
    )


def answer_of(dialogue: Dialogue) -> list[Segment]:
    """What the model says to that."""
    last = dialogue.messages[-1]
    assert isinstance(last.content, str)
    reasoning: list[Segment] = []
    if dialogue.effort is not None:
        reasoning = [last.reasoning, Marker.END_THINK]
    return [*reasoning, last.content, *invocations(last.calls), Marker.EOS]


def document(dialogue: Dialogue, tokenizer: Tokenizer) -> Document:
    """Ids of the whole conversation, with what the assistant says marked."""
    prompt = tokenizer.encode(prompt_of(dialogue))
    ids = np.array((*prompt, *tokenizer.encode(answer_of(dialogue))), np.uint16)
    return Document(ids, spoken(ids, tokenizer))


def spoken(
    ids: "np.ndarray[tuple[int], np.dtype[np.uint16]]", tokenizer: Tokenizer
) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """1 from behind each header of the assistant to its end of sentence, that included."""
    header, end = tokenizer.find(Marker.ASSISTANT), tokenizer.find(Marker.EOS)
    learn = np.zeros(len(ids), np.uint8)
    begin = None
    for at, token in enumerate(ids.tolist()):
        if token == header:
            begin = at + 2  # behind the mark that says whether it thinks
        elif token == end and begin is not None:
            learn[begin : at + 1] = 1
            begin = None
    if begin is not None:
        learn[begin:] = 1
    return learn
