"""What a trace keeps of steps, and how it is drawn."""

import json
import time
from typing import Any

import pytest

from diptych.core.errors import BadRequest
from diptych.core.ids import Key
from diptych.core.step import StepOutput
from diptych.engine.device import DeviceThread
from diptych.engine.ledger import Ledger
from diptych.engine.measures import Measures, readings
from diptych.engine.stepper import Stepper
from diptych.engine.tiering import Loaded
from diptych.engine.trace import Observer, Part, Trace

from .conftest import FakeRunner, make_generation, make_ledger

DEVICES = {"inline": lambda: None, "thread": DeviceThread}


def run(observer: Observer, device: str = "inline", **runner: Any) -> Ledger:
    """A prompt of two chunks and three decode steps, beside one that is shorter by a step."""
    ledger = make_ledger(max_batch_tokens=16)
    stepper = Stepper(ledger, FakeRunner(**runner), DEVICES[device](), observer)
    ledger.submit(make_generation("long", prompt_len=20, max_new=4), hold=False)
    ledger.submit(make_generation("short", prompt_len=8, max_new=2), hold=False)
    while stepper.step(ignore):
        pass
    stepper.close()
    return ledger


def ignore(output: StepOutput) -> None:
    pass


def of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


@pytest.mark.parametrize("device", DEVICES)
def test_every_part_of_every_step_is_drawn_once_on_its_thread(device: str) -> None:
    trace = Trace()
    run(trace, device)
    events = trace.events("decode-1", 7)
    spans = of(events, "X")
    steps = sorted({span["args"]["step"] for span in spans})
    assert steps == list(range(len(steps))) and len(steps) >= 5
    drawn = sorted((span["args"]["step"], span["name"]) for span in spans)
    samples = {step for step, name in drawn if name == "sample"}
    others = set(Part) - {Part.SAMPLE}
    assert drawn == sorted(
        [(step, part) for step in steps for part in others] + [(s, "sample") for s in samples]
    )
    threads = {event["tid"]: event["args"]["name"] for event in of(events, "M") if event["tid"]}
    on_device = {s["name"] for s in spans if threads[s["tid"]] == "device"}
    assert on_device == {"forward", "sample"}
    assert all(event["pid"] == 7 for event in events)
    assert all(span["dur"] >= 0 for span in spans)


def test_a_plan_says_who_computes_what_and_nothing_of_the_content() -> None:
    trace = Trace()
    run(trace)
    plans = [span["args"] for span in of(trace.events("w", 1), "X") if span["name"] == "plan"]
    assert plans[0] == {"step": 0, "rows": 16, "chunks": {"long/1": "0+16"}, "decoding": []}
    assert plans[1]["chunks"] == {"long/1": "16+4", "short/1": "0+8"}
    assert plans[2] == {"step": 2, "rows": 2, "chunks": {}, "decoding": ["long/1", "short/1"]}
    graph = [event["args"] for event in of(trace.events("w", 1), "C")]
    assert graph[:3] == [
        {"prompt": 16, "decode": 0},
        {"prompt": 12, "decode": 0},
        {"prompt": 0, "decode": 2},
    ]


def test_a_request_is_a_line_from_its_first_step_to_its_last() -> None:
    trace = Trace()
    run(trace)
    events = trace.events("w", 1)
    begins = {event["id"]: event["ts"] for event in of(events, "b")}
    ends = {event["id"]: event["ts"] for event in of(events, "e")}
    assert begins.keys() == ends.keys() == {"long/1", "short/1"}
    assert begins["long/1"] < begins["short/1"] < ends["short/1"] < ends["long/1"]


def test_times_are_those_of_the_wall_clock() -> None:
    before_s = time.time()
    trace = Trace()
    run(trace)
    times_s = [event["ts"] / 1e6 for event in trace.events("w", 1) if "ts" in event]
    assert before_s - 0.1 < min(times_s) <= max(times_s) < time.time() + 0.1


def test_only_the_newest_steps_are_kept_whole() -> None:
    trace = Trace(num_steps=2)
    run(trace)
    spans = of(trace.events("w", 1), "X")
    steps = {span["args"]["step"] for span in spans}
    assert len(steps) == 2 and min(steps) >= 3
    assert len(spans) == 2 * len(Part)


def test_a_trace_can_be_cut_to_its_last_seconds() -> None:
    trace = Trace()
    run(trace)
    assert not of(trace.events("w", 1, seconds=0.0), "X")
    assert of(trace.events("w", 1, seconds=60.0), "X") == of(trace.events("w", 1), "X")


def test_a_step_that_breaks_is_drawn_up_to_there() -> None:
    trace = Trace()
    run(trace, breaks=True)
    names = {span["name"] for span in of(trace.events("w", 1), "X")}
    assert names == set(Part) - {Part.RETIRE}


async def test_a_worker_shows_its_steps_as_metrics_and_as_json() -> None:
    measures = Measures("decode")
    run(measures)
    text = (await measures.pages("decode-1")["/metrics"].make({})).decode()
    assert 'llm_step_rows_total{kind="prompt",role="decode"} 28.0' in text
    assert 'llm_step_rows_total{kind="decode",role="decode"} 4.0' in text
    assert 'llm_step_seconds_count{part="plan",role="decode"} 5.0' in text
    page = measures.pages("decode-1")["/trace"]
    drawn = json.loads(await page.make({"seconds": "60"}))
    assert {event["args"]["name"] for event in of(drawn["traceEvents"], "M")} == {
        "decode-1",
        "scheduler",
        "device",
    }
    with pytest.raises(BadRequest, match="seconds is 'soon'"):
        await page.make({"seconds": "soon"})


async def test_a_worker_adds_up_what_it_loaded_for_metrics_and_routers() -> None:
    measures = Measures("prefill")
    measures.loaded(Loaded("ok", 1000, 0.25))
    measures.loaded(Loaded("failed", 0, 1.5))
    assert (measures.work.loads, measures.work.load_us) == (2, 1_750_000)
    text = (await measures.pages("prefill-1")["/metrics"].make({})).decode()
    assert 'llm_tier_load_bytes_total{role="prefill"} 1000.0' in text
    assert 'llm_tier_load_seconds_sum{result="failed",role="prefill"} 1.5' in text


def test_counts_of_an_engine_are_disjoint_states() -> None:
    ledger = make_ledger(num_blocks=8, num_slots=4)
    ledger.submit(make_generation("held", prompt_len=9), hold=True)
    stepper = Stepper(ledger, FakeRunner())
    while stepper.step(ignore):
        pass
    ledger.reserve(Key("reserved", 1), 8)
    ledger.submit(make_generation("waiting", priority="batch"), hold=False)
    shown = {(r.metric.name, *r.labels): r.value for r in readings(ledger.counts(), 0.5)}
    states = {
        labels[0]: value for (name, *labels), value in shown.items() if name == "llm_requests"
    }
    assert states == {
        "running": 0, "waiting": 1, "swapped": 0, "preparing": 0, "held": 1, "reserved": 1,
    }  # fmt: skip
    blocks = {
        labels[0]: value for (name, *labels), value in shown.items() if name == "llm_kv_blocks"
    }
    assert blocks == {"free": 5, "cached": 0, "live": 3}
    assert shown["llm_prompt_tokens_total", "computed"] == 9
    assert shown["llm_waiting_requests", "batch"] == 1
    assert shown["llm_waiting_requests", "normal"] == 0
    assert shown["llm_engine_silent_seconds",] == 0.5
