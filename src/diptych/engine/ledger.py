"""Who is where: waiting, running, held or reserved, and who owns which pages.

Steps are planned, executed and committed in order, and at most one is executed while the next one
is planned:

    next_plan() -> N    commit(N)    next_plan() -> N+1    commit(N+1)      one after the other
    next_plan() -> N    next_plan() -> N+1    commit(N)    next_plan() -> N+2    commit(N+1)    ...

A piece whose token is not known yet (`Piece.unknown`) continues what the step before it samples.
If that token ends the sequence, the piece is computed for nothing and its result is dropped.
Pages come back to the pools when the last plan that touches them has been committed or has failed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.step import Chunk, Row
from diptych.engine.block_pool import BlockPool
from diptych.engine.port import Counts, Pages
from diptych.engine.requests import Bounds, Request, blocks_for, capacity, check, finish_of
from diptych.engine.scheduler import Choice, Limits, Piece, Plan, choose
from diptych.engine.slots import SlotPool

Outcome = int | Broken  # of a sampled row: a token, or why there is none


@dataclass(frozen=True, slots=True)
class Reservation:
    """Pages set aside for a sequence whose KV is on its way."""

    key: Key
    blocks: tuple[int, ...]
    slot: int


class Ledger:
    """The book-keeping behind the engine's steps; all of it on one thread."""

    def __init__(self, bounds: Bounds, limits: Limits, blocks: BlockPool, slots: SlotPool) -> None:
        self.bounds = bounds
        self.limits = limits
        self._blocks = blocks
        self._slots = slots
        self._waiting: dict[Key, Request] = {}
        self._running: dict[Key, Request] = {}
        self._held: dict[Key, Request] = {}
        self._reserved: dict[Key, Reservation] = {}
        self._tokens_total = 0
        self._steps = 0  # planned
        self._unretired: deque[Plan] = deque()
        self._fenced: deque[tuple[int, Request]] = deque()  # by the plan that must come back first

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute, now or once pages are free, or to commit."""
        return bool(self._running or self._waiting or self._unretired)

    def submit(self, generation: Generation, *, hold: bool) -> None:
        """Queue a prompt; BadRequest if it is malformed or can never fit."""
        self._expect_unknown(generation.key)
        check(generation, self.bounds)
        positions = capacity(generation, self.bounds, hold=hold)
        self._expect_possible(positions)
        self._waiting[generation.key] = Request(
            generation,
            hold=hold,
            adopted=False,
            capacity=positions,
            tokens=list(generation.tokens),
        )

    def reserve(self, key: Key, positions: int) -> Pages | None:
        """Set pages aside; None unless there is room for this and for all that wait."""
        self._expect_unknown(key)
        if positions < 1:
            raise BadRequest(f"capacity is {positions}; expected at least 1", param="capacity")
        positions = min(positions, self.bounds.max_model_len - 1)
        self._expect_possible(positions)
        claimed = sum(blocks_for(r.capacity, self.limits.grain) for r in self._waiting.values())
        need = blocks_for(positions, self.limits.grain)
        if self._blocks.num_free < claimed + need or self._slots.num_free <= len(self._waiting):
            return None
        pages = self._take(positions)
        self._reserved[key] = Reservation(key, *pages)
        return Pages(*pages, num_tokens=0)

    def adopt(self, generation: Generation) -> None:
        """Run a reserved sequence, all of whose tokens but the last are written."""
        reservation = self._reserved.get(generation.key)
        if reservation is None:
            raise BadRequest(f"{generation.key}: nothing is reserved under this key")
        check(generation, self.bounds)
        positions = capacity(generation, self.bounds, hold=False)
        need = blocks_for(positions, self.limits.grain)
        if need > len(reservation.blocks):
            raise BadRequest(
                f"{generation.key}: {len(reservation.blocks)} blocks are reserved; expected "
                f"{need} for this generation"
            )
        del self._reserved[generation.key]
        tokens = list(generation.tokens)
        self._running[generation.key] = Request(
            generation,
            hold=False,
            adopted=True,
            capacity=positions,
            tokens=tokens,
            written=len(tokens) - 1,
            launched=len(tokens) - 1,
            blocks=reservation.blocks,
            slot=reservation.slot,
        )

    def held(self, key: Key) -> Pages | None:
        """Pages of a sequence that waits, computed, for its `drop`."""
        request = self._held.get(key)
        return request.pages(self.limits.grain) if request else None

    def drop(self, key: Key) -> bool:
        """Forget a sequence wherever it stands; False if it stands nowhere."""
        reservation = self._reserved.pop(key, None)
        if reservation is not None:
            self._free(reservation)
            return True
        owner = self._running.pop(key, None) or self._held.pop(key, None)
        if owner is None:
            return self._waiting.pop(key, None) is not None
        self._release(owner)
        return True

    def next_plan(self) -> Plan:
        """Choose the next step and give pages to whom it admits.

        At most one plan may be out. An idle plan needs no executing, no commit; if another
        one is out, there may be more to do once that is committed.
        """
        assert len(self._unretired) < 2, "two plans are out already"
        chosen = choose(
            self._running.values(),
            self._waiting.values(),
            self._blocks.num_free,
            self._slots.num_free,
            self.limits,
        )
        for key in list(islice(self._waiting, chosen.admit)):
            request = self._waiting.pop(key)
            request.blocks, request.slot = self._take(request.capacity)
            self._running[key] = request
        return self._launch(chosen)

    def commit(self, done: Plan, outcomes: Sequence[Outcome]) -> tuple[list[Row], list[Chunk]]:
        """Record the oldest plan that is out as computed.

        `outcomes` has one value for each piece that samples, also for those whose sequence has
        ended or was dropped since: they are passed over.
        """
        if done.idle:
            return [], []
        rows: list[Row] = []
        chunks: list[Chunk] = []
        upcoming = iter(outcomes)
        for piece in done.pieces:
            request = piece.request
            outcome = next(upcoming) if piece.samples else None
            if request.ended:
                continue
            request.written = piece.end
            if outcome is not None:
                rows.append(self._extend(request, outcome))
            else:
                chunks.append(Chunk(request.key, piece.end, last_chunk_started=False))
        self._retire(done)
        return rows, chunks

    def fail(self, failed: Plan, message: str) -> list[Row]:
        """End every sequence of the oldest plan that is out, which broke."""
        if failed.idle:
            return []
        rows = [
            self._end(piece.request, message) for piece in failed.pieces if not piece.request.ended
        ]
        self._retire(failed)
        return rows

    def counts(self) -> Counts:
        return Counts(
            running=len(self._running),
            waiting=len(self._waiting),
            held=len(self._held),
            reserved=len(self._reserved),
            free_blocks=self._blocks.num_free,
            num_blocks=self._blocks.num_blocks,
            free_slots=self._slots.num_free,
            num_slots=self._slots.num_slots,
            tokens_total=self._tokens_total,
        )

    def check(self) -> None:
        """Assert that every page has exactly one owner, or is free."""
        owners: list[Request | Reservation] = [
            *self._running.values(),
            *self._held.values(),
            *self._reserved.values(),
            *(request for _, request in self._fenced),
        ]
        self._blocks.check([page for owner in owners for page in owner.blocks])
        self._slots.check([owner.slot for owner in owners])

    def _launch(self, chosen: Choice) -> Plan:
        if not chosen.rows:
            return Plan()
        pieces = []
        for request, count in chosen.rows:
            unknown = request.is_sampling
            end = request.launched + count
            pieces.append(
                Piece(
                    request,
                    request.launched,
                    count,
                    samples=unknown or end == len(request.tokens),
                    blocks=request.blocks,
                    slot=request.slot,
                    unknown=unknown,
                    floor=request.floor,
                    encoder_floor=request.encoder_floor,
                )
            )
            request.launched = end
            request.last_step = self._steps
        launched = Plan(tuple(pieces), self._steps)
        self._steps += 1
        self._unretired.append(launched)
        return launched

    def _retire(self, done: Plan) -> None:
        oldest = self._unretired.popleft()
        assert oldest is done, f"plan {done.step} is not the oldest one out, {oldest.step}"
        while self._fenced and self._fenced[0][0] <= done.step:
            self._free(self._fenced.popleft()[1])

    def _extend(self, request: Request, outcome: Outcome) -> Row:
        if isinstance(outcome, Broken):
            return self._end(request, outcome.message)
        request.tokens.append(outcome)
        self._tokens_total += 1
        finish, stop_token = finish_of(request, self.bounds)
        if finish is not None:
            self._release(self._running.pop(request.key))
        elif request.hold:
            self._held[request.key] = self._running.pop(request.key)
        return Row(request.key, (outcome,), finish, stop_token=stop_token)

    def _end(self, request: Request, message: str) -> Row:
        self._release(self._running.pop(request.key))
        return Row(request.key, finish=Finish.ERROR, message=message)

    def _take(self, positions: int) -> tuple[tuple[int, ...], int]:
        """Pages for so many positions, once it is known that they are there."""
        blocks = self._blocks.alloc(blocks_for(positions, self.limits.grain))
        slot = self._slots.take()
        assert blocks is not None and slot is not None, "pages were promised that are not free"
        return blocks, slot

    def _release(self, request: Request) -> None:
        """End a request; its pages come back when no plan that is out touches them."""
        request.ended = True
        if self._unretired and request.last_step >= self._unretired[0].step:
            self._fenced.append((request.last_step, request))
        else:
            self._free(request)

    def _free(self, owner: Request | Reservation) -> None:
        self._blocks.free(owner.blocks)
        self._slots.free(owner.slot)

    def _expect_unknown(self, key: Key) -> None:
        if any(key in m for m in (self._waiting, self._running, self._held, self._reserved)):
            raise BadRequest(f"{key} is known already", code="duplicate_request")

    def _expect_possible(self, positions: int) -> None:
        need = blocks_for(positions, self.limits.grain)
        if need > self._blocks.num_blocks:
            raise BadRequest(
                f"the request may need {need} blocks of {self.limits.grain} tokens; this worker "
                f"has {self._blocks.num_blocks} in all",
                code="context_length_exceeded",
            )
