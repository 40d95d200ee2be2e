"""What a client sees of an output, in the order in which it becomes certain."""

from dataclasses import dataclass, field
from enum import StrEnum, auto


class Section(StrEnum):
    """Part of an answer that is text."""

    REASONING = auto()
    CONTENT = auto()


class Oddity(StrEnum):
    """What a model should not have written. Counted, because clients never see it."""

    STRAY_MARKUP = auto()  # a tag that belongs nowhere, or a lone marker of tags
    UNKNOWN_TOOL = auto()
    BAD_BODY = auto()  # a call with text in the place of parameters
    BAD_VALUE = auto()  # not the JSON it claims to be
    REPEATED_PARAMETER = auto()
    UNCLOSED = auto()  # the turn ended inside a call
    ROLE = auto()  # began somebody else's turn


@dataclass(frozen=True, slots=True)
class Text:
    """More text of one section."""

    section: Section
    text: str
    tokens: tuple[int, ...] = field(default=(), compare=False)  # that begin in it; 0: first pushed


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins. Calls of an answer count from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: all of them, joined, are JSON."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete. One that was cut by the length of the output has no end."""

    index: int


Piece = Text | CallStart | CallArguments | CallEnd


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same with neighbours made one where they can be."""
    out: list[Piece] = []
    for piece in pieces:
        match out[-1:], piece:
            case [Text(section, text, tokens)], Text(same, more, others) if section is same:
                out[-1] = Text(section, text + more, tokens + others)
            case [CallArguments(index, text)], CallArguments(same_call, more) if index == same_call:
                out[-1] = CallArguments(index, text + more)
            case _:
                out.append(piece)
    return out
