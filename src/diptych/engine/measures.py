"""What a worker measures of its engine: parts of steps as they come, counts when it is asked."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from diptych.core.errors import BadRequest
from diptych.core.request import PRIORITIES
from diptych.engine.port import Counts
from diptych.engine.scheduler import Plan
from diptych.engine.tiering import Loaded
from diptych.engine.trace import Part, Trace
from diptych.telemetry import metrics as m
from diptych.telemetry.endpoint import Page, Query


@dataclass(slots=True)
class Work:
    """What was computed and loaded since the start, and how long it took: routers learn from it."""

    busy_us: int = 0
    steps: int = 0
    prompt_rows: int = 0
    prompt_pairs: int = 0
    decode_rows: int = 0
    decode_context: int = 0
    loads: int = 0  # from the cache tier
    load_us: int = 0

    def planned(self, plan: Plan) -> None:
        self.steps += 1
        for piece in plan.pieces:
            if piece.count > 1:
                self.prompt_rows += piece.count
                self.prompt_pairs += piece.count * (piece.start + piece.count // 2)
            else:
                self.decode_rows += 1
                self.decode_context += piece.end


class Measures:
    """An `Observer` that feeds histograms and a trace; the pages that show them."""

    def __init__(self, role: str) -> None:
        self.metrics = metrics = m.Metrics(role)
        self._trace = Trace()
        seconds, rows = metrics.histogram(m.STEP_SECONDS), metrics.counter(m.STEP_ROWS)
        self._seconds = {part: seconds.labels(part) for part in Part}
        self._grammars = metrics.histogram(m.GRAMMAR_COMPILE_SECONDS)
        self._loads = metrics.histogram(m.TIER_LOAD_SECONDS)
        self._loaded_bytes = metrics.counter(m.TIER_LOAD_BYTES)
        self._prompt_rows, self._decode_rows = rows.labels("prompt"), rows.labels("decode")
        self.work = Work()

    def planned(self, plan: Plan) -> None:
        planned = self._trace.add(plan)
        self._prompt_rows.inc(planned.prompt_rows)
        self._decode_rows.inc(len(planned.decoding))
        self.work.planned(plan)

    def took(self, part: Part, step: int, began_s: float, ended_s: float) -> None:
        self._trace.took(part, step, began_s, ended_s)
        self._seconds[part].observe(ended_s - began_s)
        if part is not Part.WAIT:  # what is waited for is counted itself
            self.work.busy_us += round(1e6 * (ended_s - began_s))

    def compiled(self, took_s: float) -> None:
        """A grammar was made, or refused."""
        self._grammars.observe(took_s)

    def loaded(self, loaded: Loaded) -> None:
        """The cache tier was asked for KV, and brought it or not."""
        self._loads.labels(loaded.result).observe(loaded.took_s)
        self._loaded_bytes.inc(loaded.size_bytes)
        self.work.loads += 1
        self.work.load_us += round(1e6 * loaded.took_s)

    def pages(self, worker_id: str) -> Mapping[str, Page]:
        """`/trace?seconds=S` has the trace of the last S seconds, by default all that is kept."""

        async def trace(query: Query) -> bytes:
            return await asyncio.to_thread(self._drawn, worker_id, _seconds(query))

        return {"/metrics": self.metrics.page(), "/trace": Page("application/json", trace)}

    def _drawn(self, worker_id: str, seconds: float | None) -> bytes:
        return orjson.dumps({"traceEvents": self._trace.events(worker_id, os.getpid(), seconds)})


def _seconds(query: Query) -> float | None:
    text = query.get("seconds")
    try:
        return None if text is None else float(text)
    except ValueError:
        raise BadRequest(f"seconds is {text!r}; expected a number", param="seconds") from None


def readings(counts: Counts, silent_s: float) -> Iterator[m.Reading]:
    """The counts of an engine as metrics; each request is in one state."""
    yield m.REQUESTS.at(counts.running, "running")
    yield m.REQUESTS.at(counts.waiting - counts.swapped, "waiting")
    yield m.REQUESTS.at(counts.swapped, "swapped")
    yield m.REQUESTS.at(counts.preparing, "preparing")
    yield m.REQUESTS.at(counts.held, "held")
    yield m.REQUESTS.at(counts.reserved, "reserved")
    for name, number in zip(PRIORITIES, counts.waiting_by_class, strict=False):
        yield m.WAITING_REQUESTS.at(number, name)
    yield m.KV_BLOCKS.at(counts.free_blocks - counts.cached_blocks, "free")
    yield m.KV_BLOCKS.at(counts.cached_blocks, "cached")
    yield m.KV_BLOCKS.at(counts.num_blocks - counts.free_blocks, "live")
    yield m.KV_SLOTS.at(counts.free_slots, "free")
    yield m.KV_SLOTS.at(counts.num_slots - counts.free_slots, "live")
    yield m.KV_ANCHORS.at(counts.num_anchors - counts.anchors, "free")
    yield m.KV_ANCHORS.at(counts.anchors, "live")
    yield m.PROMPT_TOKENS.at(counts.query_tokens_total - counts.hit_tokens_total, "computed")
    yield m.PROMPT_TOKENS.at(counts.hit_tokens_total, "cached")
    yield m.TIER_HIT_TOKENS.at(counts.memory_hit_tokens_total, "memory")
    yield m.TIER_HIT_TOKENS.at(counts.disk_hit_tokens_total, "disk")
    yield m.TIER_QUERY_TOKENS.at(counts.tier_query_tokens_total)
    yield m.WASTED_TOKENS.at(counts.aborted_tokens_total, "aborted")
    yield m.WASTED_TOKENS.at(counts.overrun_tokens_total, "overrun")
    yield m.WASTED_TOKENS.at(counts.failed_tokens_total, "failed")
    yield m.WASTED_TOKENS.at(counts.recomputed_tokens_total, "preempted")
    yield m.GENERATION_TOKENS.at(counts.tokens_total)
    yield m.PREEMPTIONS.at(counts.swaps_total, "swap")
    yield m.PREEMPTIONS.at(counts.preemptions_total - counts.swaps_total, "recompute")
    yield m.RESUMED.at(counts.snapshots_total, "snapshot")
    yield m.RESUMED.at(counts.resumed_total - counts.snapshots_total, "recompute")
    yield m.ENGINE_SILENT_SECONDS.at(silent_s)
