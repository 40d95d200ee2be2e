from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Have(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOTHING: _ClassVar[Have]
    TICKET: _ClassVar[Have]
    TOKENS: _ClassVar[Have]

class BlockTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE: _ClassVar[BlockTier]
    HOST: _ClassVar[BlockTier]
    DISK: _ClassVar[BlockTier]
NOTHING: Have
TICKET: Have
TOKENS: Have
DEVICE: BlockTier
HOST: BlockTier
DISK: BlockTier

class PlaceUp(_message.Message):
    __slots__ = ("lease", "want", "progress", "again", "leave")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    want: Want
    progress: Progress
    again: Again
    leave: Leave
    def __init__(self, lease: _Optional[int] = ..., want: _Optional[_Union[Want, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., again: _Optional[_Union[Again, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Want(_message.Message):
    __slots__ = ("request_id", "attempt", "hashes", "prompt_len", "max_new", "priority_class", "tenant", "deadline_ms", "resume", "fingerprint")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    hashes: bytes
    prompt_len: int
    max_new: int
    priority_class: str
    tenant: str
    deadline_ms: int
    resume: Resume
    fingerprint: bytes
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., hashes: _Optional[bytes] = ..., prompt_len: _Optional[int] = ..., max_new: _Optional[int] = ..., priority_class: _Optional[str] = ..., tenant: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("phase", "prefill_worker", "decode_worker", "tokens")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    prefill_worker: str
    decode_worker: str
    tokens: int
    def __init__(self, phase: _Optional[str] = ..., prefill_worker: _Optional[str] = ..., decode_worker: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "tokens", "last_chunk_started")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHUNK_STARTED_FIELD_NUMBER: _ClassVar[int]
    phase: str
    tokens: int
    last_chunk_started: bool
    def __init__(self, phase: _Optional[str] = ..., tokens: _Optional[int] = ..., last_chunk_started: _Optional[bool] = ...) -> None: ...

class Again(_message.Message):
    __slots__ = ("attempt", "failed_worker", "why", "have", "code", "kind", "partner")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FAILED_WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTNER_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    failed_worker: str
    why: str
    have: Have
    code: str
    kind: str
    partner: str
    def __init__(self, attempt: _Optional[int] = ..., failed_worker: _Optional[str] = ..., why: _Optional[str] = ..., have: _Optional[_Union[Have, str]] = ..., code: _Optional[str] = ..., kind: _Optional[str] = ..., partner: _Optional[str] = ...) -> None: ...

class PlaceDown(_message.Message):
    __slots__ = ("lease", "attempt", "queued", "prefill", "skip", "decode", "refused", "opened", "ended")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    lease: int
    attempt: int
    queued: Queued
    prefill: PrefillAt
    skip: SkipTo
    decode: DecodeAt
    refused: RefusedBy
    opened: Opened
    ended: Ended
    def __init__(self, lease: _Optional[int] = ..., attempt: _Optional[int] = ..., queued: _Optional[_Union[Queued, _Mapping]] = ..., prefill: _Optional[_Union[PrefillAt, _Mapping]] = ..., skip: _Optional[_Union[SkipTo, _Mapping]] = ..., decode: _Optional[_Union[DecodeAt, _Mapping]] = ..., refused: _Optional[_Union[RefusedBy, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ended(_message.Message):
    __slots__ = ("kind", "code", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    code: str
    message: str
    def __init__(self, kind: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Rank(_message.Message):
    __slots__ = ("worker_id", "address", "incarnation", "dp_rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    incarnation: int
    dp_rank: int
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., dp_rank: _Optional[int] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("predicted_ms", "ahead")
    PREDICTED_MS_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    predicted_ms: int
    ahead: int
    def __init__(self, predicted_ms: _Optional[int] = ..., ahead: _Optional[int] = ...) -> None: ...

class PrefillAt(_message.Message):
    __slots__ = ("rank", "reasons")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    rank: Rank
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[_Union[Rank, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class SkipTo(_message.Message):
    __slots__ = ("rank", "reasons")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    rank: Rank
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[_Union[Rank, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class DecodeAt(_message.Message):
    __slots__ = ("rank", "reasons")
    RANK_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    rank: Rank
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[_Union[Rank, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class RefusedBy(_message.Message):
    __slots__ = ("code", "message", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ReportUp(_message.Message):
    __slots__ = ("join", "load", "blocks")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    join: Join
    load: Load
    blocks: BlockChanges
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., blocks: _Optional[_Union[BlockChanges, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("member_id", "role", "address", "incarnation", "namespace", "layout_hash", "model", "max_model_len", "block_tokens", "num_blocks", "num_slots", "pid", "http_address", "metrics_address", "keep_tokens", "is_deterministic")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_HASH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    role: str
    address: str
    incarnation: int
    namespace: bytes
    layout_hash: bytes
    model: str
    max_model_len: int
    block_tokens: int
    num_blocks: int
    num_slots: int
    pid: int
    http_address: str
    metrics_address: str
    keep_tokens: int
    is_deterministic: bool
    def __init__(self, member_id: _Optional[str] = ..., role: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ..., namespace: _Optional[bytes] = ..., layout_hash: _Optional[bytes] = ..., model: _Optional[str] = ..., max_model_len: _Optional[int] = ..., block_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_slots: _Optional[int] = ..., pid: _Optional[int] = ..., http_address: _Optional[str] = ..., metrics_address: _Optional[str] = ..., keep_tokens: _Optional[int] = ..., is_deterministic: _Optional[bool] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "waiting", "free_blocks", "free_slots", "tickets", "reservations", "pulls", "sessions", "streams", "tokens_total", "draining", "cached_blocks", "swapped", "preparing", "query_tokens_total", "hit_tokens_total", "preemptions_total", "busy_us_total", "steps_total", "prompt_rows_total", "prompt_pairs_total", "decode_rows_total", "decode_context_total", "brought_tokens_total", "loads_total", "load_us_total")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_FIELD_NUMBER: _ClassVar[int]
    PREPARING_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ROWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PAIRS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DECODE_CONTEXT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BROUGHT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOADS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOAD_US_TOTAL_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    free_blocks: int
    free_slots: int
    tickets: int
    reservations: int
    pulls: int
    sessions: int
    streams: int
    tokens_total: int
    draining: bool
    cached_blocks: int
    swapped: int
    preparing: int
    query_tokens_total: int
    hit_tokens_total: int
    preemptions_total: int
    busy_us_total: int
    steps_total: int
    prompt_rows_total: int
    prompt_pairs_total: int
    decode_rows_total: int
    decode_context_total: int
    brought_tokens_total: int
    loads_total: int
    load_us_total: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., free_blocks: _Optional[int] = ..., free_slots: _Optional[int] = ..., tickets: _Optional[int] = ..., reservations: _Optional[int] = ..., pulls: _Optional[int] = ..., sessions: _Optional[int] = ..., streams: _Optional[int] = ..., tokens_total: _Optional[int] = ..., draining: _Optional[bool] = ..., cached_blocks: _Optional[int] = ..., swapped: _Optional[int] = ..., preparing: _Optional[int] = ..., query_tokens_total: _Optional[int] = ..., hit_tokens_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., busy_us_total: _Optional[int] = ..., steps_total: _Optional[int] = ..., prompt_rows_total: _Optional[int] = ..., prompt_pairs_total: _Optional[int] = ..., decode_rows_total: _Optional[int] = ..., decode_context_total: _Optional[int] = ..., brought_tokens_total: _Optional[int] = ..., loads_total: _Optional[int] = ..., load_us_total: _Optional[int] = ...) -> None: ...

class BlockChanges(_message.Message):
    __slots__ = ("first_seq", "hashes", "stored", "tier", "is_snapshot", "is_first", "is_last")
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    IS_FIRST_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    first_seq: int
    hashes: bytes
    stored: bytes
    tier: BlockTier
    is_snapshot: bool
    is_first: bool
    is_last: bool
    def __init__(self, first_seq: _Optional[int] = ..., hashes: _Optional[bytes] = ..., stored: _Optional[bytes] = ..., tier: _Optional[_Union[BlockTier, str]] = ..., is_snapshot: _Optional[bool] = ..., is_first: _Optional[bool] = ..., is_last: _Optional[bool] = ...) -> None: ...

class ReportDown(_message.Message):
    __slots__ = ("fleet", "missing_from", "drain")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    MISSING_FROM_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    fleet: Fleet
    missing_from: int
    drain: Drain
    def __init__(self, fleet: _Optional[_Union[Fleet, _Mapping]] = ..., missing_from: _Optional[int] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("on", "limit_ms")
    ON_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    on: bool
    limit_ms: int
    def __init__(self, on: _Optional[bool] = ..., limit_ms: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("join", "load", "ready", "not_ready_reason", "leases", "silent_ms")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_REASON_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    join: Join
    load: Load
    ready: bool
    not_ready_reason: str
    leases: int
    silent_ms: int
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., ready: _Optional[bool] = ..., not_ready_reason: _Optional[str] = ..., leases: _Optional[int] = ..., silent_ms: _Optional[int] = ...) -> None: ...

class Fleet(_message.Message):
    __slots__ = ("members", "ready", "reasons", "queued", "leases", "model", "namespace", "max_model_len", "block_tokens", "policy", "desired", "decisions", "router_id", "router_life", "peers", "stale_peers")
    class DesiredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DESIRED_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTER_LIFE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    STALE_PEERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    ready: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    queued: int
    leases: int
    model: str
    namespace: bytes
    max_model_len: int
    block_tokens: int
    policy: str
    desired: _containers.ScalarMap[str, int]
    decisions: _containers.RepeatedCompositeFieldContainer[Decided]
    router_id: str
    router_life: int
    peers: int
    stale_peers: int
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., ready: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ..., queued: _Optional[int] = ..., leases: _Optional[int] = ..., model: _Optional[str] = ..., namespace: _Optional[bytes] = ..., max_model_len: _Optional[int] = ..., block_tokens: _Optional[int] = ..., policy: _Optional[str] = ..., desired: _Optional[_Mapping[str, int]] = ..., decisions: _Optional[_Iterable[_Union[Decided, _Mapping]]] = ..., router_id: _Optional[str] = ..., router_life: _Optional[int] = ..., peers: _Optional[int] = ..., stale_peers: _Optional[int] = ...) -> None: ...

class Decided(_message.Message):
    __slots__ = ("request_id", "phase", "worker", "reasons", "age_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    phase: str
    worker: str
    reasons: _containers.RepeatedScalarFieldContainer[str]
    age_ms: int
    def __init__(self, request_id: _Optional[str] = ..., phase: _Optional[str] = ..., worker: _Optional[str] = ..., reasons: _Optional[_Iterable[str]] = ..., age_ms: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetWatch(_message.Message):
    __slots__ = ("period_ms",)
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    period_ms: int
    def __init__(self, period_ms: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("member_id", "drain")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    drain: Drain
    def __init__(self, member_id: _Optional[str] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class ShareRequest(_message.Message):
    __slots__ = ("router_life",)
    ROUTER_LIFE_FIELD_NUMBER: _ClassVar[int]
    router_life: int
    def __init__(self, router_life: _Optional[int] = ...) -> None: ...

class LedgerShare(_message.Message):
    __slots__ = ("router_life", "carried", "pending", "expected", "blocked")
    ROUTER_LIFE_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    router_life: int
    carried: _containers.RepeatedCompositeFieldContainer[CarriedWork]
    pending: _containers.RepeatedCompositeFieldContainer[PendingRows]
    expected: _containers.RepeatedCompositeFieldContainer[HitsExpected]
    blocked: _containers.RepeatedCompositeFieldContainer[BlockedPrompt]
    def __init__(self, router_life: _Optional[int] = ..., carried: _Optional[_Iterable[_Union[CarriedWork, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingRows, _Mapping]]] = ..., expected: _Optional[_Iterable[_Union[HitsExpected, _Mapping]]] = ..., blocked: _Optional[_Iterable[_Union[BlockedPrompt, _Mapping]]] = ...) -> None: ...

class BlockedPrompt(_message.Message):
    __slots__ = ("fingerprint", "left_ms")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    left_ms: int
    def __init__(self, fingerprint: _Optional[bytes] = ..., left_ms: _Optional[int] = ...) -> None: ...

class CarriedWork(_message.Message):
    __slots__ = ("worker_id", "prompts", "prompt_tokens", "work_us", "held", "rows", "context", "blocks")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORK_US_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    prompts: int
    prompt_tokens: int
    work_us: int
    held: int
    rows: int
    context: int
    blocks: int
    def __init__(self, worker_id: _Optional[str] = ..., prompts: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., work_us: _Optional[int] = ..., held: _Optional[int] = ..., rows: _Optional[int] = ..., context: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class PendingRows(_message.Message):
    __slots__ = ("namespace", "rows", "blocks")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    rows: int
    blocks: int
    def __init__(self, namespace: _Optional[bytes] = ..., rows: _Optional[int] = ..., blocks: _Optional[int] = ...) -> None: ...

class HitsExpected(_message.Message):
    __slots__ = ("worker_id", "prompts", "tokens")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    prompts: int
    tokens: int
    def __init__(self, worker_id: _Optional[str] = ..., prompts: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...
