"""What an operator sees of a running platform: metrics, the step trace, the status table."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.telemetry import metrics as m
from diptych.testing.platform import CLI, MODEL, Platform, environment, platform

PROMPT = "The lighthouse keeper counted the waves until the numbers ran out. " * 5
MAX_TOKENS = 6


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A split platform that has answered one prompt twice, and refused a third."""
    with platform(tmp_path_factory.mktemp("data")) as started:
        ask = {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "thinking": {"type": "disabled"},
        }
        url = f"{started.base_url}/v1/chat/completions"
        for _ in range(2):
            assert httpx.post(url, json=ask, timeout=60).status_code == 200
        assert httpx.post(url, json=ask | {"max_tokens": -1}, timeout=60).status_code == 400
        started.wait_for_baseline()
        yield started


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


def samples(running: Platform) -> dict[str, float]:
    """Of all processes; one name and set of labels comes from one process only."""
    found: dict[str, float] = {}
    for process in running.state["processes"]:
        text = httpx.get(f"http://{process['metrics_address']}/metrics").text
        for line in text.splitlines():
            if line.startswith("llm_"):
                name, _, value = line.rpartition(" ")
                assert name not in found and f'role="{process["role"]}"' in name
                found[name] = float(value)
    return found


def test_every_metric_is_shown_by_some_process(running: Platform) -> None:
    shown = ""
    for process in running.state["processes"]:
        shown += httpx.get(f"http://{process['metrics_address']}/metrics").text
    names = set(re.findall(r"^# TYPE (llm_\w+)", shown, re.MULTILINE))
    assert names == {metric.name for metric in m.ALL}


def test_one_request_adds_up_over_all_processes(running: Platform) -> None:
    found = samples(running)
    prompt_tokens = found['llm_tokens_total{role="gateway",type="input"}']
    answers = found['llm_request_seconds_count{result="ok",role="gateway"}']
    assert answers == 3  # one more: the supervisor's question
    computed = found['llm_prompt_tokens_total{role="prefill",source="computed"}']
    cached = found['llm_prompt_tokens_total{role="prefill",source="cached"}']
    assert computed + cached == prompt_tokens
    assert cached == found['llm_tokens_total{role="gateway",type="cached"}']
    assert found['llm_generation_tokens_total{role="prefill"}'] == answers
    sampled = found['llm_generation_tokens_total{role="decode"}']
    assert sampled + answers == found['llm_tokens_total{role="gateway",type="output"}']
    assert found['llm_kv_transfer_seconds_count{result="ok",role="decode"}'] == answers
    assert found['llm_kv_transfer_bytes_total{role="decode"}'] > 0
    assert found['llm_router_queue_seconds_count{class="normal",role="router"}'] == answers
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
    assert len(requests) == 3
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
