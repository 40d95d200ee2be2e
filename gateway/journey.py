"""The journey of one output through the stations: what to do next, whatever happens.

Pure: events and the time go in, effects come out. `pipeline.py` performs them.

    ROUTE ──PlacedPrefill──▶ PREFILL ──first token──▶ HANDOFF ──row──▶ DECODE ──finish──▶ FINISH
      │                         └── Reserve as soon as the last chunk has started
      └──PlacedHybrid──────────────────────────────────────────────▶ DECODE

A station that fails opens the next attempt. What it cost is said by `Left`: a ticket that still
waits needs only another decode worker; otherwise prompt and output so far are computed again, so
the client sees a pause and neither a gap nor a repeat.
"""

from dataclasses import dataclass

from diptych.core.errors import (
    NOT_FETCHED,
    TICKET_GONE,
    BadRequest,
    Broken,
    DiptychError,
    Expired,
    Lost,
    NotFound,
    Overloaded,
    Refused,
)
from diptych.core.ids import Rank
from diptych.core.phases import Finish, Phase
from diptych.core.step import Row
from diptych.gateway import events as on
from diptych.gateway.deadlines import Deadlines, Timer, Timers
from diptych.gateway.events import Effect, Event, Left, Station

MAX_ATTEMPTS = 3
REPORT_EVERY_TOKENS = 128
KV_GONE = (TICKET_GONE, NOT_FETCHED)  # the prompt must be computed again
UNPAIRED = (NOT_FETCHED, Refused.default_code)  # of a Start with a ticket: nobody's own fault


@dataclass(slots=True)
class _Prefill:
    """The prompt at a worker; under an older attempt than the journey's while its ticket waits."""

    rank: Rank | None = None
    attempt: int = 0
    ticket: bytes | None = None
    wants_decode: bool = False  # the router was asked for a decode worker


@dataclass(slots=True)
class _Decode:
    """The output at a worker."""

    rank: Rank | None = None
    is_reserved: bool = False
    is_started: bool = False
    has_rows: bool = False  # the KV has arrived there, and is gone from prefill


class Journey:
    """One output. Call `start`; then `handle` events, and Tick at `wake_at`, until `is_over`."""

    def __init__(self, max_new: int, deadlines: Deadlines) -> None:
        self._max_new = max_new
        self._limits = deadlines
        self.phase = Phase.ROUTE
        self.attempt = 1
        self.output: list[int] = []
        self.cached_tokens = self._cached_memory = self._cached_disk = 0
        self.is_over = False
        self._prefill = _Prefill()
        self._decode = _Decode()
        self._known: dict[tuple[Station, int], Rank] = {}  # who may know the request
        self._timers = Timers()
        self._patience_s = 0.0  # until when it may wait for a worker to have room
        self._failures = 0
        self._busy = 0  # answers in a row that there is no room
        self._again: on.Again | None = None  # waits for its timer, or for a lease
        self._has_lease = True
        self._lease_failures = 0

    @property
    def wake_at(self) -> float:
        """When to send a Tick."""
        return self._timers.next_s

    def start(self, now_s: float) -> list[Effect]:
        """Ask for a place."""
        self._patience_s = now_s + self._limits.queue_s
        self._timers.set(Timer.PHASE, self._patience_s)
        return [on.Place(self.attempt)]

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """What to do about an event; nothing if its attempt is over."""
        if self.is_over:
            return []
        match event:
            case on.Output(attempt, Station.DECODE, row):
                is_current = attempt == self.attempt and self._decode.is_started
                return self._decoded(row, now_s) if is_current else []
            case on.Output(attempt, Station.PREFILL, row):
                return self._first_token(row, now_s) if self._is_prefilling(attempt) else []
            case on.PlacedPrefill(attempt, rank):
                return self._placed_prefill(rank, now_s) if self._is_new(attempt) else []
            case on.PlacedHybrid(attempt, rank):
                return self._placed_hybrid(rank, now_s) if self._is_new(attempt) else []
            case on.PlacedDecode(attempt, rank):
                return self._placed_decode(rank) if attempt == self.attempt else []
            case on.Accepted(attempt, ticket):
                return self._accepted(ticket, now_s) if self._is_prefilling(attempt) else []
            case on.Progressed():
                return self._progressed(event, now_s) if self._is_prefilling(event.attempt) else []
            case on.Reserved(attempt):
                return self._reserved(now_s) if attempt == self.attempt else []
            case on.Failed(attempt, Station.PREFILL, error):
                return self._prefill_failed(error, now_s) if self._is_held(attempt) else []
            case on.Failed(attempt, Station.DECODE, error):
                return self._decode_failed(error, now_s) if attempt == self.attempt else []
            case on.Lapsed(attempt):
                gone = Lost("the prompt's KV is no longer held", code=TICKET_GONE)
                return self._prefill_failed(gone, now_s) if self._is_held(attempt) else []
            case on.LeaseOpened():
                self._timers.stop(Timer.ROUTER)
                return []
            case on.LeaseEnded(error):
                return self._lease_ended(error, now_s)
            case on.Tick():
                return self._tick(now_s)
            case on.Enough():
                return self._over([])
        return []

    # Placing

    def _is_new(self, attempt: int) -> bool:
        """A prompt may be placed: it has no place, or the router knows that its ticket is gone."""
        has_no_decode = self._decode.rank is None and self._prefill.attempt < attempt
        return attempt == self.attempt and (self.phase is Phase.ROUTE or has_no_decode)

    def _placed_prefill(self, rank: Rank, now_s: float) -> list[Effect]:
        self._lease_works()
        effects = self._cancel([Station.PREFILL])
        self._prefill = _Prefill(rank, self.attempt)
        self._known[Station.PREFILL, self.attempt] = rank
        self._enter(Phase.PREFILL, now_s + self._limits.first_token_s)
        deadline_s = self._limits.first_token_s
        return [*effects, on.OpenPrefill(self.attempt, rank, tuple(self.output), deadline_s)]

    def _placed_hybrid(self, rank: Rank, now_s: float) -> list[Effect]:
        self._lease_works()
        effects = self._cancel([Station.PREFILL])
        self._prefill = _Prefill()
        self._decode = _Decode(rank)
        self._known[Station.DECODE, self.attempt] = rank
        return [*effects, *self._start(rank, Phase.DECODE, now_s, self._limits.first_token_s)]

    def _placed_decode(self, rank: Rank) -> list[Effect]:
        if self.phase not in (Phase.PREFILL, Phase.HANDOFF) or self._decode.rank is not None:
            return []
        self._lease_works()
        self._decode = _Decode(rank)
        self._known[Station.DECODE, self.attempt] = rank
        return [on.Reserve(self.attempt, rank, self._limits.reserve_s)]

    # Prefill

    def _is_prefilling(self, attempt: int) -> bool:
        return attempt == self._prefill.attempt and self.phase is Phase.PREFILL

    def _is_held(self, attempt: int) -> bool:
        return attempt == self._prefill.attempt and not self._decode.is_started

    def _accepted(self, ticket: bytes, now_s: float) -> list[Effect]:
        self._prefill.ticket = ticket
        self._timers.set(Timer.PHASE, now_s + self._limits.first_token_s)
        return []

    def _progressed(self, event: on.Progressed, now_s: float) -> list[Effect]:
        self._timers.set(Timer.PHASE, now_s + self._limits.first_token_s)
        is_last_token = len(self.output) + 1 >= self._max_new  # then no decode worker is needed
        asks = event.last_chunk_started and not is_last_token and not self._prefill.wants_decode
        self._prefill.wants_decode = self._prefill.wants_decode or asks
        return self._report(Phase.PREFILL, event.tokens, asks)

    def _first_token(self, row: Row, now_s: float) -> list[Effect]:
        if row.finish in (Finish.ERROR, Finish.CANCELLED):
            return self._prefill_failed(_engine_error(row), now_s)
        if not row.token_ids and row.finish is None:
            return []
        emitted = self._take(row)
        if row.finish is not None:
            self._known.pop((Station.PREFILL, self._prefill.attempt))
            return self._over([*emitted, on.End(row.finish, row.stop_token)])
        self._patience_s = now_s + self._limits.room_s
        self._enter_handoff(now_s)
        asked = [] if self._prefill.wants_decode else self._report(Phase.PREFILL, 0, True)
        self._prefill.wants_decode = True
        told = self._report(Phase.HANDOFF, len(self.output))
        return [*emitted, *asked, *self._start_if_ready(now_s), *told]

    def _prefill_failed(self, error: DiptychError, now_s: float) -> list[Effect]:
        if isinstance(error, Overloaded):
            return self._wait_for_room(error, self._prefill.rank, self._left_over(), now_s)
        return self._retry(error, self._prefill.rank, self._left_over(), now_s)

    # Hand-off and decode

    def _enter_handoff(self, now_s: float) -> None:
        """Wait for a decode worker; keep the ticket alive meanwhile."""
        self._enter(Phase.HANDOFF)
        self._timers.set(Timer.ROOM, self._patience_s)
        self._timers.set(Timer.RENEW, now_s + self._limits.renew_s)

    def _reserved(self, now_s: float) -> list[Effect]:
        self._decode.is_reserved = self._decode.rank is not None
        self._busy = 0
        return self._start_if_ready(now_s)

    def _start_if_ready(self, now_s: float) -> list[Effect]:
        is_waiting = self.phase is Phase.HANDOFF and not self._decode.is_started
        rank = self._decode.rank
        if not (is_waiting and self._decode.is_reserved and self._prefill.ticket and rank):
            return []
        return self._start(rank, Phase.HANDOFF, now_s, self._limits.next_token_s)

    def _start(self, rank: Rank, phase: Phase, now_s: float, deadline_s: float) -> list[Effect]:
        self._decode.is_started = True
        self._enter(phase, now_s + deadline_s)
        forced, ticket = tuple(self.output), self._prefill.ticket
        return [on.Start(self.attempt, rank, forced, ticket, deadline_s)]

    def _decoded(self, row: Row, now_s: float) -> list[Effect]:
        if row.finish in (Finish.ERROR, Finish.CANCELLED):
            return self._decode_failed(_engine_error(row), now_s)
        if self.phase is Phase.HANDOFF:  # the KV has moved: prefill has nothing left to forget
            self._known.pop((Station.PREFILL, self._prefill.attempt), None)
        before = len(self.output)
        effects = self._take(row)
        hundreds = before // REPORT_EVERY_TOKENS, len(self.output) // REPORT_EVERY_TOKENS
        if not self._decode.has_rows or hundreds[0] != hundreds[1]:
            effects += self._report(Phase.DECODE, len(self.output))
        self._decode.has_rows = True
        self._enter(Phase.DECODE, now_s + self._limits.next_token_s)
        if row.finish is None:
            return effects
        self._known.pop((Station.DECODE, self.attempt))
        return self._over([*effects, on.End(row.finish, row.stop_token)])

    def _decode_failed(self, error: DiptychError, now_s: float) -> list[Effect]:
        rank = self._decode.rank
        if rank is None:
            return []
        holder = None if self._decode.has_rows else self._prefill.rank
        is_gone = error.code in KV_GONE
        left = Left.TICKET if holder is not None and not is_gone else self._left_over()
        if isinstance(error, Overloaded) and not self._decode.has_rows:
            return self._wait_for_room(error, rank, left, now_s)
        if error.code == TICKET_GONE:
            return self._retry(error, self._prefill.rank, left, now_s)  # it has lost the KV
        is_between = self._decode.is_started and error.code in UNPAIRED
        return self._retry(error, rank, left, now_s, holder if is_between else None)

    # Trying again

    def _left_over(self) -> Left:
        """What is left when the KV is not."""
        return Left.TOKENS if self.output else Left.NOTHING

    def _retry(
        self,
        error: DiptychError,
        rank: Rank | None,
        left: Left,
        now_s: float,
        partner: Rank | None = None,
    ) -> list[Effect]:
        """A station let us down: the next attempt, or the end if there were too many."""
        is_known = error.code in KV_GONE and self._prefill.attempt < self.attempt
        self._failures += not is_known  # the loss that took an old ticket along was counted
        if isinstance(error, BadRequest | NotFound) or self._failures >= MAX_ATTEMPTS:
            return self._over([on.Fail(error)])
        self._patience_s = now_s + self._limits.replace_s
        return self._open_attempt(error, rank, left, now_s, now_s, partner)

    def _wait_for_room(
        self, error: DiptychError, rank: Rank | None, left: Left, now_s: float
    ) -> list[Effect]:
        """Nobody's fault: ask the router again, ever more slowly, until patience ends."""
        self._busy += 1
        pause_s = 0.0 if self._busy == 1 else min(1.0, 0.02 * 2.0 ** min(self._busy, 10))
        return self._open_attempt(error, rank, left, now_s, now_s + pause_s)

    def _open_attempt(
        self,
        error: DiptychError,
        rank: Rank | None,
        left: Left,
        now_s: float,
        again_s: float,
        partner: Rank | None = None,
    ) -> list[Effect]:
        effects = self._cancel([Station.DECODE] if left is Left.TICKET else list(Station))
        self.attempt += 1
        self._decode = _Decode()
        if left is not Left.TICKET:
            self._prefill = _Prefill()
            self._enter(Phase.ROUTE, self._patience_s)
        elif self.phase is Phase.HANDOFF:
            self._enter_handoff(now_s)
        self._again = on.Again(
            self.attempt,
            rank.worker_id if rank else "",
            error.message,
            left,
            error.code,
            error.kind,
            partner.worker_id if partner else "",
        )
        self._timers.set(Timer.AGAIN, again_s)
        return [*effects, *self._ask_again(now_s)]

    def _ask_again(self, now_s: float) -> list[Effect]:
        if self._again is None or not self._timers.is_due(Timer.AGAIN, now_s):
            return []
        self._timers.stop(Timer.AGAIN)
        if not self._has_lease:
            return []  # the next lease will start with this attempt
        again, self._again = self._again, None
        return [again]

    # The lease

    def _lease_works(self) -> None:
        self._lease_failures = 0

    def _needs_router(self) -> bool:
        awaits_decode = self._prefill.wants_decode and self._decode.rank is None
        return self.phase is Phase.ROUTE or awaits_decode

    def _lease_ended(self, error: DiptychError, now_s: float) -> list[Effect]:
        if not isinstance(error, Lost) and self._needs_router():
            return self._over([on.Fail(error)])
        self._has_lease = False
        pause_s = min(1.0, 0.1 * 2.0 ** min(self._lease_failures, 5))
        self._lease_failures += 1
        self._timers.set(Timer.PLACE, now_s + pause_s)
        if not self._timers.is_set(Timer.ROUTER):
            self._timers.set(Timer.ROUTER, now_s + self._limits.router_s)
        return []

    def _place_again(self) -> list[Effect]:
        self._has_lease = True
        self._again = None
        self._timers.stop(Timer.AGAIN)
        if self.phase is Phase.ROUTE:
            return [on.Place(self.attempt)]
        prefill, decode = self._prefill.rank, self._decode.rank
        place = on.Place(
            self.attempt,
            self.phase,
            prefill.worker_id if prefill else None,
            decode.worker_id if decode else None,
            len(self.output),
        )
        return [place, *self._report(Phase.PREFILL, 0, True)] if self._needs_router() else [place]

    def _report(self, phase: Phase, tokens: int, last: bool = False) -> list[Effect]:
        return [on.Report(phase, tokens, last)] if self._has_lease else []

    # Time

    def _tick(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for timer in self._timers.due(now_s):
            if not self.is_over and self._timers.is_due(timer, now_s):  # as planned before
                effects += self._expire(timer, now_s)
        return effects

    def _expire(self, timer: Timer, now_s: float) -> list[Effect]:
        match timer:
            case Timer.PHASE:
                return self._phase_expired(now_s)
            case Timer.ROOM:
                return self._no_room("no decode worker took the request over in time")
            case Timer.RENEW:
                self._timers.set(timer, now_s + self._limits.renew_s)
                return [on.Renew(self._prefill.attempt)]
            case Timer.AGAIN:
                return self._ask_again(now_s)
            case Timer.PLACE:
                self._timers.stop(timer)
                return self._place_again()
            case Timer.ROUTER:
                self._timers.stop(timer)
                gone = Overloaded("the router cannot be reached", retry_after_s=1)
                return self._over([on.Fail(gone)]) if self._needs_router() else []

    def _phase_expired(self, now_s: float) -> list[Effect]:
        if self.phase is Phase.ROUTE:
            return self._no_room("no worker was free in time", code="queue_timeout")
        if self.phase is Phase.PREFILL:
            late = Expired("the prefill worker did not give a first token in time")
            return self._prefill_failed(late, now_s)
        late = Expired("the decode worker did not give the next token in time")
        return self._retry(late, self._decode.rank, self._left_over(), now_s)

    def _no_room(self, message: str, code: str | None = None) -> list[Effect]:
        if self._failures:
            return self._over([on.Fail(Lost(f"a worker was lost and {message}"))])
        return self._over([on.Fail(Overloaded(message, code=code, retry_after_s=1))])

    # Bookkeeping

    def _take(self, row: Row) -> list[Effect]:
        if not self.output:
            self.cached_tokens = row.cached_tokens
            self._cached_memory, self._cached_disk = row.cached_memory, row.cached_disk
        self.output += row.token_ids
        emit = on.Emit(
            row.token_ids,
            row.stop_token,
            row.logprobs,
            row.prompt_logprobs,
            self.cached_tokens,
            self._cached_memory,
            self._cached_disk,
        )
        return [emit] if row.token_ids else []

    def _enter(self, phase: Phase, until_s: float | None = None) -> None:
        """Change the phase; the waits of the last one are over."""
        self.phase = phase
        self._timers.stop(Timer.PHASE, Timer.ROOM, Timer.RENEW)
        if until_s is not None:
            self._timers.set(Timer.PHASE, until_s)

    def _cancel(self, stations: list[Station]) -> list[Effect]:
        told = [key for key in self._known if key[0] in stations]
        return [on.Cancel(key[1], key[0], self._known.pop(key)) for key in told]

    def _over(self, effects: list[Effect]) -> list[Effect]:
        self.is_over = True
        self.phase = Phase.FINISH
        return [*self._cancel(list(Station)), *effects]


def _engine_error(row: Row) -> DiptychError:
    if row.finish is Finish.CANCELLED:
        return Lost("the worker gave the request up")
    return Broken(row.message or "the engine failed on this request")
