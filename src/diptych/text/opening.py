"""Where an answer begins: the parser's first state, read off the prompt's end.

Never guessed from the output: an answer without `</think>` may be all answer or all reasoning.
"""

from collections.abc import Sequence
from enum import StrEnum, auto

from diptych.text.chat import Task
from diptych.text.markers import Marker, Segment
from diptych.text.tools import OPEN_CALLS


class Opening(StrEnum):
    """What the prompt left open. Leading newlines count only where a text is continued."""

    REASONING = auto()
    MORE_REASONING = auto()
    ANSWER = auto()
    MORE_ANSWER = auto()
    CALLS = auto()
    PLAIN = auto()  # no sections at all

    @property
    def is_reasoning(self) -> bool:
        return self in (Opening.REASONING, Opening.MORE_REASONING)


def opening_of(prompt: Sequence[Segment]) -> Opening:
    """Of a rendered prompt. Without a header of the assistant at its end, it is a plain text's."""
    if tuple(prompt[-len(OPEN_CALLS) :]) == OPEN_CALLS:
        return Opening.CALLS
    if prompt and prompt[-1] in _TASKS:
        return Opening.PLAIN
    has_text = False
    for segment in reversed(prompt):
        match segment:
            case Marker.THINK:
                return Opening.MORE_REASONING if has_text else Opening.REASONING
            case Marker.END_THINK:
                return Opening.MORE_ANSWER if has_text else Opening.ANSWER
            case Marker.USER | Marker.SYSTEM | Marker.ASSISTANT | Marker.BOS:
                break
            case _:
                has_text = has_text or segment != ""
    return Opening.PLAIN


_TASKS = frozenset(task.value for task in Task)
