"""Which worker: least loaded by the router's own ledger, equal namespaces only, with reasons.

Late binding: a prompt is given away only while its worker has little queued and a decode row will
be free for it, so that deadlines and retries act on the whole queue. Knows no clock, no sockets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from diptych.core.ids import Rank
from diptych.core.phases import Role
from diptych.router.ledger import Pending

LITTLE_QUEUED_TOKENS = 1024  # two steps of the default size
ROW_TOKENS = 16  # a decoding row slows a hybrid's prompts like this many more prompt tokens


class Why(StrEnum):
    """Why there is no choice now."""

    BUSY = auto()  # every worker that could serve has its hands full
    FAILED = auto()  # those that did not fail just now are busy, or there are none
    NOBODY = auto()  # no such worker is a member


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live worker: what it carries (ledger corrected by reports) and what it has left."""

    rank: Rank
    role: Role
    namespace: bytes
    block_tokens: int
    num_slots: int  # 0 = not said: no limit
    num_blocks: int  # likewise
    prompts: int = 0  # being computed or queued there
    foreign_prompts: int = 0  # of those, placed by others: their length is not known
    prompt_tokens: int = 0  # of those, not computed yet
    rows: int = 0  # sequences decoding or reserved
    blocks: int = 0  # pages that those may fill
    free_slots: int = 0  # by its last report, less what it was given since
    free_blocks: int = 0
    last_assigned: int = 0
    has_failed: bool = False  # this request, or any in the last seconds
    is_back: bool = False  # it gave a sign of life since

    @property
    def decode_slots_left(self) -> int:
        return max(0, self.num_slots - self.rows)


@dataclass(frozen=True, slots=True)
class Choice:
    """The worker, and the reasons a person may read."""

    rank: Rank
    role: Role
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody now, and why."""

    why: Why
    message: str


@dataclass(frozen=True, slots=True)
class Path:
    """What the fleet can serve: the namespace, or why there is none."""

    namespace: bytes | None
    reasons: tuple[str, ...] = ()


def choose_prefill(
    candidates: Sequence[Candidate],
    prompt_len: int,
    max_new: int,
    pending: Callable[[bytes], Pending],
) -> Choice | Wait:
    """A worker for a prompt: prefill (a decode worker follows) or hybrid (does both).

    `pending(namespace)` is what prompts given away before will ask of decode workers.
    """
    decoders = [c for c in candidates if c.role in (Role.DECODE, Role.HYBRID)]
    paired = {c.namespace for c in decoders}
    capacity = prompt_len + max_new - 1
    able = [
        c
        for c in candidates
        if c.role is Role.HYBRID or (c.role is Role.PREFILL and c.namespace in paired)
    ]
    if not able:
        return Wait(Why.NOBODY, "; ".join(find_path(candidates).reasons) or "no prefill worker")

    def has_room(c: Candidate) -> bool:
        if c.role is Role.HYBRID:
            return _has_row(c, capacity)
        partners = [d for d in decoders if d.namespace == c.namespace]
        return _has_prompt_room(c, prompt_len) and _will_have_row(
            partners, capacity, pending(c.namespace)
        )

    def tokens_in_flight(c: Candidate) -> int:
        if c.role is Role.HYBRID:
            return c.prompt_tokens + c.rows * ROW_TOKENS
        return c.prompt_tokens + c.foreign_prompts * prompt_len  # taken to be like this one

    return _least(
        able,
        has_room,
        lambda c: (tokens_in_flight(c), c.prompts),
        lambda c: f"{tokens_in_flight(c)} tokens in flight, the fewest",
    )


def choose_decode(
    candidates: Sequence[Candidate], namespace: bytes, capacity: int
) -> Choice | Wait:
    """A worker that can take over a prompt computed under `namespace` and run to `capacity`."""
    able = [
        c for c in candidates if c.role in (Role.DECODE, Role.HYBRID) and c.namespace == namespace
    ]
    if not able:
        return Wait(Why.NOBODY, "no decode worker for this model, layout and numerics")
    return _least(
        able,
        lambda c: _has_row(c, capacity),
        lambda c: (c.rows, c.prompt_tokens),
        lambda c: f"{c.rows} rows, the fewest",
    )


def find_path(candidates: Sequence[Candidate]) -> Path:
    """The namespace that a request can be served in from end to end; most workers wins."""
    prefill = [c.namespace for c in candidates if c.role is Role.PREFILL]
    decode = [c.namespace for c in candidates if c.role is Role.DECODE]
    hybrid = [c.namespace for c in candidates if c.role is Role.HYBRID]
    complete = set(hybrid) | (set(prefill) & set(decode))
    if complete:
        everyone = prefill + decode + hybrid
        return Path(max(sorted(complete), key=everyone.count))
    reasons = []
    if not prefill:
        reasons.append("no prefill worker is ready")
    if not decode:
        reasons.append("no decode worker is ready")
    if prefill and decode:
        reasons.append(
            "prefill and decode workers may not be paired: other weights, layout or numerics"
        )
    return Path(None, tuple(reasons))


def _has_prompt_room(c: Candidate, prompt_len: int) -> bool:
    if c.prompts and c.prompt_tokens + prompt_len > LITTLE_QUEUED_TOKENS:
        return False
    if c.num_slots and c.free_slots <= 0:
        return False
    is_alone = c.prompts == 0 and c.free_slots == c.num_slots  # it will never have more room
    needed = -(-prompt_len // max(1, c.block_tokens))
    return not c.num_blocks or is_alone or needed <= c.free_blocks


def _will_have_row(decoders: Sequence[Candidate], capacity: int, pending: Pending) -> bool:
    if any(d.num_slots == 0 or d.num_blocks == 0 for d in decoders):
        return True
    if pending.rows == 0 and any(d.rows == 0 for d in decoders):
        return True  # however large: it will never have more room
    needed = -(-capacity // max(1, decoders[0].block_tokens))
    slots_left = sum(d.decode_slots_left for d in decoders)
    blocks_left = sum(max(0, d.num_blocks - d.blocks) for d in decoders)
    return pending.rows < slots_left and pending.blocks + needed <= blocks_left


def _has_row(c: Candidate, capacity: int) -> bool:
    if c.num_slots and c.decode_slots_left == 0:
        return False
    needed = -(-capacity // max(1, c.block_tokens))
    return not c.num_blocks or c.rows == 0 or c.blocks + needed <= c.num_blocks


def _least(
    able: Sequence[Candidate],
    has_room: Callable[[Candidate], bool],
    load: Callable[[Candidate], tuple[int, int]],
    explain: Callable[[Candidate], str],
) -> Choice | Wait:
    trusted = [c for c in able if not c.has_failed]
    avoided = sorted(c.rank.worker_id for c in able if c.has_failed)
    pool = trusted or [c for c in able if c.is_back]
    if not pool:
        return Wait(Why.FAILED, f"{', '.join(avoided)} failed and gave no sign of life since")
    free = [c for c in pool if has_room(c)]
    if not free:
        why = Why.FAILED if avoided and trusted else Why.BUSY
        return Wait(why, f"{len(pool)} of {len(able)} workers are fit, and busy")
    best = min(free, key=lambda c: (*load(c), c.last_assigned))
    reasons = [explain(best), f"{len(free)} of {len(able)} workers had room"]
    if avoided and trusted:
        reasons.append(f"avoided {', '.join(avoided)}: failed just now")
    return Choice(best.rank, best.role, tuple(reasons))
