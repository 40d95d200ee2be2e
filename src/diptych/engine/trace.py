"""The newest steps of an engine and what they took, for chrome://tracing or ui.perfetto.dev.

Always on in workers, so that what went wrong can be looked at afterwards. Knows ids, counts and
times; no tokens.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Protocol

from diptych.core.ids import Key
from diptych.engine.scheduler import Plan

Event = dict[str, Any]  # as the Trace Event Format spells it

NUM_STEPS = 2048  # kept


class Part(StrEnum):
    """Of a step. Those on the device overlap with the others when stepping is asynchronous."""

    PLAN = auto()  # choose who computes what
    PREPARE = auto()  # index arrays for the device
    FORWARD = auto()  # on the device
    SAMPLE = auto()  # on the device
    WAIT = auto()  # for the device
    RETIRE = auto()  # note tokens, stops and pages; tell the services


_LANES = {Part.FORWARD: "device", Part.SAMPLE: "device"}
_SCHEDULER = "scheduler"
_TIDS = {_SCHEDULER: 1, "device": 2}


class Observer(Protocol):
    """Hears of every step, on the scheduler's thread and on the device's. Must not block."""

    def planned(self, plan: Plan) -> None:
        """Comes first; plans with nothing to execute are left out."""
        ...

    def took(self, part: Part, step: int, began_s: float, ended_s: float) -> None:
        """A part of a step is over; times are `time.perf_counter`'s."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several rows of one sequence: a prompt, or what is computed again."""

    key: Key
    start: int
    count: int


@dataclass(slots=True)  # not frozen: that costs, and one is made every step
class Planned:
    """What a step computes."""

    step: int
    at_s: float
    chunks: list[Chunk]
    decoding: list[Key]  # one row each
    moves: tuple[int, int, int, int]  # anchors loaded and saved, sequences swapped in and out

    @property
    def keys(self) -> Iterator[Key]:
        yield from (chunk.key for chunk in self.chunks)
        yield from self.decoding

    @property
    def prompt_rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a step, as long as it took."""

    part: Part
    step: int
    began_s: float
    ended_s: float


class Trace:
    """An `Observer` that keeps the newest steps. Written by two threads, read by any."""

    def __init__(self, num_steps: int = NUM_STEPS) -> None:
        self._planned: deque[Planned] = deque(maxlen=num_steps)
        self._spans: deque[Span] = deque(maxlen=num_steps * len(Part))
        self._epoch_s = time.time() - time.perf_counter()  # so that traces of two workers align

    def planned(self, plan: Plan) -> None:
        self.add(plan)

    def add(self, plan: Plan) -> Planned:
        """Keep what a plan says of itself, and tell it."""
        chunks: list[Chunk] = []
        decoding: list[Key] = []
        for piece in plan.pieces:
            if piece.count == 1:
                decoding.append(piece.request.generation.key)
            else:
                chunks.append(Chunk(piece.request.key, piece.start, piece.count))
        moves = len(plan.loads), len(plan.saves), len(plan.swap_ins), len(plan.swap_outs)
        planned = Planned(plan.step, time.perf_counter(), chunks, decoding, moves)
        self._planned.append(planned)
        return planned

    def took(self, part: Part, step: int, began_s: float, ended_s: float) -> None:
        self._spans.append(Span(part, step, began_s, ended_s))

    def events(self, name: str, pid: int, seconds: float | None = None) -> list[Event]:
        """Trace events of the last `seconds`, all that are kept by default."""
        since_s = 0.0 if seconds is None else time.perf_counter() - seconds
        plans = [plan for plan in tuple(self._planned) if plan.at_s >= since_s]
        by_step = {plan.step: plan for plan in plans}
        spans = [span for span in tuple(self._spans) if span.step in by_step]
        drawn = _Drawing(pid, self._epoch_s)
        return [
            *drawn.names(name),
            *(drawn.span(span, by_step[span.step]) for span in spans),
            *(drawn.rows(plan) for plan in plans),
            *drawn.requests(plans, spans),
        ]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Spells events of one process."""

    pid: int
    epoch_s: float

    def names(self, process: str) -> Iterator[Event]:
        yield self._event("M", "process_name") | {"args": {"name": process}}
        for lane, tid in _TIDS.items():
            yield self._event("M", "thread_name", tid) | {"args": {"name": lane}}

    def span(self, span: Span, plan: Planned) -> Event:
        tid = _TIDS[_LANES.get(span.part, _SCHEDULER)]
        event = self._event("X", span.part, tid, span.began_s) | {
            "cat": "step",
            "dur": round((span.ended_s - span.began_s) * 1e6, 1),
            "args": {"step": span.step},
        }
        if span.part is Part.PLAN:
            event["args"] |= _facts(plan)
        return event

    def rows(self, plan: Planned) -> Event:
        """A graph of the rows of each step."""
        rows = {"prompt": plan.prompt_rows, "decode": len(plan.decoding)}
        return self._event("C", "rows", at_s=plan.at_s) | {"args": rows}

    def requests(self, plans: Iterable[Planned], spans: Iterable[Span]) -> Iterator[Event]:
        """A line for each request: from its first step shown to the end of its last one."""
        over = {span.step: span.ended_s for span in spans if span.part is Part.RETIRE}
        stays: dict[Key, tuple[Planned, Planned]] = {}
        for plan in plans:
            for key in plan.keys:
                stays[key] = (stays[key][0] if key in stays else plan, plan)
        for key, (first, last) in stays.items():
            line = {"cat": "request", "id": str(key)}
            ended_s = over.get(last.step, last.at_s)
            yield self._event("b", key.request_id, at_s=first.at_s) | line
            yield self._event("e", key.request_id, at_s=ended_s) | line

    def _event(self, phase: str, name: str, tid: int = 0, at_s: float | None = None) -> Event:
        event: Event = {"ph": phase, "name": str(name), "pid": self.pid, "tid": tid}
        if at_s is not None:
            event["ts"] = round((self.epoch_s + at_s) * 1e6, 1)
        return event


def _facts(plan: Planned) -> Event:
    moves = ("anchors_loaded", "anchors_saved", "swapped_in", "swapped_out")
    return {
        "rows": plan.prompt_rows + len(plan.decoding),
        "chunks": {str(chunk.key): f"{chunk.start}+{chunk.count}" for chunk in plan.chunks},
        "decoding": [str(key) for key in plan.decoding],
        **{name: count for name, count in zip(moves, plan.moves, strict=True) if count},
    }
