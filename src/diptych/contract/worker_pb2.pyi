from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAPSED: _ClassVar[Verdict]
    VALID: _ClassVar[Verdict]
LAPSED: Verdict
VALID: Verdict

class RequestKey(_message.Message):
    __slots__ = ("request_id", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class SessionUp(_message.Message):
    __slots__ = ("hello", "prefill", "reserve", "start", "cancel", "traceparent")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    prefill: Prefill
    reserve: Reserve
    start: Start
    cancel: Cancel
    traceparent: str
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., prefill: _Optional[_Union[Prefill, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("gateway_id", "incarnation")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    incarnation: int
    def __init__(self, gateway_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "stop_token_ids", "biased_ids", "biases", "repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens", "bad_words", "allowed_token_ids", "logprobs", "prompt_logprobs", "thinking_budget", "thinking_ends")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASED_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    THINKING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    THINKING_ENDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    ignore_eos: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    biased_ids: bytes
    biases: _containers.RepeatedScalarFieldContainer[float]
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    bad_words: _containers.RepeatedScalarFieldContainer[bytes]
    allowed_token_ids: bytes
    logprobs: int
    prompt_logprobs: int
    thinking_budget: int
    thinking_ends: bytes
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., biased_ids: _Optional[bytes] = ..., biases: _Optional[_Iterable[float]] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., bad_words: _Optional[_Iterable[bytes]] = ..., allowed_token_ids: _Optional[bytes] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., thinking_budget: _Optional[int] = ..., thinking_ends: _Optional[bytes] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("kind", "source", "whitespace", "param", "after", "is_closed")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    IS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    source: str
    whitespace: str
    param: str
    after: str
    is_closed: bool
    def __init__(self, kind: _Optional[str] = ..., source: _Optional[str] = ..., whitespace: _Optional[str] = ..., param: _Optional[str] = ..., after: _Optional[str] = ..., is_closed: _Optional[bool] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("key", "prompt", "forced", "prompt_len", "max_new", "sampling", "scope", "priority", "tenant", "constraint", "retention")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    prompt: bytes
    forced: bytes
    prompt_len: int
    max_new: int
    sampling: Sampling
    scope: bytes
    priority: str
    tenant: str
    constraint: Constraint
    retention: str
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., prompt: _Optional[bytes] = ..., forced: _Optional[bytes] = ..., prompt_len: _Optional[int] = ..., max_new: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., scope: _Optional[bytes] = ..., priority: _Optional[str] = ..., tenant: _Optional[str] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., retention: _Optional[str] = ...) -> None: ...

class Prefill(_message.Message):
    __slots__ = ("generation", "deadline_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    deadline_ms: int
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("key", "capacity", "deadline_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    capacity: int
    deadline_ms: int
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., capacity: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("generation", "ticket", "deadline_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    ticket: bytes
    deadline_ms: int
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ..., ticket: _Optional[bytes] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "up_to_attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    UP_TO_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    up_to_attempt: int
    def __init__(self, request_id: _Optional[str] = ..., up_to_attempt: _Optional[int] = ...) -> None: ...

class SessionDown(_message.Message):
    __slots__ = ("welcome", "accepted", "progress", "reserved", "busy", "failed", "step", "beat")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    accepted: Accepted
    progress: ChunkDone
    reserved: Reserved
    busy: Busy
    failed: Failed
    step: StepFrame
    beat: Beat
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., progress: _Optional[_Union[ChunkDone, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., busy: _Optional[_Union[Busy, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., step: _Optional[_Union[StepFrame, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker_id", "incarnation", "namespace")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    namespace: bytes
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., namespace: _Optional[bytes] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("key", "ticket")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    ticket: bytes
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class ChunkDone(_message.Message):
    __slots__ = ("key", "tokens", "last_chunk_started")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_CHUNK_STARTED_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    tokens: int
    last_chunk_started: bool
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., tokens: _Optional[int] = ..., last_chunk_started: _Optional[bool] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ...) -> None: ...

class Busy(_message.Message):
    __slots__ = ("key", "retry_after_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    retry_after_ms: int
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("key", "code", "message", "retryable", "ticket_is_gone", "kind", "param")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    TICKET_IS_GONE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    code: str
    message: str
    retryable: bool
    ticket_is_gone: bool
    kind: str
    param: str
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., ticket_is_gone: _Optional[bool] = ..., kind: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class StepFrame(_message.Message):
    __slots__ = ("step", "rows")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    step: int
    rows: _containers.RepeatedCompositeFieldContainer[StepRow]
    def __init__(self, step: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("key", "token_ids", "finish", "cached_tokens", "stop_token", "logprobs", "prompt_logprobs", "cached_memory", "cached_disk")
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CACHED_DISK_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    token_ids: bytes
    finish: str
    cached_tokens: int
    stop_token: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    cached_memory: int
    cached_disk: int
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., token_ids: _Optional[bytes] = ..., finish: _Optional[str] = ..., cached_tokens: _Optional[int] = ..., stop_token: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., cached_memory: _Optional[int] = ..., cached_disk: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("logprob", "rank", "top_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    rank: int
    top_ids: bytes
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_ids: _Optional[bytes] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("engine_idle_ms",)
    ENGINE_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    engine_idle_ms: int
    def __init__(self, engine_idle_ms: _Optional[int] = ...) -> None: ...

class TicketRequest(_message.Message):
    __slots__ = ("ticket", "worker_id", "why")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    worker_id: str
    why: str
    def __init__(self, ticket: _Optional[bytes] = ..., worker_id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class TicketReply(_message.Message):
    __slots__ = ("verdict", "lease_ms")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    lease_ms: int
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class BlocksUp(_message.Message):
    __slots__ = ("want", "credit_bytes")
    WANT_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    want: WantBlocks
    credit_bytes: int
    def __init__(self, want: _Optional[_Union[WantBlocks, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class WantBlocks(_message.Message):
    __slots__ = ("ticket", "worker_id", "hashes")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    worker_id: str
    hashes: bytes
    def __init__(self, ticket: _Optional[bytes] = ..., worker_id: _Optional[str] = ..., hashes: _Optional[bytes] = ...) -> None: ...
