"""The values that travel to and from a router."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from diptych.core.ids import BlockHash, Incarnation, Rank, WorkerId
from diptych.core.phases import Phase, Role, WorkerState

ANY_LIFE = Incarnation(0)
SHOWN_DECISIONS = 10  # the newest, in a fleet that is asked for


class Have(IntEnum):
    """What a failed attempt left behind."""

    NOTHING = 0
    TICKET = 1  # the prompt's KV still waits at prefill: only a decode worker is needed
    TOKENS = 2  # some output was sent; it will be forced


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a running request stands, told to a router that has not seen it before."""

    phase: Phase
    prefill_worker: WorkerId | None = None
    decode_worker: WorkerId | None = None
    tokens: int = 0  # sent to the client so far


@dataclass(frozen=True, slots=True)
class Want:
    """Opens a lease. `deadline_s` from now: how long the request may wait in the queue."""

    request_id: str
    prompt_len: int
    max_new: int
    deadline_s: float
    attempt: int = 1
    hashes: tuple[BlockHash, ...] = ()
    priority_class: str = ""
    tenant: str = ""
    resume: Resume | None = None
    fingerprint: bytes = b""  # of the whole prompt; equal prompts of a tenant have equal ones

    @property
    def capacity(self) -> int:
        """Positions that may be written."""
        return self.prompt_len + self.max_new - 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the current attempt is. Prefill: positions computed; decode: tokens sent; handoff:
    the first token is, and came from prefill."""

    phase: Phase
    tokens: int
    last_chunk_started: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Opens attempt `attempt` after `failed_worker` ("" = nobody's fault) let the last one down.

    With a `partner` (the prompt's holder) the fault is between the two, and neither's own.
    """

    attempt: int
    failed_worker: str
    why: str
    have: Have
    code: str = ""  # core/errors.py's, like `kind`: tells a death from a worker that is only busy
    kind: str = ""
    partner: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `ahead` requests are before it."""

    predicted_s: float
    ahead: int
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class PrefillAt:
    """Compute the prompt there; a decode worker follows once the last chunk has started."""

    rank: Rank
    reasons: tuple[str, ...] = ()
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class SkipTo:
    """Compute prompt and output there (hybrid)."""

    rank: Rank
    reasons: tuple[str, ...] = ()
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class DecodeAt:
    """Go on decoding there."""

    rank: Rank
    reasons: tuple[str, ...] = ()
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class RefusedBy:
    """No, and why: `code` is one of core/errors.py's, e.g. no_capacity or queue_timeout."""

    code: str
    message: str
    retry_after_s: float
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Opened:
    """The lease is registered, and there is nothing to say yet."""

    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is over: a message of the client's made no sense, or a fault of the router."""

    kind: str  # of core.errors
    code: str
    message: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Leave:
    """The client needs the lease no more."""


Placement = Queued | PrefillAt | SkipTo | DecodeAt
Answer = Placement | RefusedBy


@dataclass(frozen=True, slots=True)
class Join:
    """Who reports. `address` is where peers reach its gRPC server, "" for a gateway."""

    member_id: str
    role: Role
    address: str = ""
    incarnation: Incarnation = ANY_LIFE
    namespace: bytes = b""
    layout_hash: bytes = b""
    model: str = ""
    max_model_len: int = 0
    block_tokens: int = 0
    num_blocks: int = 0
    num_slots: int = 0
    pid: int = 0
    http_address: str = ""  # a gateway's public address
    metrics_address: str = ""  # of /metrics, a worker's /trace, too; "" = not served
    keep_tokens: int = 0  # the last tokens of a prompt so many are computed whatever is cached
    is_deterministic: bool = False  # one prompt, one answer, by all workers of the namespace


@dataclass(frozen=True, slots=True)
class Load:
    """What a member carries now; fields that do not concern its role stay 0."""

    running: int = 0
    waiting: int = 0
    preparing: int = 0  # known, and not in the queue yet
    swapped: int = 0  # of those waiting: their KV lies in host memory
    free_blocks: int = 0
    cached_blocks: int = 0  # of the free ones: the prefix cache would find them
    free_slots: int = 0
    tickets: int = 0
    reservations: int = 0
    pulls: int = 0
    sessions: int = 0
    streams: int = 0
    tokens_total: int = 0
    query_tokens_total: int = 0  # of prompts looked up in the prefix cache
    hit_tokens_total: int = 0  # of them: not computed again
    brought_tokens_total: int = 0  # of these: by the cache tier, not of its own pages
    loads_total: int = 0  # that brought them
    load_us_total: int = 0
    preemptions_total: int = 0
    busy_us_total: int = 0  # in steps that computed something
    steps_total: int = 0
    prompt_rows_total: int = 0
    prompt_pairs_total: int = 0  # of those rows, each with every position up to its own
    decode_rows_total: int = 0
    decode_context_total: int = 0  # positions up to those rows
    draining: bool = False


class BlockTier(IntEnum):
    """Where a member holds a block."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True, slots=True)
class BlockChanges:
    """Blocks that a member's cache took in or gave up, one number each from `first_seq` on.

    A snapshot is all that it holds, in as many messages as it needs; `first_seq` is then the number
    of the change that will follow it, and `stored` is empty: all are.
    """

    first_seq: int
    hashes: tuple[BlockHash, ...] = ()
    stored: tuple[bool, ...] = ()  # one for each: taken in, or given up
    tier: BlockTier = BlockTier.DEVICE
    is_snapshot: bool = False
    is_first: bool = False  # of a snapshot's messages
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the fleet, as the router sees it."""

    join: Join
    load: Load = field(default_factory=Load)
    ready: bool = False
    not_ready_reason: str = ""
    leases: int = 0  # placed requests, by the router's own ledger
    silent_s: float = 0.0  # since its last report

    @property
    def state(self) -> WorkerState:
        """As far as a router can tell: it knows nobody who is starting."""
        if self.load.draining:
            return WorkerState.DRAINED if self.is_idle else WorkerState.DRAINING
        return WorkerState.READY if self.ready else WorkerState.WARMING

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing of any request, by its own word and the router's ledger."""
        load = self.load
        here = load.running + load.waiting + load.preparing + load.tickets + load.streams
        return not (self.leases + here + load.reservations + load.pulls)


@dataclass(frozen=True, slots=True)
class Drain:
    """To a worker: be given no new work, or some again. After `limit_s` it hands back the rest."""

    is_on: bool
    limit_s: float = 0.0  # 0 = it may take as long as it takes


@dataclass(frozen=True, slots=True)
class Decided:
    """A placement, for people to read."""

    request_id: str
    phase: Phase
    worker: str
    reasons: tuple[str, ...] = ()
    age_s: float = 0.0

    def aged(self, age_s: float) -> "Decided":
        return replace(self, age_s=age_s)


@dataclass(frozen=True, slots=True)
class RouterView:
    """One router, as who asked several of them saw it."""

    address: str
    router_id: str = ""
    error: str = ""  # why it did not answer; "": it did
    queued: int = 0
    leases: int = 0
    peers: int = 0  # other routers that it knows of
    stale_peers: int = 0  # of those, not heard lately


@dataclass(frozen=True, slots=True)
class Fleet:
    """All members, and whether a request can be served by them."""

    members: tuple[Member, ...] = ()
    ready: bool = False  # a complete path exists
    reasons: tuple[str, ...] = ()  # why not
    queued: int = 0
    leases: int = 0
    model: str = ""
    namespace: bytes = b""
    max_model_len: int = 0
    block_tokens: int = 0
    router_id: str = ""  # who says so
    router_life: Incarnation = ANY_LIFE
    peers: int = 0  # other routers that it knows of
    stale_peers: int = 0  # of those, not heard lately
    routers: tuple[RouterView, ...] = ()  # of a view that was put together; never on the wire
    policy: str = ""  # by what is decided: `cost`, or `own_ledger` while no worker is heard
    desired: Mapping[str, int] = field(default_factory=dict)  # workers by role, where known
    decisions: tuple[Decided, ...] = ()  # the newest, for who watches
