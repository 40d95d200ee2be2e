"""The same values under the names of vLLM, for dashboards, scaling rules and endpoint pickers.

Tables, and functions of what a process shows anyway. What cannot be computed from it is absent. An
event is counted by one process only, so that sums over all of them are right.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from diptych.core.phases import Role
from diptych.telemetry import metrics as m

Suffix = str  # of a sample's name behind its family's: "", _total, _bucket, _sum, _count
Values = Iterable[tuple[Suffix, dict[str, str], float]]
Make = Callable[[Values], Values]


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name, and what becomes of a metric's samples under it."""

    name: str  # counters get their `_total` when they are shown
    metric: m.Metric
    make: Make
    kind: Literal["counter", "gauge", "histogram"] | None = None  # None: the metric's


def as_is(values: Values) -> Values:
    """Renamed only."""
    return values


def added(label: str, *only: str, without: Collection[str] = ()) -> Make:
    """Without a label: added up over its values, or over some of them; without others, too."""

    def make(values: Values) -> Values:
        sums: defaultdict[tuple[Suffix, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        for suffix, labels, value in values:
            if not only or labels[label] in only:
                rest = tuple((n, v) for n, v in labels.items() if n not in (label, *without))
                sums[suffix, rest] += value
        return [(suffix, dict(rest), value) for (suffix, rest), value in sums.items()]

    return make


def renamed(label: str, to: str, names: Mapping[str, str]) -> Make:
    """With a label's values under the names that they have elsewhere, equal ones added up."""

    def make(values: Values) -> Values:
        sums: defaultdict[tuple[Suffix, str], float] = defaultdict(float)
        for suffix, labels, value in values:
            if labels[label] in names:
                sums[suffix, names[labels[label]]] += value
        return [(suffix, {to: name}, value) for (suffix, name), value in sums.items()]

    return make


def share(label: str, of: str) -> Make:
    """What one value of a label is of all of them, 0 to 1."""

    def make(values: Values) -> Values:
        by = {labels[label]: value for _, labels, value in values}
        return [("", {}, by[of] / total)] if (total := sum(by.values())) else []

    return make


def counted(label: str, but: Collection[str]) -> Make:
    """How often a histogram was observed, but for some values of a label."""

    def make(values: Values) -> Values:
        counts = [
            value
            for suffix, labels, value in values
            if suffix == "_count" and labels[label] not in but
        ]
        return [("_total", {}, sum(counts))]

    return make


_WAITING = {"waiting": "capacity", "swapped": "capacity", "preparing": "deferred"}
_SOURCES = {"computed": "local_compute", "cached": "local_cache_hit"}

OF_GATEWAYS = (
    Alias("vllm:e2e_request_latency_seconds", m.REQUEST_SECONDS, added("result", "ok")),
    Alias("vllm:time_to_first_token_seconds", m.TTFT_SECONDS, as_is),
    Alias("vllm:inter_token_latency_seconds", m.INTER_TOKEN_SECONDS, as_is),
    Alias("vllm:request_time_per_output_token_seconds", m.TIME_PER_OUTPUT_TOKEN_SECONDS, as_is),
    Alias("vllm:request_queue_time_seconds", m.PHASE_SECONDS, added("phase", "route")),
    Alias("vllm:admission_rejections", m.REJECTS, added("code", "503")),
)
OF_WORKERS = (
    Alias("vllm:num_requests_running", m.REQUESTS, added("state", "running")),
    Alias("vllm:num_requests_waiting", m.REQUESTS, added("state", *_WAITING)),
    Alias("vllm:num_requests_waiting_by_reason", m.REQUESTS, renamed("state", "reason", _WAITING)),
    Alias("vllm:kv_cache_usage_perc", m.KV_BLOCKS, share("state", "live")),
    Alias("vllm:prompt_tokens", m.PROMPT_TOKENS, added("source")),
    Alias("vllm:prompt_tokens_by_source", m.PROMPT_TOKENS, renamed("source", "source", _SOURCES)),
    Alias("vllm:generation_tokens", m.GENERATION_TOKENS, as_is),
    Alias("vllm:prefix_cache_queries", m.PROMPT_TOKENS, added("source")),
    Alias("vllm:prefix_cache_hits", m.PROMPT_TOKENS, added("source", "cached")),
    Alias("vllm:num_preemptions", m.PREEMPTIONS, added("how")),
    Alias("vllm:external_prefix_cache_queries", m.TIER_QUERY_TOKENS, as_is),
    Alias("vllm:external_prefix_cache_hits", m.TIER_HIT_TOKENS, added("tier")),
    Alias(
        "vllm:nixl_xfer_time_seconds",
        m.KV_TRANSFER_SECONDS,
        added("result", "ok", without=("transport", "mode")),
    ),
    Alias(
        "vllm:nixl_num_failed_transfers",
        m.KV_TRANSFER_SECONDS,
        counted("result", but=("ok", "cancelled")),
        "counter",
    ),
    Alias("vllm:nixl_num_kv_expired_reqs", m.KV_LAPSED, as_is),
)


def show_aliases(metrics: m.Metrics, names: str, model: str) -> None:
    """Show the metrics of a process under other names, too: `off`, or `vllm`."""
    aliases = of_role(metrics.role)
    if names == "vllm" and aliases:
        metrics.show_also(lambda families: aliased(families, aliases), {"model_name": model})


def of_role(role: str) -> tuple[Alias, ...]:
    """What a process has to say under other names."""
    if role == Role.GATEWAY:
        return OF_GATEWAYS
    return OF_WORKERS if role in (Role.PREFILL, Role.DECODE, Role.HYBRID) else ()


def aliased(families: Iterable[Family], aliases: Iterable[Alias]) -> Iterator[Family]:
    """A family for each alias whose metric is shown."""
    found = {family.name: family for family in families}
    for alias in aliases:
        source = found.get(alias.metric.name.removesuffix("_total"))
        if source is not None:
            told = f"{alias.metric.name}: {source.documentation}"
            shown = Family(alias.name, told, alias.kind or source.type)
            shown.samples = [
                Sample(alias.name + suffix, labels, value)
                for suffix, labels, value in alias.make(_values(source))
            ]
            yield shown


def _values(family: Family) -> Values:
    return [
        (sample.name.removeprefix(family.name), dict(sample.labels), sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
