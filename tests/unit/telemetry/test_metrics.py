"""Names are a contract; values carry their role."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from diptych.telemetry import metrics as m

ROOT = Path(__file__).parents[3]
NAMES_FILE = ROOT / "src/diptych/telemetry/metrics.py"
SOURCES = (
    "src/diptych",
    "gateway",
    "router",
    "prefill_service",
    "decode_service",
    "kvcache_store",
)


def constants() -> dict[str, m.Metric]:
    return {name: value for name, value in vars(m).items() if isinstance(value, m.Metric)}


def source() -> Iterator[str]:
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            if path != NAMES_FILE:
                yield path.read_text()


def test_every_metric_is_set_somewhere() -> None:
    text = "\n".join(source())
    unused = [name for name in constants() if not re.search(rf"\bm\.{name}\b", text)]
    assert constants() and not unused


def test_every_metric_is_documented_with_its_labels_and_nothing_else_is() -> None:
    table = (ROOT / "docs/metrics.md").read_text()
    documented = {}
    for line in table.splitlines():
        if line.startswith("| `llm_"):
            names, labels = line.split("|")[1:3]
            for name in re.findall(r"`(\w+)`", names):
                documented[name] = tuple(re.findall(r"`(\w+)`", labels))
    assert documented == {metric.name: metric.labels for metric in m.ALL}


@pytest.mark.parametrize("metric", m.ALL, ids=lambda metric: metric.name)
def test_names_say_their_unit_and_kind(metric: m.Metric) -> None:
    assert metric.name.startswith("llm_")
    assert metric.name.endswith("_total") == (metric.kind is m.Kind.COUNTER)
    is_ratio = metric.name.endswith("_error_ratio")  # without a unit: what was, of what was said
    assert is_ratio or not re.search(r"_(ms|us|kb|mb|percent|ratio)(_|$)", metric.name)
    assert ("role" not in metric.labels) and metric.help.endswith(".")
    if metric.kind is m.Kind.HISTOGRAM:
        assert is_ratio or metric.name.endswith("_seconds")
        assert list(metric.buckets) == sorted(metric.buckets)


def test_names_are_given_once() -> None:
    names = [metric.name for metric in m.ALL]
    assert len(set(names)) == len(names)


def test_samples_carry_the_role_and_their_labels() -> None:
    metrics = m.Metrics("decode")
    metrics.histogram(m.STEP_SECONDS).labels("plan").observe(0.002)
    metrics.counter(m.STEP_ROWS).labels("decode").inc(3)
    text = metrics.text().decode()
    assert 'llm_step_seconds_bucket{le="0.003",part="plan",role="decode"} 1.0' in text
    assert 'llm_step_rows_total{kind="decode",role="decode"} 3.0' in text
    assert "# TYPE llm_step_rows_total counter" in text


def test_what_is_pulled_is_read_when_somebody_asks() -> None:
    metrics, running = m.Metrics("prefill"), 1
    metrics.pull(lambda: [m.REQUESTS.at(running, "running"), m.GENERATION_TOKENS.at(7)])
    metrics.pull(lambda: [m.SESSIONS.at(2)])
    running = 5
    text = metrics.text().decode()
    assert 'llm_requests{role="prefill",state="running"} 5.0' in text
    assert 'llm_generation_tokens_total{role="prefill"} 7.0' in text
    assert 'llm_sessions{role="prefill"} 2.0' in text


def test_two_registries_know_nothing_of_each_other() -> None:
    one, other = m.Metrics("decode"), m.Metrics("decode")
    one.counter(m.STEP_ROWS).labels("prompt").inc()
    assert "llm_step_rows" not in other.text().decode()


def test_a_reading_names_all_labels() -> None:
    with pytest.raises(AssertionError, match="llm_requests has the labels"):
        m.REQUESTS.at(1)
