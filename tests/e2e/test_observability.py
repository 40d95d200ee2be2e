"""What an operator sees of a running platform: metrics, logs, traces, the status table."""

import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.router.trials import NEW_TOKENS
from diptych.telemetry import metrics as m
from diptych.telemetry.aliases import OF_GATEWAYS, OF_WORKERS
from diptych.testing.collector import Collector, Received, collector
from diptych.testing.platform import CLI, MODEL, Platform, environment, platform

PROMPT = "The lighthouse keeper counted the waves until the numbers ran out. " * 12
# So much that no decode worker may compute it, however much it holds of what comes before.
TAIL = "Then the fog came in, and nobody could tell the sea from the sky. " * 12
MAX_TOKENS = 6


TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACED = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01", "x-diptych-timings": "1"}
ROLES = {"gateway", "router", "prefill", "decode", "store", "supervisor"}


@pytest.fixture(scope="module")
def traces() -> Iterator[Collector]:
    with collector() as kept:
        yield kept


@pytest.fixture(scope="module")
def asked(
    tmp_path_factory: pytest.TempPathFactory, traces: Collector
) -> Iterator[tuple[Platform, httpx.Response]]:
    """A split platform that has answered a prompt and a longer one that begins with it, and refused
    a third; the second answer belongs to a trace of its client."""
    flags = ("--log-format", "json", "--metrics-alias", "vllm", "--otlp-endpoint", traces.endpoint)
    with platform(tmp_path_factory.mktemp("data"), *flags) as started:
        expect_no_nan(started)
        ask = {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "thinking": {"type": "disabled"},
        }
        url = f"{started.base_url}/v1/chat/completions"
        assert httpx.post(url, json=ask, timeout=60).status_code == 200
        longer = ask | {"messages": [{"role": "user", "content": PROMPT + TAIL}]}
        reply = httpx.post(url, json=longer, headers=TRACED, timeout=60)
        assert reply.status_code == 200
        assert httpx.post(url, json=ask | {"max_tokens": -1}, timeout=60).status_code == 400
        started.wait_for_baseline()
        yield started, reply


@pytest.fixture(scope="module")
def running(asked: tuple[Platform, httpx.Response]) -> Platform:
    return asked[0]


@pytest.fixture(scope="module")
def reply(asked: tuple[Platform, httpx.Response]) -> httpx.Response:
    """The answer that is traced."""
    return asked[1]


def command(running: Platform, *arguments: str) -> str:
    done = subprocess.run(
        [*CLI, *arguments, "--data-dir", str(running.data_dir)],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
        check=True,
    )
    return done.stdout


def samples(running: Platform, prefix: str = "llm_") -> dict[str, float]:
    """Of all processes; one name and set of labels comes from one process only."""
    found: dict[str, float] = {}
    for process in running.state["processes"]:
        text = httpx.get(f"http://{process['metrics_address']}/metrics").text
        for line in text.splitlines():
            if line.startswith(prefix):
                name, _, value = line.rpartition(" ")
                assert name not in found and f'role="{process["role"]}"' in name
                found[name] = float(value)
    return found


def lines(running: Platform) -> list[dict[str, Any]]:
    """What all processes have logged."""
    texts = [path.read_text() for path in sorted((running.data_dir / "logs").glob("*.log"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def expect_no_nan(running: Platform) -> None:
    """Of any role: what cannot be computed is absent."""
    roles = set()
    for process in running.state["processes"]:
        text = httpx.get(f"http://{process['metrics_address']}/metrics").text
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line[:1] != "#"]
        assert values and all(math.isfinite(float(value)) for value in values), text
        roles.add(process["role"])
    assert roles == ROLES - {"supervisor"}


def test_no_page_says_nan_idle_or_after_traffic(running: Platform) -> None:
    expect_no_nan(running)  # and when it had just started: see the fixture


def test_every_metric_is_shown_by_some_process(running: Platform) -> None:
    shown = ""
    for process in running.state["processes"]:
        shown += httpx.get(f"http://{process['metrics_address']}/metrics").text
    names = set(re.findall(r"^# TYPE (llm_\w+)", shown, re.MULTILINE))
    # Only where a hit was predicted and came; only while prompts came within the last minute.
    late = {m.INDEX_ACCURACY.name, m.SCALING_HITS.name}
    assert names | late == {metric.name for metric in m.ALL}


def test_one_request_adds_up_over_all_processes(running: Platform) -> None:
    found = samples(running)
    prompt_tokens = found['llm_tokens_total{role="gateway",type="input"}']
    answers = found['llm_request_seconds_count{result="ok",role="gateway"}']
    assert answers == 3  # one more: the supervisor's question
    assert found['llm_canary_ok{role="router",worker="decode-1"}'] == 1
    canaries = found['llm_canaries_total{result="ok",role="router"}']  # nobody's requests
    computed = found['llm_prompt_tokens_total{role="prefill",source="computed"}']
    cached = found['llm_prompt_tokens_total{role="prefill",source="cached"}']
    assert computed + cached == prompt_tokens + canaries * 192
    assert cached == found['llm_tokens_total{role="gateway",type="cached"}']
    assert found['llm_generation_tokens_total{role="prefill"}'] == answers + canaries
    sampled = found['llm_generation_tokens_total{role="decode"}'] - canaries * (NEW_TOKENS - 1)
    assert sampled + answers == found['llm_tokens_total{role="gateway",type="output"}']
    moved, how = 'mode="full_state",', 'role="decode",transport="grpc"'
    transfers = found[f'llm_kv_transfer_seconds_count{{{moved}result="ok",{how}}}']
    assert transfers == answers + canaries
    assert found[f"llm_kv_transfer_bytes_total{{{moved}{how}}}"] > 0
    assert found['llm_router_queue_seconds_count{class="normal",role="router"}'] == answers
    assert found['llm_ttft_predicted_error_ratio_count{role="router"}'] == answers
    for phase in ("prefill", "decode"):
        reason = f'llm_route_reason_total{{phase="{phase}",reason="only",role="router"}}'
        assert found[reason] == answers
    assert found['llm_wasted_tokens_total{role="prefill",why="aborted"}'] == 0
    assert not any(name.startswith("llm_aborts_total") for name in found)
    assert found['llm_rejects_total{code="400",reason="invalid_value",role="gateway"}'] == 1
    for state in ("running", "waiting", "held", "reserved"):
        for role in ("prefill", "decode"):
            assert found[f'llm_requests{{role="{role}",state="{state}"}}'] == 0


def test_the_gateways_public_port_shows_no_metrics(running: Platform) -> None:
    assert httpx.get(f"{running.base_url}/metrics").status_code == 404


def test_a_trace_shows_both_workers_on_one_clock(running: Platform, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = json.loads(command(running, "trace"))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["decode-1", "prefill-1"]
    lines = [(e["id"], names[e["pid"]], e["ph"], e["ts"]) for e in events if e["ph"] in "be"]
    requests = {line[0] for line in lines}
    assert len(requests) == 4  # a canary's, too
    for request in requests:
        at_s = {(worker, phase): ts for name, worker, phase, ts in lines if name == request}
        assert at_s["prefill-1", "b"] < at_s["decode-1", "b"] < at_s["decode-1", "e"]
    only = json.loads(command(running, "trace", "decode-1", "--seconds", "600"))["traceEvents"]
    assert {e["pid"] for e in only} == {pid for pid, name in names.items() if name == "decode-1"}


def test_status_fits_a_terminal_and_names_every_port(running: Platform) -> None:
    shown = command(running, "status")
    assert max(map(len, shown.splitlines())) <= 100
    for process in running.state["processes"]:
        assert process["metrics_address"] in shown
    status = running.status()
    joins = {member["join"]["member_id"]: member["join"] for member in status["members"]}
    for process in status["processes"]:
        join = joins.get(process["id"], process)  # the router joins nobody
        assert join["metrics_address"] == process["metrics_address"]


def test_each_alias_has_the_value_of_its_metric(running: Platform) -> None:
    ours, theirs = samples(running), samples(running, "vllm:")

    def total(found: dict[str, float], name: str, *labels: str) -> float:
        return sum(
            value
            for key, value in found.items()
            if key.partition("{")[0] == name and all(label in key for label in labels)
        )

    same = {
        "vllm:generation_tokens_total": total(ours, "llm_generation_tokens_total"),
        "vllm:prompt_tokens_total": total(ours, "llm_prompt_tokens_total"),
        "vllm:prefix_cache_hits_total": total(ours, "llm_prompt_tokens_total", "cached"),
        "vllm:time_to_first_token_seconds_count": total(ours, "llm_ttft_seconds_count"),
        "vllm:e2e_request_latency_seconds_sum": total(ours, "llm_request_seconds_sum", "ok"),
        "vllm:nixl_xfer_time_seconds_count": total(ours, "llm_kv_transfer_seconds_count", "ok"),
        "vllm:num_requests_running": 0,
        "vllm:kv_cache_usage_perc": 0,
    }
    assert {name: total(theirs, name) for name in same} == same
    assert same["vllm:prefix_cache_hits_total"] > 0
    assert all(f'model_name="{MODEL}"' in name for name in theirs)
    known = {alias.name for alias in OF_GATEWAYS + OF_WORKERS}
    suffix = re.compile(r"(_total|_bucket|_count|_sum)?\{.*")
    shown = {suffix.sub("", name) for name in theirs}
    assert shown == known - {"vllm:admission_rejections"}  # nobody was refused for lack of room


def test_every_line_of_every_process_is_json_and_says_who(
    running: Platform, reply: httpx.Response
) -> None:
    told = lines(running)
    assert {line["role"] for line in told} == ROLES
    assert {line["process"] for line in told} >= {"gateway-1", "prefill-1", "decode-1"}
    served = [line for line in told if line["logger"] == "diptych.gateway.access"]
    assert sorted(line["fields"]["status"] for line in served) == [200, 200, 200, 400]
    request_id = reply.headers["x-request-id"]
    (ours,) = (line for line in served if line.get("request_id") == request_id)
    assert ours["fields"]["trace_id"] == TRACE_ID
    assert ours["fields"]["completion_tokens"] == MAX_TOKENS
    assert "lighthouse" not in json.dumps(told)


def test_a_trace_goes_through_all_processes_and_holds_no_content(
    traces: Collector, reply: httpx.Response
) -> None:
    names = {"gateway", "tokenize", "queue", "prefill", "handoff", "decode"}
    names |= {"worker.prefill", "worker.reserve", "worker.start", "worker.transfer"}
    spans = {span.name: span for span in traces.wait_for(TRACE_ID, *names)}
    assert spans.keys() == names
    root = spans.pop("gateway")
    assert root.parent_id == TRACED["traceparent"].split("-")[2]
    assert root.attributes["diptych.request_id"] == reply.headers["x-request-id"]
    assert root.attributes["gen_ai.usage.output_tokens"] == MAX_TOKENS
    for span in spans.values():
        assert span.parent_id == root.span_id and not span.is_error
        assert root.began_ns <= span.began_ns <= span.ended_ns <= root.ended_ns + 1_000_000
    services = {name: span.service for name, span in spans.items() if name.startswith("worker")}
    assert services.pop("worker.prefill") == "diptych-prefill"
    assert set(services.values()) == {"diptych-decode"}
    assert spans["worker.transfer"].attributes["diptych.size_bytes"] > 0
    assert_within(spans["worker.transfer"], spans["worker.start"])
    assert spans["prefill"].attributes["diptych.worker"] == "prefill-1"
    assert spans["decode"].attributes["diptych.worker"] == "decode-1"
    text = reply.json()["choices"][0]["message"]["content"]
    for body in traces.sent:
        assert b"lighthouse" not in body and (not text or text.encode() not in body)


def assert_within(inner: Received, outer: Received) -> None:
    assert (
        outer.began_ns - 1_000_000 <= inner.began_ns <= inner.ended_ns <= outer.ended_ns + 1_000_000
    )


def test_timings_tell_where_the_time_of_an_answer_went(reply: httpx.Response) -> None:
    timings = reply.json()["timings"]
    assert timings["route"] == "split" and timings["attempts"] == 1
    assert (
        timings["cached_tokens"] == reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    )
    phases = [timings[f"{name}_ms"] for name in ("queue", "prefill", "handoff", "decode")]
    assert min(phases) >= 0 and 0 < sum(phases) <= timings["total_ms"]
    assert timings["prefill_ms"] <= timings["first_token_ms"] <= timings["total_ms"]
    assert timings["route_reasons"] and timings["cached_tokens"] > 0
