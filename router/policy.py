"""Which worker: the fewest expected milliseconds until the user sees the effect, with reasons.

    prefill(w) = queue + min over what may be fetched of [ T + C ] + those held up · C
    decode(d)  = F(missing) + L · gap(n + 1) + n · min(L, rest) · what one row more adds to the gap

All that have room are scored. Of those within `max(10 %, 5 ms)` of the best (twice that while
another router is not heard) two are drawn, and the one with less work is taken; if nobody holds a
block of the prompt, its first block picks among them, so that equal beginnings meet. Late binding:
a prompt is given away only while its worker has little queued and a decode row will be free for it,
so that deadlines, priorities and retries act on the whole queue. Knows no clock, no sockets; the
draw is an argument.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from math import inf

from diptych.core.ids import Rank
from diptych.core.phases import Role
from diptych.router.costs import DEFAULTS, EXPECTED_NEW_LIMIT, Costs
from diptych.router.ledger import Pending

QUEUED_MS = 100.0  # a worker with less than this queued may be given another prompt
NEAR_RATIO = 0.10  # scores that differ by less are equal to us
NEAR_MS = 5.0
STALE_RATIO = 0.20  # when reports or another router's share are missing: nearer to even spreading
STALE_MS = 10.0
KINDS = ("only", "cached", "best", "drawn", "affinity")  # why one of those with room was taken
SKIP_TOKENS = 256  # a decode worker that holds all but so many computes the rest itself


class Why(StrEnum):
    """Why there is no choice now."""

    BUSY = auto()  # every worker that could serve has its hands full
    ROWS = auto()  # a prompt's worker has room, but no decode row will be free behind it
    FAILED = auto()  # those that did not fail just now are busy, or there are none
    WORTH_IT = auto()  # somebody has room, but the busy one will be done sooner
    NOBODY = auto()  # no such worker is a member


@dataclass(frozen=True, slots=True)
class Ask:
    """What is known of a request when it is placed."""

    prompt_len: int
    max_new: int
    expected_new: int = 128  # of its tenant and class
    gap_target_ms: float = inf  # of its class: rows are not added beyond it
    first_block: int = 0  # 64 bits of its hash; 0: none
    shared: int = 0  # tokens of the prompt that the cache tier holds
    on_disk: int = 0  # of those, taken to be the last: heads stay in memory longest
    held: Mapping[str, float] = field(
        default_factory=dict
    )  # tokens of the prompt by worker, as the index has it
    waiting: int = 0  # prompts in the router's queue
    promised_ms: Mapping[str, float] = field(default_factory=dict)  # work of those that wait for it
    may_wait: bool = True  # for a busy worker that will be done sooner than all with room
    holder: str = ""  # the prefill worker that holds the prompt's KV
    draw: int = 0  # 64 random bits
    is_blind: bool = False  # load reports are missing everywhere
    is_stale: bool = False  # another router was not heard lately

    @property
    def capacity(self) -> int:
        return self.prompt_len + self.max_new - 1

    def hit(self, c: "Candidate") -> float:
        """Tokens of the prompt that a worker would not compute again."""
        held = self.held.get(c.rank.worker_id, 0.0)
        if not held:
            return 0.0
        grain = max(1, c.block_tokens)
        return min(held, max(0, self.prompt_len - c.keep) // grain * grain)


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
    foreign_prompts: int = 0  # of those, placed by strangers: their length is not known
    queue_ms: float = 0.0  # until those that we know are computed
    rows: int = 0  # sequences decoding or reserved
    context: int = 0  # positions that those attend to
    blocks: int = 0  # pages that those may fill
    free_slots: int = 0  # by its last report, less what it was given since
    free_blocks: int = 0
    keep: int = 1  # the last tokens of a prompt so many are computed whatever is held
    costs: Costs = DEFAULTS
    last_assigned: int = 0
    has_failed: bool = False  # this request, or any in the last seconds
    is_back: bool = False  # it gave a sign of life since
    bad_partners: tuple[str, ...] = ()  # workers with whom it cannot exchange KV now

    @property
    def decode_slots_left(self) -> int:
        return max(0, self.num_slots - self.rows)


@dataclass(frozen=True, slots=True)
class Score:
    """Expected milliseconds, and what they are made of."""

    queue_ms: float
    fetch_ms: float
    work_ms: float
    others_ms: float = 0.0  # what it costs those who are there
    hit: float = 0.0
    fetched: float = 0.0  # tokens that come from the tier, and are not computed either
    move_ms: float = 0.0  # bringing KV where the output is made: behind the first token

    @property
    def first_ms(self) -> float:
        """Until the first token of a prompt."""
        return self.queue_ms + self.fetch_ms + self.work_ms

    @property
    def total_ms(self) -> float:
        return self.first_ms + self.move_ms + self.others_ms


@dataclass(frozen=True, slots=True)
class Choice:
    """The worker, the reasons a person may read, and what was expected of it."""

    rank: Rank
    role: Role
    reasons: tuple[str, ...]
    expected_ms: float = 0.0
    work_ms: float = 0.0  # of it: computing the prompt
    hit: int = 0  # tokens that were taken to be cached
    first_ms: float = 0.0  # of it: until the first token
    kind: str = ""  # one word for what decided: KINDS


@dataclass(frozen=True, slots=True)
class Wait:
    """Nobody now, and why."""

    why: Why
    message: str
    worker: str = ""  # which is worth waiting for
    work_ms: float = 0.0  # that it would have to do


@dataclass(frozen=True, slots=True)
class Path:
    """What the fleet can serve: the namespace, or why there is none."""

    namespace: bytes | None
    reasons: tuple[str, ...] = ()


def choose_prefill(
    candidates: Sequence[Candidate], ask: Ask, pending: Callable[[bytes], Pending]
) -> Choice | Wait:
    """A worker for a prompt: prefill (a decode worker follows), or one that does both.

    `pending(namespace)` is what prompts given away before will ask of decode workers.
    """
    decoders = [c for c in candidates if c.role in (Role.DECODE, Role.HYBRID)]
    paired = {c.namespace for c in decoders}
    able = [
        c
        for c in candidates
        if c.role is Role.HYBRID or (c.role is Role.PREFILL and c.namespace in paired)
    ]
    if not able:
        return Wait(Why.NOBODY, "; ".join(find_path(candidates).reasons) or "no prefill worker")
    able = [c for c in able if _partners(c, decoders)] or able
    will_have_row = {
        namespace: _will_have_row(
            [d for d in decoders if d.namespace == namespace], ask.capacity, pending(namespace)
        )
        for namespace in paired
    }

    def has_room(c: Candidate) -> bool:
        if c.role is not Role.PREFILL:
            return _has_row(c, ask.capacity)
        follows = will_have_row[c.namespace]
        if follows and c.bad_partners and (partners := _partners(c, decoders)):
            follows = _will_have_row(partners, ask.capacity, pending(c.namespace))
        return _has_prompt_room(c, ask.prompt_len) and follows

    able += [c for c in decoders if c.role is Role.DECODE and _may_skip(c, ask, able)]
    crowd = (ask.waiting + sum(c.prompts for c in able)) / len(able)
    outcome = _choose(
        able,
        ask,
        has_room,
        lambda c: c.queue_ms < QUEUED_MS,
        lambda c: _prompt_score(c, ask, crowd),
        _explain_prompt,
    )
    is_short = not all(will_have_row.values())
    if is_short and isinstance(outcome, Wait) and outcome.why is Why.BUSY:
        for c in able:
            has_prompt_room = c.role is Role.PREFILL and _has_prompt_room(c, ask.prompt_len)
            if has_prompt_room and c.queue_ms < QUEUED_MS and not will_have_row[c.namespace]:
                return Wait(
                    Why.ROWS, f"{c.rank.worker_id} has room, but no decode row will be free"
                )
    return outcome


def choose_decode(candidates: Sequence[Candidate], namespace: bytes, ask: Ask) -> Choice | Wait:
    """A worker that can take over a prompt computed under `namespace` and run to its end."""
    able = [
        c for c in candidates if c.role in (Role.DECODE, Role.HYBRID) and c.namespace == namespace
    ]
    if not able:
        return Wait(Why.NOBODY, "no decode worker for this model, layout and numerics")
    able = [c for c in able if ask.holder not in c.bad_partners] or able

    def has_room(c: Candidate) -> bool:
        return _has_row(c, ask.capacity) and _keeps_pace(c, ask)

    return _choose(
        able, ask, has_room, lambda c: True, lambda c: _decode_score(c, ask), _explain_decode
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


# Scores


def _prompt_score(c: Candidate, ask: Ask, crowd: float) -> Score:
    """`crowd`: prompts for each worker now. A busy worker stays busy for a while, and as many will
    be held up by what this prompt takes; by an idle one nobody is."""
    hit = ask.hit(c)
    length = ask.prompt_len
    work_ms, fetch_ms = c.costs.prompt_ms(length - hit, length), 0.0
    more, fetched = min(float(ask.shared), float(length - 1)) - hit, 0.0
    if more > 0:
        in_memory = max(0.0, ask.shared - ask.on_disk - hit)
        fetching_ms = c.costs.loading_ms(more, max(0.0, more - in_memory))
        rest_ms = c.costs.prompt_ms(length - hit - more, length)
        if fetching_ms + rest_ms < work_ms:
            work_ms, fetch_ms, fetched = rest_ms, fetching_ms, more
    queue_ms = c.queue_ms + ask.promised_ms.get(c.rank.worker_id, 0.0)
    held_up = crowd if c.prompts else 0.0
    if c.foreign_prompts:  # taken to be like this one
        queue_ms += c.foreign_prompts * c.costs.prompt_ms(length, length)
    if c.role is Role.PREFILL:
        move_ms = c.costs.fetching_ms(length)  # the hand-over that the others spare
        return Score(queue_ms, fetch_ms, work_ms, held_up * work_ms, hit, fetched, move_ms)
    decoding = max(0, c.rows - c.prompts)
    return Score(queue_ms, fetch_ms, work_ms, (held_up + decoding) * work_ms, hit, fetched)


def _decode_score(c: Candidate, ask: Ask) -> Score:
    hit = min(ask.held.get(c.rank.worker_id, 0.0), float(ask.prompt_len))
    new = min(ask.expected_new, EXPECTED_NEW_LIMIT)
    gap_ms, more_ms = c.costs.gap_ms(c.rows + 1, c.context + ask.prompt_len), 0.0
    if c.rows:
        more_ms = gap_ms - c.costs.gap_ms(c.rows, c.context)
    others_ms = c.rows * new / 2 * more_ms  # on average the others are half through
    return Score(0.0, c.costs.fetching_ms(ask.prompt_len - hit), new * gap_ms, others_ms, hit)


def _explain_prompt(c: Candidate, ask: Ask, score: Score) -> str:
    computed = round(ask.prompt_len - score.hit - score.fetched)
    parts = [f"{score.queue_ms:.0f} queued"] if score.queue_ms >= 0.5 else []
    parts.append(f"{score.work_ms:.0f} for {computed} of {ask.prompt_len} tokens")
    if score.fetch_ms + score.move_ms >= 0.5:
        parts.append(f"{score.fetch_ms + score.move_ms:.0f} to move KV")
    if score.others_ms >= 0.5:
        parts.append(f"{score.others_ms:.0f} for those held up")
    return f"{score.total_ms:.0f} ms expected: {', '.join(parts)}"


def _explain_decode(c: Candidate, ask: Ask, score: Score) -> str:
    gap_ms = c.costs.gap_ms(c.rows + 1, c.context + ask.prompt_len)
    return f"{gap_ms:.0f} ms a token expected beside {c.rows} rows"


# Gates


def _partners(c: Candidate, decoders: Sequence[Candidate]) -> Sequence[Candidate]:
    """Who may take a prompt over from it; itself, if it needs nobody."""
    if c.role is not Role.PREFILL or not c.bad_partners:
        return (c,)
    bad = c.bad_partners
    return [d for d in decoders if d.namespace == c.namespace and d.rank.worker_id not in bad]


def _may_skip(c: Candidate, ask: Ask, prefill: Sequence[Candidate]) -> bool:
    """Whether a decode worker may compute a prompt that it holds nearly all of."""
    hit = ask.hit(c)
    has_peer = any(p.namespace == c.namespace for p in prefill)
    return has_peer and hit > 0 and ask.prompt_len - hit <= SKIP_TOKENS


def _has_prompt_room(c: Candidate, prompt_len: int) -> bool:
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


def _keeps_pace(c: Candidate, ask: Ask) -> bool:
    """Whether its rows would still be as fast as the class asks; if they ever can be."""
    if c.rows == 0 or c.costs.gap_ms(1, ask.prompt_len) > ask.gap_target_ms:
        return True
    return c.costs.gap_ms(c.rows + 1, c.context + ask.prompt_len) <= ask.gap_target_ms


# The choice


def _choose(
    able: Sequence[Candidate],
    ask: Ask,
    has_room: Callable[[Candidate], bool],
    takes: Callable[[Candidate], bool],
    score: Callable[[Candidate], Score],
    explain: Callable[[Candidate, Ask, Score], str],
) -> Choice | Wait:
    trusted = [c for c in able if not c.has_failed]
    avoided = sorted(c.rank.worker_id for c in able if c.has_failed)
    pool = trusted or [c for c in able if c.is_back]
    if not pool:
        return Wait(Why.FAILED, f"{', '.join(avoided)} failed and gave no sign of life since")
    scored = [(score(c), c) for c in pool if has_room(c)]
    if not scored:
        why = Why.FAILED if avoided and trusted else Why.BUSY
        return Wait(why, f"{len(pool)} of {len(able)} workers are fit, and busy")
    taking = [(s, c) for s, c in scored if takes(c)]
    if not taking:
        return Wait(Why.BUSY, f"all of {len(scored)} workers have {QUEUED_MS:.0f} ms to do")
    best, at = min(scored if ask.may_wait else taking, key=lambda pair: pair[0].total_ms)
    margin_ms = _margin_ms(best, ask)
    near = [(s, c) for s, c in taking if s.total_ms <= best.total_ms + margin_ms]
    if not near:
        name = at.rank.worker_id
        message = f"{name} is busy, and will still be done sooner: {explain(at, ask, best)}"
        return Wait(Why.WORTH_IT, message, name, best.work_ms)
    taken, chosen = _pick(near, ask)
    kind = _kind(len(scored), len(near), taken, ask)
    reasons = [explain(chosen, ask, taken)]
    if len(near) > 1:
        reasons.append(f"{len(near)} of {len(scored)} within {margin_ms:.0f} ms of the best")
    else:
        reasons.append(f"the best of {len(scored)} with room")
    if avoided and trusted:
        reasons.append(f"avoided {', '.join(avoided)}: failed just now")
    return Choice(
        chosen.rank,
        chosen.role,
        tuple(reasons),
        taken.total_ms,
        taken.work_ms,
        round(taken.hit),
        taken.first_ms,
        kind,
    )


def _kind(num_fit: int, num_near: int, taken: Score, ask: Ask) -> str:
    if num_fit == 1:
        return "only"
    if taken.hit:
        return "cached"
    if num_near == 1:
        return "best"
    return "affinity" if _is_unknown(ask) else "drawn"


def _is_unknown(ask: Ask) -> bool:
    """Nobody holds a block of the prompt."""
    return bool(ask.first_block and not ask.shared and not ask.held)


def _margin_ms(best: Score, ask: Ask) -> float:
    """By how much scores must differ to mean anything."""
    ratio = STALE_RATIO if ask.is_blind or ask.is_stale else NEAR_RATIO
    least_ms = STALE_MS if ask.is_stale else NEAR_MS
    return max(least_ms, ratio * (best.total_ms - best.others_ms))


def _pick(near: Sequence[tuple[Score, Candidate]], ask: Ask) -> tuple[Score, Candidate]:
    if len(near) == 1:
        return near[0]
    if _is_unknown(ask):
        least = min(_in_flight(c) for _, c in near)
        even = [pair for pair in near if _in_flight(pair[1]) == least]
        return max(even, key=lambda pair: _affinity(ask.first_block, pair[1].rank))
    first = ask.draw % len(near)
    second = ask.draw // len(near) % (len(near) - 1)
    second += second >= first
    return min(
        (near[first], near[second]),
        key=lambda pair: (*_in_flight(pair[1]), pair[1].last_assigned, pair[1].rank.worker_id),
    )


def _in_flight(c: Candidate) -> tuple[float, int]:
    if c.role is Role.DECODE:
        return float(c.rows), c.context
    return c.queue_ms, c.prompts + c.rows


def _affinity(first_block: int, rank: Rank) -> bytes:
    """Rendezvous hashing: all routers agree, and a worker more or less moves few prompts."""
    name = f"{rank.worker_id}/{rank.dp_rank}".encode()
    return hashlib.blake2b(first_block.to_bytes(8, "little") + name, digest_size=8).digest()
