"""The `timings` of an answer: where its time went, for who asked with a header."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from diptych.core.phases import Phase
from diptych.gateway.notes import Course, Notes

HEADER = "x-diptych-timings"


def is_asked(headers: Mapping[str, str]) -> bool:
    """Whether the client wants to see them."""
    return headers.get(HEADER, "").strip() == "1"


def of(
    notes: Notes, *, shows_reasons: bool = False, now_s: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Milliseconds; phases are those of the output that took longest, all its attempts together.

    What did not happen is absent: a hybrid worker knows no prefill and no hand-off. Reasons name
    workers, so not everybody may see them.
    """
    timings: dict[str, Any] = {"tokenize_ms": _ms(sum(to - at for at, to in notes.tokenizing))}
    course = max(notes.courses, key=_length_s, default=None)
    if course is not None:
        timings |= _phases(course)
        if course.first_s is not None:
            timings["first_token_ms"] = _ms(course.first_s - notes.began_s)
        timings["route"] = "hybrid" if course.is_hybrid else "split"
        if shows_reasons:
            timings["route_reasons"] = list(course.reasons)
        timings["attempts"] = max(stay.attempt for stay in course.stays)
        timings["cached_tokens"] = course.cached_tokens
    return timings | {"total_ms": _ms(now_s() - notes.began_s)}


def _phases(course: Course) -> dict[str, float]:
    names = {
        "queue_ms": Phase.ROUTE,
        "prefill_ms": Phase.PREFILL,
        "handoff_ms": Phase.HANDOFF,
        "decode_ms": Phase.DECODE,
    }
    visited = {stay.phase for stay in course.stays}
    return {name: _ms(course.seconds(phase)) for name, phase in names.items() if phase in visited}


def _length_s(course: Course) -> float:
    return course.stays[-1].ended_s - course.stays[0].began_s


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
