"""Who is where: waiting, running, held or reserved, and who owns which pages."""

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
from diptych.engine.scheduler import Limits, Plan, plan
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

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something, now or once pages are free."""
        return bool(self._running or self._waiting)

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
            blocks=reservation.blocks,
            slot=reservation.slot,
        )

    def held(self, key: Key) -> Pages | None:
        """Pages of a sequence that waits, computed, for its `drop`."""
        request = self._held.get(key)
        return request.pages(self.limits.grain) if request else None

    def drop(self, key: Key) -> bool:
        """Forget a sequence wherever it stands; False if it stands nowhere."""
        owner: Request | Reservation | None = (
            self._running.pop(key, None)
            or self._held.pop(key, None)
            or self._reserved.pop(key, None)
        )
        if owner is None:
            return self._waiting.pop(key, None) is not None
        self._release(owner)
        return True

    def next_plan(self) -> Plan:
        """Choose the next step and give pages to whom it admits."""
        chosen = plan(
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
        return chosen

    def commit(self, done: Plan, outcomes: Sequence[Outcome]) -> tuple[list[Row], list[Chunk]]:
        """Record a computed step; `outcomes` has one value for each piece that samples."""
        rows: list[Row] = []
        chunks: list[Chunk] = []
        upcoming = iter(outcomes)
        for piece in done.pieces:
            samples = piece.samples
            piece.request.written = piece.end
            if samples:
                rows.append(self._extend(piece.request, next(upcoming)))
            else:
                chunks.append(Chunk(piece.request.key, piece.end, last_chunk_started=False))
        return rows, chunks

    def fail(self, failed: Plan, message: str) -> list[Row]:
        """End every sequence of a step that broke."""
        return [self._end(piece.request, message) for piece in failed.pieces]

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
        ]
        self._blocks.check([page for owner in owners for page in owner.blocks])
        self._slots.check([owner.slot for owner in owners])

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

    def _release(self, owner: Request | Reservation) -> None:
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
