"""Every metric name of every process, and the registry that shows them to Prometheus.

Names are a contract: none is renamed. Units are seconds and bytes, counters end in `_total`, no
label has a value per request, and what a process cannot know it does not show. Each process adds
the label `role`, so that prefill and decode are two values of one name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum, auto

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from diptych.telemetry.endpoint import Page, Query

_FAST_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_RATIOS = (0.1, 0.25, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 4.0, 10.0)
_SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


@dataclass(frozen=True, slots=True)
class Metric:
    """A name and what it means."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def at(self, value: float, *labels: str) -> "Reading":
        """Its value now, for some values of its labels."""
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}"
        return Reading(self, labels, value)


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that somebody keeps anyway, at the moment of asking."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, text, labels)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, labels, buckets)


# All roles but router

REQUESTS = _gauge("llm_requests", "Requests by where they stand.", "state")

# Workers: the engine

WAITING_REQUESTS = _gauge("llm_waiting_requests", "In the engine's queue, by class.", "class")
KV_BLOCKS = _gauge("llm_kv_blocks", "Block pages: free, cached (free to evict), live.", "state")
KV_SLOTS = _gauge("llm_kv_slots", "Slots: free, live.", "state")
KV_ANCHORS = _gauge("llm_kv_anchors", "Anchor pages: free, live.", "state")
PROMPT_TOKENS = _counter(
    "llm_prompt_tokens_total", "Prompt tokens admitted: computed, or cached.", "source"
)
GENERATION_TOKENS = _counter("llm_generation_tokens_total", "Tokens sampled.")
WASTED_TOKENS = _counter(
    "llm_wasted_tokens_total", "Computed for nothing: aborted, overrun, failed, preempted.", "why"
)
RESUMED = _counter(
    "llm_resumed_total", "Sequences begun at a worker that was lost: snapshot, recompute.", "how"
)
PREEMPTIONS = _counter(
    "llm_preemptions_total", "Sequences that gave up their blocks: swap, recompute.", "how"
)
STEP_SECONDS = _histogram(
    "llm_step_seconds", "Parts of an engine step, as in the step trace.", "part", buckets=_FAST_S
)
STEP_ROWS = _counter("llm_step_rows_total", "Rows computed: prompt, decode.", "kind")
ENGINE_SILENT_SECONDS = _gauge(
    "llm_engine_silent_seconds", "Since the engine thread last answered; 0 when it has no work."
)

GRAMMAR_COMPILE_SECONDS = _histogram(
    "llm_grammar_compile_seconds", "Grammars tried and compiled, or refused.", buckets=_SLOW_S
)

# Workers: their neighbours

SESSIONS = _gauge("llm_sessions", "Open Session streams to gateways, or to workers.")
TICKETS = _gauge("llm_tickets", "Prompts with a ticket: expected, held.", "state")
KV_LAPSED = _counter("llm_kv_lapsed_total", "Tickets whose lease ended before a commit.")
RESERVATIONS = _gauge("llm_reservations", "Reservations that wait for their Start.")
KV_TRANSFERS = _gauge("llm_kv_transfers", "KV transfers under way or waiting for their turn.")
KV_TRANSFER_SECONDS = _histogram(
    "llm_kv_transfer_seconds", "KV transfers, their commit included.",
    "result", "transport", "mode", buckets=_SLOW_S,
)  # fmt: skip
KV_TRANSFER_BYTES = _counter(
    "llm_kv_transfer_bytes_total", "Bytes of KV fetched.", "transport", "mode"
)
KV_CHECKSUM_FAILURES = _counter(
    "llm_kv_checksum_failures_total", "Parts that arrived damaged, by who gave them.", "source"
)

# Workers: the cache tier

TIER_HIT_TOKENS = _counter(
    "llm_tier_hit_tokens_total", "Cached prompt tokens that the tier brought: memory, disk.", "tier"
)
TIER_QUERY_TOKENS = _counter(
    "llm_tier_query_tokens_total", "Prompt tokens not here that the tier was asked for."
)
TIER_LOAD_SECONDS = _histogram(
    "llm_tier_load_seconds", "Loads of KV: ok, partial, failed.", "result", buckets=_FAST_S
)
TIER_LOAD_BYTES = _counter("llm_tier_load_bytes_total", "Bytes of KV that loads brought.")
TIER_PUTS = _counter(
    "llm_tier_puts_total", "Parts to be kept that the tier lacked: sent; or dropped.", "result"
)

# Store

TIER_LOOKUP_SECONDS = _histogram(
    "llm_tier_lookup_seconds", "Look-ups of a chain, as the store sees them.", buckets=_FAST_S
)
TIER_PARTS = _gauge("llm_tier_parts", "Blocks and anchors: memory, disk.", "tier")
TIER_BYTES = _gauge("llm_tier_bytes", "Bytes of parts in memory: used, free.", "state")
TIER_READS = _counter(
    "llm_tier_reads_total", "Parts read: memory, disk; or not: missing, slow.", "source"
)
TIER_WRITES = _counter(
    "llm_tier_writes_total", "Parts that were to be written to disk, by what became.", "result"
)
TIER_QUEUED_BYTES = _gauge("llm_tier_queued_bytes", "Bytes that wait for the disk.")
RETENTION_BYTES = _gauge(
    "llm_retention_bytes", "The disk's capacity by class and state; all adds up.", "class", "state"
)
RETENTION_AGE_BYTES = _gauge(
    "llm_retention_age_bytes", "Live bytes by days since the last access.", "class", "days"
)
RETENTION_SHOWN_SECONDS = _gauge(
    "llm_retention_shown_seconds", "How long a class can be promised at today's rate.", "class"
)
RETENTION_VIOLATIONS = _counter(
    "llm_retention_violations_bytes_total", "Bytes evicted before their time.", "class"
)
RETENTION_FREED = _counter("llm_retention_freed_bytes_total", "Bytes that went, by why.", "why")
PINS = _gauge("llm_pins", "Leases on parts: held, leaked (outlived by half).", "state")
PINS_LAPSED = _counter("llm_pins_lapsed_total", "Pins that their deadline ended.")

# Router

ROUTER_LEASES = _gauge("llm_router_leases", "Requests with an open lease.")
ROUTER_WAITING = _gauge(
    "llm_router_waiting", "Requests that wait for a worker: prompts, handoffs.", "queue"
)
ROUTER_QUEUE_SECONDS = _histogram(
    "llm_router_queue_seconds", "From Want to the first placement.", "class", buckets=_SLOW_S
)
ROUTER_DECISION_SECONDS = _histogram(
    "llm_router_decision_seconds", "One round of decisions.", buckets=_FAST_S
)
ROUTER_REFUSED = _counter("llm_router_refused_total", "Requests turned away.", "code")
ROUTER_POLICY = _gauge(
    "llm_router_policy_info", "By what is decided: cost, or own_ledger without reports.", "policy"
)
ROUTER_PEERS = _gauge("llm_router_peers", "Other routers: heard, or stale.", "state")
ROUTER_BREAKERS = _gauge("llm_router_breakers_open", "Workers that are given nothing for a while.")
ROUTER_BLOCKED = _gauge("llm_router_blocked_prompts", "Prompts that killed their worker twice.")
CANARY_OK = _gauge("llm_canary_ok", "1: KV came through a worker, and it serves.", "worker")
CANARIES = _counter("llm_canaries_total", "Canaries that ended: ok, busy, failed.", "result")
PAIRS_BAD = _gauge("llm_pairs_bad", "Prefill and decode workers that cannot exchange KV now.")
INDEX_BLOCKS = _gauge("llm_index_blocks", "Blocks of which a holder is known.")
INDEX_MEMBERS = _gauge("llm_index_members", "Workers: announcing blocks, or load_only.", "state")
INDEX_ACCURACY = _gauge(
    "llm_index_accuracy", "Cached prompt tokens found, of those the index expected.", "worker"
)
INDEX_TIER_BLOCKS = _gauge(
    "llm_index_tier_blocks", "Blocks known on devices, in the cache tier's memory, on disk.", "tier"
)
INDEX_STORES = _gauge("llm_index_stores", "Nodes of the cache tier: followed, or lost.", "state")
INDEX_GAPS = _counter("llm_index_gap_total", "Times that announced changes were missing.")
INDEX_EVICTED = _counter("llm_index_evicted_total", "Blocks forgotten for want of room.")

# Router: what pools are sized by

DESIRED_WORKERS = _gauge("llm_desired_workers", "Workers that a pool should have.", "pool")
SLO_PRESSURE = _gauge(
    "llm_slo_pressure", "P90 of its target: first tokens, gaps; 2 at most, smoothed.", "pool"
)
SCALING_ARRIVING = _gauge(
    "llm_scaling_arriving_tokens_per_second", "Prompt tokens that come in, of a minute."
)
SCALING_BACKLOG = _gauge("llm_scaling_backlog_tokens", "Prompt tokens to be computed, known now.")
SCALING_HITS = _gauge("llm_scaling_hit_share", "Of a minute's prompt tokens, those cached.")
SCALING_PREFILL_RATE = _gauge(
    "llm_scaling_prefill_tokens_per_second", "What one worker computes while it computes."
)
SCALING_OUTPUT = _gauge("llm_scaling_output_tokens_per_second", "Tokens sampled, of a minute.")
SCALING_ROWS = _gauge("llm_scaling_rows", "Outputs that decode, or wait for a decode row.")
SCALING_ROWS_FIT = _gauge(
    "llm_scaling_rows_per_worker", "Rows that one worker may have at the pace of class normal."
)
SCALING_KV = _gauge("llm_scaling_kv_share", "Of the decode workers' blocks, those in use.")
EXPORT_BLOCKED = _counter(
    "llm_export_blocked_seconds_total", "Time that prompts were held back for want of decode rows."
)
SLOT_WAIT = _counter(
    "llm_slot_wait_seconds_total", "Waits of prompts whose KV is ready, for a decode row."
)
TTFT_ERROR = _histogram(
    "llm_ttft_predicted_error_ratio", "First tokens: time taken, of that expected.", buckets=_RATIOS
)
ROUTE_REASON = _counter("llm_route_reason_total", "Placements, by what decided.", "phase", "reason")

# Gateway

REQUEST_SECONDS = _histogram(
    "llm_request_seconds", "Outputs from placement to end.", "result", buckets=_SLOW_S
)
TTFT_SECONDS = _histogram("llm_ttft_seconds", "From placement to first token.", buckets=_SLOW_S)
INTER_TOKEN_SECONDS = _histogram(
    "llm_inter_token_seconds", "Between arrivals of tokens of one output.", buckets=_FAST_S
)
STREAM_STALL_SECONDS = _histogram(
    "llm_stream_stall_seconds", "Gaps of more than a second inside an output.", buckets=_SLOW_S
)
PHASE_SECONDS = _histogram(
    "llm_phase_seconds", "Phases of an output, first attempts only.", "phase", buckets=_SLOW_S
)
TIME_PER_OUTPUT_TOKEN_SECONDS = _histogram(
    "llm_time_per_output_token_seconds", "Mean of an output, after its first.", buckets=_FAST_S
)
TOKENS = _counter("llm_tokens_total", "As billed: input, cached, output, reasoning.", "type")
MIGRATIONS = _counter(
    "llm_migrations_total", "Outputs that needed another attempt, by how they ended.", "result"
)
REJECTS = _counter("llm_rejects_total", "Requests answered by an error.", "code", "reason")

# Gateway: HTTP

HTTP_REQUESTS = _counter(
    "llm_http_requests_total", "Requests that are over.", "route", "status", "model"
)
HTTP_INFLIGHT = _gauge("llm_http_inflight", "Requests under way.", "route")
ABORTS = _counter("llm_aborts_total", "Outputs given up before their end, by where.", "stage")
STREAM_ABORTS = _counter(
    "llm_stream_aborts_total", "Streams that did not end as they should.", "why"
)
KEEPALIVES = _counter("llm_keepalives_total", "Comments sent into silent streams.")
TOKENIZE_SECONDS = _histogram(
    "llm_tokenize_seconds", "Prompts to tokens and block hashes.", buckets=_FAST_S
)
TOOL_PARSE = _counter(
    "llm_tool_parse_total", "Calls read from outputs, and what was odd about them.", "result"
)
AUTH_FAILURES = _counter("llm_auth_failures_total", "Requests without a valid key.", "why")
RATELIMIT = _counter("llm_ratelimit_total", "Requests beyond a limit of their key.", "dimension")
IGNORED_PARAMS = _counter(
    "llm_ignored_params_total", "Fields of requests that changed nothing.", "name"
)

ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

Read = Callable[[], Iterable[Reading]]
Derive = Callable[[Iterable[Family]], Iterable[Family]]


class Metrics:
    """What one process shows. Its own registry: nothing is global."""

    def __init__(self, role: str) -> None:
        self.role = role
        self._derived: list[tuple[Derive, Mapping[str, str]]] = []
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

    def counter(self, metric: Metric) -> Counter:
        """A counter to increase."""
        assert metric.kind is Kind.COUNTER
        return Counter(metric.name, metric.help, metric.labels, registry=self._registry)

    def histogram(self, metric: Metric) -> Histogram:
        """A histogram to observe with."""
        assert metric.kind is Kind.HISTOGRAM
        return Histogram(
            metric.name,
            metric.help,
            metric.labels,
            registry=self._registry,
            buckets=metric.buckets,
        )

    def pull(self, read: Read) -> None:
        """Ask `read` whenever somebody asks us."""
        self._registry.register(_Pulled(read))

    def page(self) -> Page:
        """All of it, for an endpoint."""

        async def make(query: Query) -> bytes:
            return self.text()

        return Page(CONTENT_TYPE_LATEST, make)

    def show_also(self, make: Derive, labels: Mapping[str, str]) -> None:
        """Show what is made of all families, too, with these labels on every sample."""
        self._derived.append((make, labels))

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(_Shown(self._registry, self.role, self._derived))


class _Pulled(Collector):
    """Readings as families of a metric each."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        families: dict[Metric, GaugeMetricFamily | CounterMetricFamily] = {}
        for reading in self._read():
            metric = reading.metric
            if metric not in families:
                is_counter = metric.kind is Kind.COUNTER
                make = CounterMetricFamily if is_counter else GaugeMetricFamily
                families[metric] = make(metric.name, metric.help, labels=metric.labels)
            families[metric].add_metric(reading.labels, reading.value)
        yield from families.values()

    def describe(self) -> list[Family]:
        return []  # so that registering asks nobody


class _Shown(Collector):
    """A registry, and what is derived from it: all samples say the role, none when it was made."""

    def __init__(
        self,
        registry: CollectorRegistry,
        role: str,
        derived: Iterable[tuple[Derive, Mapping[str, str]]],
    ) -> None:
        self._registry = registry
        self._role = {"role": role}
        self._derived = derived

    def collect(self) -> Iterator[Family]:
        families = list(self._registry.collect())
        yield from (_labelled(family, self._role) for family in families)
        for make, labels in self._derived:
            for family in make(families):
                yield _labelled(family, {**self._role, **labels})


def _labelled(family: Family, labels: Mapping[str, str]) -> Family:
    shown = Family(family.name, family.documentation, family.type, family.unit)
    shown.samples = [
        sample._replace(labels={**labels, **sample.labels})
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return shown
