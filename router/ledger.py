"""What was placed where: every lease's stage, and what each worker carries because of it.

The router counts its own work at once; other routers tell theirs; reports only correct it. What is
not ours is *foreign*: as much as the other routers say, or as several reports in a row show beyond
our own work, whichever is more (what we gave away or closed a moment ago is in one and not in the
next). So when a router is gone and its share with it, the reports have taken over already.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto

from diptych.core.ids import Incarnation, WorkerId
from diptych.router.admission import Deaths
from diptych.router.messages import Load, Want

REPORTS = 3  # in a row that must show foreign work


class Stage(StrEnum):
    """Where a lease is, by what the gateway said."""

    WAITING = auto()  # for a worker that computes its prompt
    PREFILL = auto()
    HANDOFF = auto()  # prompt (nearly) computed; waits for a decode worker
    DECODE = auto()


@dataclass(frozen=True, slots=True)
class Entry:
    """One lease."""

    want: Want
    attempt: int
    arrived_s: float
    stage: Stage = Stage.WAITING
    namespace: bytes = b""  # of the worker that computes the prompt
    block_tokens: int = 1
    prefill: WorkerId | None = None
    decode: WorkerId | None = None
    prompted: WorkerId | None = None  # as `prefill`, and remembered when that is gone
    computed: int = 0  # prompt positions
    is_hybrid: bool = False  # the decode worker computes the prompt, too
    is_decoding: bool = False  # the decode worker gave tokens
    avoid: dict[WorkerId, float] = field(default_factory=dict)  # who failed it, and when
    deaths: Deaths = field(default_factory=Deaths)
    was_let_down: bool = False  # by a worker, not for want of room
    hit: int = 0  # prompt positions that its worker was expected to have cached
    work_us: int = 0  # what the rest was expected to take
    new_tokens: int = 0  # of its output, as far as the gateway told
    keys: tuple[int, ...] = ()  # of its blocks, for the index

    @property
    def blocks(self) -> int:
        """Pages the whole sequence may fill."""
        return max(1, -(-self.want.capacity // self.block_tokens))

    @property
    def prompt_tokens_left(self) -> int:
        return max(0, self.want.prompt_len - max(self.computed, self.hit))

    @property
    def work_us_left(self) -> int:
        whole = self.want.prompt_len - self.hit
        return self.work_us * self.prompt_tokens_left // whole if whole > 0 else self.work_us

    def phase_of(self, failed: WorkerId) -> str:
        """What a worker was doing when it failed."""
        is_prompt = failed == self.prompted or (self.is_hybrid and not self.is_decoding)
        return "prefill" if is_prompt else "decode"

    @property
    def context(self) -> int:
        """Positions that its rows attend to."""
        return self.want.prompt_len + self.new_tokens


@dataclass(slots=True)
class Carried:
    """Work of one worker. `held` are prompts it computes or holds for a decode worker."""

    prompts: int = 0
    prompt_tokens: int = 0
    work_us: int = 0  # that those are expected to take
    held: int = 0
    rows: int = 0
    context: int = 0
    blocks: int = 0

    def add(self, other: "Carried", sign: int) -> None:
        self.prompts += sign * other.prompts
        self.prompt_tokens += sign * other.prompt_tokens
        self.work_us += sign * other.work_us
        self.context += sign * other.context
        self.held += sign * other.held
        self.rows += sign * other.rows
        self.blocks += sign * other.blocks


IDLE = Carried()


@dataclass(slots=True)
class Pending:
    """What leases will ask of decode workers that have not been chosen yet."""

    rows: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Expected:
    """Hits that a router expected of a worker since it lives."""

    prompts: int = 0
    tokens: int = 0

    def since(self, before: "Expected") -> "Expected":
        """What came on top; all of it if counting began anew."""
        if self.prompts < before.prompts:
            return self
        return Expected(self.prompts - before.prompts, self.tokens - before.tokens)


@dataclass(frozen=True, slots=True)
class Share:
    """What another router carries: by worker, and of workers that it will still choose."""

    router: Incarnation
    carried: Mapping[WorkerId, Carried]
    pending: Mapping[bytes, Pending] = field(default_factory=dict)
    expected: Mapping[WorkerId, "Expected"] = field(default_factory=dict)
    blocked: Mapping[bytes, float] = field(default_factory=dict)  # poison, for so many seconds


@dataclass(slots=True)
class Standing:
    """A worker in the ledger: own work, foreign work, and what changed since its last report."""

    own: Carried = field(default_factory=Carried)
    shared: Carried = field(default_factory=Carried)  # what other routers say that they carry
    beyond: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REPORTS))
    shown: tuple[int, int, int] = (0, 0, 0)  # requests, rows, blocks: the least of those
    slots_given: int = 0  # since the last report
    blocks_given: int = 0
    last_assigned: int = 0  # a counter, not a time

    @property
    def foreign_prompts(self) -> int:
        """Requests of nobody we know; they may be prompts of any length."""
        return max(0, self.shown[0] - self.shared.held - self.shared.rows)

    @property
    def foreign_rows(self) -> int:
        return max(self.shared.rows, self.shown[1] - self.shared.held)

    @property
    def foreign_blocks(self) -> int:
        return max(self.shared.blocks, self.shown[2])

    @property
    def prompts(self) -> int:
        return self.own.prompts + self.shared.prompts + self.foreign_prompts

    @property
    def held(self) -> int:
        return self.own.held + self.shared.held

    @property
    def context(self) -> int:
        return self.own.context + self.shared.context

    @property
    def rows(self) -> int:
        return self.own.rows + self.foreign_rows

    @property
    def blocks(self) -> int:
        return self.own.blocks + self.foreign_blocks


class Ledger:
    """All leases of this router."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.touched: set[WorkerId] = set()  # whose standing changed; who reads it empties it
        self.version = 0  # moves with our own work
        self.shares: dict[Incarnation, Share] = {}  # of other routers
        self._standings: dict[WorkerId, Standing] = defaultdict(Standing)
        self._assignments = 0
        self._pending: dict[bytes, Pending] = defaultdict(Pending)

    def standing(self, worker: WorkerId) -> Standing:
        return self._standings[worker]

    def open(self, lease: int, entry: Entry) -> None:
        """Begin a lease."""
        assert lease not in self.entries, f"lease {lease} is open already"
        self.entries[lease] = entry
        self._count(entry, +1)

    def close(self, lease: int) -> None:
        """End a lease; nothing if it is not open."""
        entry = self.entries.pop(lease, None)
        if entry is not None:
            self._count(entry, -1)

    def update(self, lease: int, entry: Entry) -> None:
        """Replace what is known of a lease."""
        self._count(self.entries[lease], -1)
        self.entries[lease] = entry
        self._count(entry, +1)

    def assigned(self, worker: WorkerId, blocks: int) -> None:
        """Remember that `worker` was chosen just now, for ties and until its next report."""
        self._assignments += 1
        standing = self._standings[worker]
        self.touched.add(worker)
        standing.last_assigned = self._assignments
        standing.slots_given += 1
        standing.blocks_given += blocks

    def report(self, worker: WorkerId, load: Load, num_blocks: int) -> None:
        """Correct a worker's standing by what it says of itself."""
        standing = self._standings[worker]
        self.touched.add(worker)
        own = standing.own
        busy = load.running + load.waiting + load.reservations
        seen = (
            max(0, load.running + load.waiting - own.held - own.rows),
            max(0, busy - own.held - own.rows),
            max(0, num_blocks - load.free_blocks - own.blocks),
        )
        standing.beyond.append(seen)
        requests, rows, blocks = zip(*standing.beyond, strict=True)
        standing.shown = (min(requests), min(rows), min(blocks))
        standing.slots_given = 0
        standing.blocks_given = 0

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone: nothing of what it carried exists any more."""
        for lease, entry in self.entries.items():
            if entry.prefill == worker or entry.decode == worker:
                self.update(
                    lease,
                    replace(
                        entry,
                        prefill=None if entry.prefill == worker else entry.prefill,
                        decode=None if entry.decode == worker else entry.decode,
                    ),
                )
        self._standings.pop(worker, None)
        for router, share in self.shares.items():
            left = {name: carried for name, carried in share.carried.items() if name != worker}
            self.shares[router] = replace(share, carried=left)
        self.touched.add(worker)

    def pending(self, namespace: bytes) -> Pending:
        """Of all leases, here and elsewhere, that are at prefill or wait for a decode worker."""
        whole = replace(self._pending[namespace])
        for share in self.shares.values():
            if (theirs := share.pending.get(namespace)) is not None:
                whole.rows += theirs.rows
                whole.blocks += theirs.blocks
        return whole

    def own(self) -> Iterator[tuple[WorkerId, Carried]]:
        """What this router itself carries."""
        for worker, standing in self._standings.items():
            if standing.own != IDLE:
                yield worker, standing.own

    def own_pending(self) -> dict[bytes, Pending]:
        """The same of decode workers that it will still choose."""
        return {name: replace(p) for name, p in self._pending.items() if p.rows}

    def take_share(self, share: Share) -> None:
        """Replace what another router carries."""
        self.drop_share(share.router)
        self.shares[share.router] = share
        self._add_share(share, +1)

    def drop_share(self, router: Incarnation) -> None:
        """Another router is gone, or not heard: what it says does not count any more."""
        share = self.shares.pop(router, None)
        if share is not None:
            self._add_share(share, -1)

    def _add_share(self, share: Share, sign: int) -> None:
        for worker, carried in share.carried.items():
            self._standings[worker].shared.add(carried, sign)
            self.touched.add(worker)

    def all_pending(self) -> Pending:
        """The same of all namespaces."""
        names = set(self._pending).union(*(share.pending for share in self.shares.values()))
        pending = [self.pending(name) for name in names]
        return Pending(sum(p.rows for p in pending), sum(p.blocks for p in pending))

    def _count(self, entry: Entry, sign: int) -> None:
        self.version += 1
        if entry.stage in (Stage.PREFILL, Stage.HANDOFF):
            self._pending[entry.namespace].rows += sign
            self._pending[entry.namespace].blocks += sign * entry.blocks
        for worker, share in _shares(entry):
            self._standings[worker].own.add(share, sign)
            self.touched.add(worker)


def _shares(entry: Entry) -> Iterable[tuple[WorkerId, Carried]]:
    is_computing = entry.stage is Stage.PREFILL
    if entry.prefill is not None:
        yield (
            entry.prefill,
            Carried(
                prompts=int(is_computing),
                prompt_tokens=entry.prompt_tokens_left if is_computing else 0,
                work_us=entry.work_us_left if is_computing else 0,
                held=1,
            ),
        )
    if entry.decode is not None:
        is_hybrid_prompt = entry.is_hybrid and not entry.is_decoding
        yield (
            entry.decode,
            Carried(
                prompts=int(is_hybrid_prompt),
                prompt_tokens=entry.prompt_tokens_left if is_hybrid_prompt else 0,
                work_us=entry.work_us_left if is_hybrid_prompt else 0,
                rows=1,
                context=entry.context,
                blocks=entry.blocks,
            ),
        )
