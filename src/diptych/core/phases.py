"""The words for where a request is and how it ends: used by code, docs, metrics and logs alike."""

from enum import StrEnum, auto


class Phase(StrEnum):
    """Stations of a request, in order."""

    ENCODE = auto()
    VISION = auto()
    ROUTE = auto()
    PREFILL = auto()
    HANDOFF = auto()
    DECODE = auto()
    FINISH = auto()


class Role(StrEnum):
    """What a process is."""

    GATEWAY = auto()
    ROUTER = auto()
    PREFILL = auto()
    DECODE = auto()
    HYBRID = auto()
    STORE = auto()


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    STARTING = auto()  # its process runs, and no router has heard of it
    WARMING = auto()  # it has joined, and its canary has not come through yet
    READY = auto()
    DRAINING = auto()  # it gets nothing new
    DRAINED = auto()  # and holds nothing any more


class Finish(StrEnum):
    """Why an engine stopped a sequence.

    Being preempted is no end: pages come back, or the sequence is computed again. What can never
    fit is refused at the door (`context_length_exceeded`); who is dropped hears nothing more. A
    grammar, a row or a step that fails is an ERROR, whose message says which.
    """

    STOP = auto()  # end-of-sequence or a stop token
    LENGTH = auto()  # max_new tokens, or the model's context, are used up
    CANCELLED = auto()  # the caller gave up
    ERROR = auto()  # the row failed; a message says why
