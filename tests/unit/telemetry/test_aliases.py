"""The same values under other names: a contract, too."""

import re
from pathlib import Path

import pytest

from diptych.telemetry import metrics as m
from diptych.telemetry.aliases import OF_GATEWAYS, OF_WORKERS, Alias, show_aliases

ROOT = Path(__file__).parents[3]


def shown(metrics: m.Metrics) -> dict[str, float]:
    """Samples by name and labels, without those that all have."""
    found = {}
    for line in metrics.text().decode().splitlines():
        if line.startswith("vllm:"):
            name, _, value = line.rpartition(" ")
            assert 'model_name="tiny"' in name
            name = re.sub(r'(model_name|role)="[^"]*",?', "", name).replace(",}", "}")
            found[name.removesuffix("{}")] = float(value)
    return found


def worker() -> m.Metrics:
    metrics = m.Metrics("decode")
    show_aliases(metrics, "vllm", "tiny")
    return metrics


def told_name(alias: Alias) -> str:
    is_counter = (alias.kind or alias.metric.kind) == "counter"
    return f"{alias.name}_total" if is_counter else alias.name


def test_every_alias_is_documented_with_its_source_and_nothing_else_is() -> None:
    table = (ROOT / "docs/metrics.md").read_text()
    documented = dict(re.findall(r"^\| `(vllm:\w+)` \| `(\w+)` \|", table, re.MULTILINE))
    aliases = OF_GATEWAYS + OF_WORKERS
    assert documented == {told_name(alias): alias.metric.name for alias in aliases}
    assert len(documented) == len(aliases)


def test_without_being_asked_for_there_are_none() -> None:
    metrics = m.Metrics("decode")
    show_aliases(metrics, "off", "tiny")
    metrics.pull(lambda: [m.GENERATION_TOKENS.at(9)])
    assert "vllm" not in metrics.text().decode()


def test_a_router_has_nothing_to_say_under_other_names() -> None:
    metrics = m.Metrics("router")
    show_aliases(metrics, "vllm", "tiny")
    metrics.pull(lambda: [m.ROUTER_LEASES.at(1)])
    assert "vllm" not in metrics.text().decode()


def test_a_gateways_running_requests_are_not_counted_again() -> None:
    metrics = m.Metrics("gateway")
    show_aliases(metrics, "vllm", "tiny")
    metrics.pull(lambda: [m.REQUESTS.at(3, "running")])
    assert shown(metrics) == {}


def test_states_add_up_to_what_waits_and_why() -> None:
    metrics = worker()
    states = {"running": 5, "waiting": 4, "swapped": 2, "preparing": 1, "held": 8, "reserved": 16}
    metrics.pull(lambda: [m.REQUESTS.at(number, state) for state, number in states.items()])
    assert shown(metrics) == {
        "vllm:num_requests_running": 5,
        "vllm:num_requests_waiting": 7,
        'vllm:num_requests_waiting_by_reason{reason="capacity"}': 6,
        'vllm:num_requests_waiting_by_reason{reason="deferred"}': 1,
    }


def test_cached_pages_are_not_in_use() -> None:
    metrics = worker()
    blocks = {"free": 10, "cached": 20, "live": 10}
    metrics.pull(lambda: [m.KV_BLOCKS.at(number, state) for state, number in blocks.items()])
    assert shown(metrics) == {"vllm:kv_cache_usage_perc": 0.25}


def test_prompt_tokens_are_told_whole_and_by_source() -> None:
    metrics = worker()
    metrics.pull(lambda: [m.PROMPT_TOKENS.at(30, "computed"), m.PROMPT_TOKENS.at(12, "cached")])
    assert shown(metrics) == {
        "vllm:prompt_tokens_total": 42,
        'vllm:prompt_tokens_by_source_total{source="local_compute"}': 30,
        'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 12,
        "vllm:prefix_cache_queries_total": 42,
        "vllm:prefix_cache_hits_total": 12,
    }
    assert "# TYPE vllm:prompt_tokens_total counter" in metrics.text().decode()


def test_what_the_tier_was_asked_for_and_had_is_the_external_cache() -> None:
    metrics = worker()
    hits = {"memory": 20, "disk": 5}
    metrics.pull(lambda: [m.TIER_HIT_TOKENS.at(number, tier) for tier, number in hits.items()])
    metrics.pull(lambda: [m.TIER_QUERY_TOKENS.at(40)])
    assert shown(metrics) == {
        "vllm:external_prefix_cache_queries_total": 40,
        "vllm:external_prefix_cache_hits_total": 25,
    }


def test_transfers_that_failed_are_counted_and_not_timed() -> None:
    metrics = worker()
    seconds = metrics.histogram(m.KV_TRANSFER_SECONDS)
    seconds.labels("ok", "grpc", "full_state").observe(0.3)
    for result in ("worker_lost", "worker_lost", "ticket_gone", "cancelled"):
        seconds.labels(result, "grpc", "full_state").observe(9)
    found = shown(metrics)
    assert found["vllm:nixl_num_failed_transfers_total"] == 3
    assert found["vllm:nixl_xfer_time_seconds_count"] == 1
    assert found["vllm:nixl_xfer_time_seconds_sum"] == 0.3
    assert found['vllm:nixl_xfer_time_seconds_bucket{le="0.25"}'] == 0
    assert found['vllm:nixl_xfer_time_seconds_bucket{le="0.5"}'] == 1


def test_only_our_own_lack_of_room_is_a_rejection() -> None:
    metrics = m.Metrics("gateway")
    show_aliases(metrics, "vllm", "tiny")
    rejects = metrics.counter(m.REJECTS)
    rejects.labels("503", "no_capacity").inc(2)
    rejects.labels("429", "rate_limit_exceeded").inc(4)
    assert shown(metrics) == {'vllm:admission_rejections_total{reason="no_capacity"}': 2}


@pytest.mark.parametrize("alias", OF_GATEWAYS + OF_WORKERS, ids=lambda alias: alias.name)
def test_names_say_who_gave_them(alias: Alias) -> None:
    assert re.fullmatch(r"vllm:[a-z0-9_]+", alias.name)
    assert alias.metric in m.ALL
