"""Who is where: preparing, waiting, running, held or reserved, and who owns which pages.

Steps are planned, executed and committed in order, and at most one is executed while the next one
is planned:

    next_plan() -> N    commit(N)    next_plan() -> N+1    commit(N+1)      one after the other
    next_plan() -> N    next_plan() -> N+1    commit(N)    next_plan() -> N+2    commit(N+1)    ...

A piece whose token is not known yet (`Piece.unknown`) continues what the step before it samples.
If that token ends the sequence, the piece is computed for nothing and its result is dropped.
Pages come back to the pools when the last plan that touches them has been committed or has failed.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import BlockHash, Key
from diptych.core.phases import Finish
from diptych.core.request import PRIORITIES, Generation
from diptych.core.step import Chunk, Row
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_log import BlockLog
from diptych.engine.block_pool import BlockPool
from diptych.engine.guide import Guide
from diptych.engine.imports import Import, brought
from diptych.engine.loading import Load, Local
from diptych.engine.outcome import Failure, Outcome, Scored
from diptych.engine.planner import Planner
from diptych.engine.pools import Hit, Holding, Note, Pools
from diptych.engine.port import Counts, Pages
from diptych.engine.prefix_cache import Chain, Retention
from diptych.engine.queue import Entry
from diptych.engine.requests import Bounds, Request, blocks_for, capacity, check, finish_of
from diptych.engine.scheduler import Limits, Plan
from diptych.engine.slots import SlotPool
from diptych.engine.snapshots import Resumption, resumptions
from diptych.engine.swap import SwapSpace
from diptych.engine.tier import Owner, Snapshot, Stored


@dataclass(frozen=True, slots=True)
class Missing:
    """A chain to ask the cache tier for, from behind the last anchor on that is here."""

    request: Request
    owner: Owner
    local: Local
    chain: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Pages set aside for a sequence whose KV is on its way."""

    key: Key
    blocks: tuple[int, ...]
    slot: int


class Ledger:
    """The book-keeping behind the engine's steps; all of it on one thread. The time is given."""

    def __init__(
        self,
        bounds: Bounds,
        limits: Limits,
        blocks: BlockPool,
        slots: SlotPool,
        anchors: AnchorPool | None = None,
        space: SwapSpace | None = None,
    ) -> None:
        self.bounds = bounds
        self.limits = limits
        self._pools = Pools(
            limits, blocks, slots, anchors or AnchorPool(0), space or SwapSpace(0, 0)
        )
        self._planner = Planner(limits, self._pools)
        self._running = self._planner.running
        self._queue = self._planner.queue
        self._preparing: dict[Key, Entry] = {}
        self._held: dict[Key, Request] = {}
        self._reserved: dict[Key, Reservation] = {}
        self._arrivals = 0
        self._tokens_total = 0
        self._wasted = Counter[str]()  # tokens by why
        self._tier_query_tokens = 0
        self._steps = 0  # planned
        self._unretired: deque[Plan] = deque()

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute, now or once pages are free, or to commit."""
        return bool(self._running or self._queue or self._unretired)

    @property
    def block_log(self) -> BlockLog:
        """Changes of the prefix cache; any thread may read it."""
        return self._pools.blocks.cache.log

    def submit(
        self, generation: Generation, *, hold: bool, ready: bool = True, now_s: float = 0.0
    ) -> None:
        """Queue a prompt; BadRequest if it is malformed or can never fit.

        One that is not ready (its grammar is being compiled) is known but waits outside the queue,
        where it holds back nobody, until `ready` or `drop`.
        """
        self._expect_unknown(generation.key)
        check(generation, self.bounds)
        request = self._request(generation, hold=hold, adopted=False)
        self._expect_possible(request.capacity)
        entry = self._queue.arrive(request, now_s)
        if ready:
            self._queue.enter(entry)
        else:
            self._preparing[generation.key] = entry

    def ready(self, key: Key, guide: Guide | None = None) -> bool:
        """Queue a request that was being prepared, as old as it is; False if it was dropped."""
        entry = self._preparing.pop(key, None)
        if entry is None:
            return False
        entry.request.guide = guide
        self._queue.enter(entry)
        return True

    def missing(self, key: Key, *, is_again: bool = False) -> Missing | None:
        """What a request that is being prepared might find in the cache tier. `is_again`: what
        came was less than was found."""
        entry = self._preparing.get(key)
        request = entry.request if entry else None
        if request is None or request.chain is None:
            return None
        chain, limits = request.chain, self.limits
        usable = max(0, len(request.generation.prompt) - limits.keep) // limits.grain
        full = limits.deterministic
        local = self._pools.imports.local(chain, request.tokens, usable, full=full)
        if local.anchored == usable:
            return None
        chain.name(usable - 1, request.tokens)
        if not is_again:
            self._tier_query_tokens += (usable - local.anchored) * limits.grain
        return Missing(request, request.owner, local, tuple(chain.names[:usable]))

    def resumptions(self, key: Key) -> list[Resumption]:
        """Where a request that is being prepared may go on, if the tier has a slot for it."""
        entry = self._preparing.get(key)
        if entry is None or not entry.request.generation.forced:
            return []
        limits = self.limits
        return list(resumptions(entry.request, limits.snapshot_every, limits.grain))

    def local(self, key: Key, blocks: int) -> Local | None:
        """What is here of the first blocks of a request that is being prepared."""
        entry = self._preparing.get(key)
        if entry is None or entry.request.chain is None:
            return None
        request, full = entry.request, self.limits.deterministic
        return self._pools.imports.local(entry.request.chain, request.tokens, blocks, full=full)

    def resume(self, key: Key, position: int, slot: bytes) -> None:
        """Let a request that is being prepared go on there, if its blocks are here then."""
        entry = self._preparing.get(key)
        if entry is not None:
            entry.request.resumed = (position, slot)

    def begin_import(self, request: Request, load: Load) -> Import | None:
        """Pages for what a request lacks; None if it must do without, or was given up."""
        entry = self._preparing.get(request.key)
        if entry is None or entry.request is not request:
            return None
        return self._pools.imports.begin(request, load)

    def end_import(self, ended: Import, arrived: Sequence[Stored], *, has_anchor: bool) -> None:
        """The first pages so many hold their blocks; whoever waits for them is told."""
        self._pools.imports.end(ended, arrived, has_anchor=has_anchor)
        ended.request.brought |= {i: s.tier for i, s in enumerate(arrived, ended.first)}

    def take_notes(self) -> list[Note | Snapshot]:
        """What the cache tier may copy, until the next plan."""
        return self._pools.take_notes()

    def reserve(self, key: Key, positions: int) -> Pages | None:
        """Set pages aside; None unless there is room for this and for all that wait.

        Reserved and held pages cannot be taken away, so there must also be enough others for the
        longest sequence here to come to its end.
        """
        self._expect_unknown(key)
        if positions < 1:
            raise BadRequest(f"capacity is {positions}; expected at least 1", param="capacity")
        positions = min(positions, self.bounds.max_model_len - 1)
        self._expect_possible(positions)
        pools, need = self._pools, blocks_for(positions, self.limits.grain)
        claimed = sum(pools.num_needed(request, Hit()) for request in self._queue)
        if pools.blocks.num_free < claimed + need or pools.slots.num_free <= len(self._queue):
            return None
        fixed = sum(len(request.blocks) for request in self._held.values())
        fixed += sum(len(reservation.blocks) for reservation in self._reserved.values())
        live = (*self._running.values(), *self._queue)
        longest = max((blocks_for(r.capacity, self.limits.grain) for r in live), default=0)
        if pools.blocks.num_blocks - fixed - need < longest:
            return None
        blocks, slot = pools.reserve(positions)
        self._reserved[key] = Reservation(key, blocks, slot)
        return Pages(blocks, slot, num_tokens=0)

    def adopt(self, generation: Generation, guide: Guide | None = None) -> None:
        """Run a reserved sequence, all of whose tokens but the last are written."""
        reservation = self._reserved.get(generation.key)
        if reservation is None:
            raise BadRequest(f"{generation.key}: nothing is reserved under this key")
        check(generation, self.bounds)
        request = self._request(generation, hold=False, adopted=True)
        request.guide = guide
        need = blocks_for(len(request.tokens), self.limits.grain)
        if need > len(reservation.blocks):
            raise BadRequest(
                f"{generation.key}: {len(reservation.blocks)} blocks are reserved; expected "
                f"{need} for this generation"
            )
        self._expect_possible(request.capacity)
        del self._reserved[generation.key]
        request.written = request.launched = len(request.tokens) - 1
        request.blocks, request.slot = reservation.blocks[:need], reservation.slot
        request.cached = 0
        self._pools.free(Holding(reservation.blocks[need:]))  # it grows again when it must
        self._pools.publish(request)
        self._running[generation.key] = request

    def held(self, key: Key) -> Pages | None:
        """Pages of a sequence that waits, computed, for its `drop`."""
        request = self._held.get(key)
        return request.pages(self.limits.grain) if request else None

    def drop(self, key: Key) -> bool:
        """Forget a sequence wherever it stands; False if it stands nowhere.

        The key can be used again at once, the pages once no plan that is out touches them.
        """
        reservation = self._reserved.pop(key, None)
        if reservation is not None:
            self._pools.free(Holding(reservation.blocks, reservation.slot))
            return True
        request = self._running.pop(key, None) or self._held.pop(key, None) or self._queue.pop(key)
        if request is None:
            return self._preparing.pop(key, None) is not None
        request.dropped = True
        self._release(request)
        return True

    def next_plan(self, now_s: float = 0.0) -> Plan:
        """Choose the next step and give pages to whom it admits.

        At most one plan may be out. An idle plan needs no executing, no commit; if another one is
        out, there may be more to do once that is committed.
        """
        assert len(self._unretired) < 2, "two plans are out already"
        plan = self._planner.plan(self._steps, now_s)
        if not plan.idle:
            self._steps += 1
            self._unretired.append(plan)
        return plan

    def commit(self, done: Plan, outcomes: Sequence[Outcome]) -> tuple[list[Row], list[Chunk]]:
        """Record the oldest plan that is out as computed.

        `outcomes` has one value for each piece that samples, also for those whose sequence has
        ended or was dropped since: they are passed over.
        """
        if done.idle:
            return [], []
        self._begin_retire(done)
        rows: list[Row] = []
        chunks: list[Chunk] = []
        upcoming = iter(outcomes)
        for piece in done.pieces:
            request = piece.request
            outcome = next(upcoming) if piece.samples else None
            if piece.lapsed:
                self._wasted[_why(request)] += piece.count
                continue
            request.written = piece.start + piece.count
            if request.chain is not None:
                self._pools.publish(request)
            if outcome is not None:
                rows.append(self._extend(request, outcome))
            else:
                progress = max(piece.end, request.replay_end)
                chunks.append(Chunk(request.key, progress, last_chunk_started=False))
        self._planner.swapping.pop(done.step, None)
        self._pools.end_retire(done.step)
        return rows, chunks

    def fail(self, failed: Plan, message: str) -> list[Row]:
        """Record that the oldest plan that is out broke.

        A sequence that was alone in it ends. Of several each is computed again, alone, until a
        token of it is out: so one that breaks every step it is part of takes no other with it.
        None of the plan's orders counts as carried out: what it swapped out is computed again.
        """
        if failed.idle:
            return []
        self._begin_retire(failed)
        rows: list[Row] = []
        hit = [piece.request for piece in failed.pieces if not piece.lapsed]
        if len(hit) == 1:
            rows.append(self._end(hit[0], Broken(message)))
        else:
            for request in hit:
                self._planner.suspect(request)
        self._wasted["failed"] += sum(piece.count for piece in failed.pieces)
        for request in self._planner.swapping.pop(failed.step, ()):
            if not request.ended:
                self._pools.lose_swapped(request)
        self._pools.end_retire(failed.step)
        return rows

    def counts(self) -> Counts:
        pools, planner = self._pools, self._planner
        return Counts(
            running=len(self._running),
            waiting=len(self._queue),
            held=len(self._held),
            reserved=len(self._reserved),
            free_blocks=pools.blocks.num_free,
            num_blocks=pools.blocks.num_blocks,
            free_slots=pools.slots.num_free,
            num_slots=pools.slots.num_slots,
            tokens_total=self._tokens_total,
            waiting_by_class=self._queue.num_by_class,
            preparing=len(self._preparing),
            swapped=sum(request.swapped is not None for request in self._queue),
            cached_blocks=pools.blocks.cache.num_idle,
            anchors=pools.anchors.num_used,
            num_anchors=pools.anchors.num_anchors,
            query_tokens_total=planner.query_tokens_total,
            hit_tokens_total=planner.hit_tokens_total,
            memory_hit_tokens_total=planner.brought_tokens_total["memory"],
            disk_hit_tokens_total=planner.brought_tokens_total["disk"],
            preemptions_total=planner.preemptions_total,
            swaps_total=planner.swaps_total,
            resumed_total=planner.resumed_total,
            snapshots_total=planner.snapshots_total,
            tier_query_tokens_total=self._tier_query_tokens,
            aborted_tokens_total=self._wasted["aborted"],
            overrun_tokens_total=self._wasted["overrun"],
            failed_tokens_total=self._wasted["failed"],
            recomputed_tokens_total=planner.recomputed_tokens_total,
        )

    def check(self) -> None:
        """Assert that every page has exactly its owners, or is free."""
        requests = (*self._running.values(), *self._held.values(), *self._queue)
        self._pools.check(
            [
                *(Holding(request.blocks, request.slot, request.swapped) for request in requests),
                *(Holding(r.blocks, r.slot) for r in self._reserved.values()),
            ]
        )

    def _begin_retire(self, plan: Plan) -> None:
        oldest = self._unretired.popleft()
        assert oldest is plan, f"plan {plan.step} is not the oldest one out, {oldest.step}"
        self._pools.begin_retire(plan.step)

    def _extend(self, request: Request, outcome: Outcome) -> Row:
        if isinstance(outcome, Failure):
            return self._end(request, outcome)
        is_first = len(request.tokens) == len(request.generation.tokens)
        token = outcome.token if isinstance(outcome, Scored) else outcome
        logprobs = (outcome.logprob,) if isinstance(outcome, Scored) else ()
        request.tokens.append(token)
        request.resumed = None
        request.suspect = False
        self._tokens_total += 1
        finish, stop_token = finish_of(request, self.bounds)
        if finish is not None:
            del self._running[request.key]
            self._release(request)
        elif request.hold:
            self._held[request.key] = self._running.pop(request.key)
        cached = (request.cached or 0) if is_first else 0
        grain = self.limits.grain
        prompt_logprobs = tuple(request.prompt_logprobs or ())
        request.prompt_logprobs = None
        return Row(
            request.key,
            (token,),
            finish,
            cached,
            stop_token,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            cached_memory=brought(request, cached, grain, "memory"),
            cached_disk=brought(request, cached, grain, "disk"),
        )

    def _end(self, request: Request, failure: Failure) -> Row:
        del self._running[request.key]
        self._release(request)
        return Row(
            request.key,
            finish=Finish.ERROR,
            message=failure.message,
            is_contradiction=isinstance(failure, BadRequest),
        )

    def _release(self, request: Request) -> None:
        request.ended = True
        self._pools.release(request)

    def _request(self, generation: Generation, *, hold: bool, adopted: bool) -> Request:
        """A request as it arrives, without pages.

        One that asks for its prompt's log-probabilities needs every row of it: nothing is left
        out, and nothing shared with those of whom something is. Once a token is out, so are they.
        """
        limits, rank = self.limits, PRIORITIES.index(generation.priority)
        self._arrivals += 1
        is_whole = generation.sampling.prompt_logprobs is not None
        request = Request(
            generation,
            hold,
            adopted,
            capacity(generation, self.bounds, hold=hold),
            list(generation.tokens),
            floor=0 if is_whole else limits.floor(len(generation.prompt)),
            order=self._arrivals,
            rank=rank,
            prompt_logprobs=[] if is_whole and not generation.forced else None,
        )
        if generation.scope and limits.replay and not is_whole:
            is_batch = generation.priority == "batch"
            retention = Retention.EPHEMERAL if is_batch else Retention.SESSION
            request.chain = Chain(generation.scope, limits.grain, retention)
            if limits.tiered and generation.retention != "none":
                # who adopts a prompt leaves the keeping of it to who computed it
                start = len(generation.prompt) // limits.grain if adopted else 0
                request.chain.kept_from = start
        return request

    def _expect_unknown(self, key: Key) -> None:
        known = (self._preparing, self._queue, self._running, self._held, self._reserved)
        if any(key in keys for keys in known):
            raise BadRequest(f"{key} is known already", code="duplicate_request")

    def _expect_possible(self, positions: int) -> None:
        need = blocks_for(positions, self.limits.grain)
        if need > self._pools.blocks.num_blocks:
            raise BadRequest(
                f"the request may need {need} blocks of {self.limits.grain} tokens; this worker "
                f"has {self._pools.blocks.num_blocks} in all",
                code="context_length_exceeded",
            )


def _why(request: Request) -> str:
    """Whose rows were computed for nobody."""
    if not request.ended:
        return "failed"
    return "aborted" if request.dropped else "overrun"
