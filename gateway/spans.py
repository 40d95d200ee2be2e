"""What a trace tells of a request: names and attributes, from what was noted. No text, ever.

Attributes are OpenTelemetry's of HTTP and of generative AI (which are still being developed: these
are the names of its semantic conventions 0.66), and ours with the prefix `diptych`.
"""

from collections.abc import Iterator

from diptych.core.phases import Phase
from diptych.gateway.notes import Course, Notes
from diptych.gateway.tenancy.usage import Record
from diptych.telemetry.traces import Attribute, Attributes, Span

ROOT = "gateway"
_NAMES = {
    Phase.ROUTE: "queue",
    Phase.PREFILL: "prefill",
    Phase.HANDOFF: "handoff",
    Phase.DECODE: "decode",
}
_OPERATIONS = {"/v1/completions": "text_completion"}


def of_request(method: str, route: str, status: int, record: Record | None) -> Attributes:
    """Of the request as a whole."""
    attributes: dict[str, Attribute] = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
    }
    if record is None:
        return attributes
    attributes["diptych.request_id"] = record.request_id
    if record.model:
        attributes |= {
            "gen_ai.operation.name": _OPERATIONS.get(route, "chat"),
            "gen_ai.provider.name": "diptych",
            "gen_ai.request.model": record.model,
        }
    if record.prompt:
        attributes |= {
            "gen_ai.usage.input_tokens": record.prompt,
            "gen_ai.usage.cache_read.input_tokens": record.cached,
            "gen_ai.usage.output_tokens": record.completion,
            "gen_ai.usage.reasoning.output_tokens": record.reasoning,
            "gen_ai.response.finish_reasons": [record.finish],
        }
    return attributes


def below(notes: Notes) -> Iterator[Span]:
    """Its parts: tokenising, then the phases of each output."""
    for began_s, ended_s in notes.tokenizing:
        yield Span("tokenize", began_s, ended_s)
    for index, course in enumerate(notes.courses):
        yield from _phases(index, course)


def _phases(index: int, course: Course) -> Iterator[Span]:
    for stay in course.stays:
        attributes: dict[str, Attribute] = {
            "diptych.output": index,
            "diptych.attempt": stay.attempt,
        }
        if stay.worker:
            attributes["diptych.worker"] = stay.worker
        if stay.phase is Phase.DECODE:
            attributes["gen_ai.usage.output_tokens"] = course.num_tokens
        is_last = stay is course.stays[-1]
        error = course.result if is_last and course.result not in ("ok", "cancelled") else ""
        yield Span(_NAMES[stay.phase], stay.began_s, stay.ended_s, attributes, error)
