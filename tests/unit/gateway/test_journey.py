"""The journey: by example, and against a random world in which everything may fail."""

import random
from dataclasses import dataclass, field

import pytest

from diptych.core.errors import (
    NOT_FETCHED,
    TICKET_GONE,
    BadRequest,
    Broken,
    DiptychError,
    Lost,
    Overloaded,
    Refused,
)
from diptych.core.ids import Incarnation, Key, Rank, WorkerId
from diptych.core.phases import Finish, Phase
from diptych.core.step import Row
from diptych.gateway import events as on
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.events import Effect, Event, Left, Station
from diptych.gateway.journey import MAX_ATTEMPTS, Journey

KEY = Key("r", 1)
LIMITS = Deadlines()


def rank(name: str) -> Rank:
    return Rank(WorkerId(name), f"{name}:1", Incarnation(1))


P1, P2, D1, D2 = map(rank, ("p1", "p2", "d1", "d2"))


def row(*token_ids: int, finish: Finish | None = None, cached: int = 0) -> Row:
    return Row(KEY, token_ids, finish, cached)


def begin(*events: Event, max_new: int = 10) -> Journey:
    journey = Journey(max_new, LIMITS)
    journey.start(0.0)
    for event in events:
        journey.handle(event, 0.0)
    return journey


AT_PREFILL = (on.PlacedPrefill(1, P1), on.Accepted(1, b"ticket"), on.Progressed(1, 5, True))
AT_HANDOFF = (*AT_PREFILL, on.Output(1, Station.PREFILL, row(70, cached=4)))
AT_START = (*AT_HANDOFF, on.PlacedDecode(1, D1), on.Reserved(1))
AT_DECODE = (*AT_START, on.Output(1, Station.DECODE, row(71)))


def test_a_smooth_journey_orders_each_step_once() -> None:
    journey = Journey(3, LIMITS)
    assert journey.start(0.0) == [on.Place(1)]
    steps: list[tuple[Event, list[Effect]]] = [
        (on.PlacedPrefill(1, P1), [on.OpenPrefill(1, P1, (), LIMITS.first_token_s)]),
        (on.Accepted(1, b"t"), []),
        (on.Progressed(1, 9, True), [on.Report(Phase.PREFILL, 9, True)]),
        (on.PlacedDecode(1, D1), [on.Reserve(1, D1, LIMITS.reserve_s)]),
        (on.Reserved(1), []),
        (
            on.Output(1, Station.PREFILL, row(70, cached=4)),
            [
                on.Emit((70,), cached_tokens=4),
                on.Start(1, D1, (70,), b"t", LIMITS.next_token_s),
                on.Report(Phase.HANDOFF, 1),
            ],
        ),
        (
            on.Output(1, Station.DECODE, row(71)),
            [on.Emit((71,), cached_tokens=4), on.Report(Phase.DECODE, 2, False)],
        ),
        (
            on.Output(1, Station.DECODE, row(72, finish=Finish.LENGTH)),
            [on.Emit((72,), cached_tokens=4), on.End(Finish.LENGTH)],
        ),
    ]
    for event, effects in steps:
        assert journey.handle(event, 1.0) == effects
    assert journey.output == [70, 71, 72]
    assert journey.cached_tokens == 4
    assert journey.is_over


def test_a_hybrid_worker_gets_the_prompt_without_a_ticket() -> None:
    journey = begin()
    effects = journey.handle(on.PlacedHybrid(1, D1), 0.0)
    assert effects == [on.Start(1, D1, (), None, LIMITS.first_token_s)]


def test_an_output_of_one_token_asks_for_no_decode_worker() -> None:
    journey = begin(on.PlacedPrefill(1, P1), on.Accepted(1, b"t"), max_new=1)
    assert journey.handle(on.Progressed(1, 9, True), 0.0) == [on.Report(Phase.PREFILL, 9)]
    end = row(70, finish=Finish.LENGTH)
    effects = journey.handle(on.Output(1, Station.PREFILL, end), 0.0)
    assert effects == [on.Emit((70,)), on.End(Finish.LENGTH)]


def test_a_prefill_worker_lost_before_the_first_token_is_replaced() -> None:
    journey = begin(*AT_PREFILL)
    effects = journey.handle(on.Failed(1, Station.PREFILL, Lost("gone")), 0.0)
    assert effects == [
        on.Cancel(1, Station.PREFILL, P1),
        on.Again(2, "p1", "gone", Left.NOTHING, "worker_lost", "Lost"),
    ]
    assert journey.handle(on.PlacedPrefill(1, P2), 0.0) == []
    effects = journey.handle(on.PlacedPrefill(2, P2), 0.0)
    assert effects == [on.OpenPrefill(2, P2, (), LIMITS.first_token_s)]


def test_a_busy_decode_worker_costs_neither_ticket_nor_attempts() -> None:
    journey = begin(*AT_HANDOFF)
    now_s = 0.0
    for attempt in range(1, 20):
        journey.handle(on.PlacedDecode(attempt, D1), now_s)
        busy = on.Failed(attempt, Station.DECODE, Overloaded("full"))
        effects = journey.handle(busy, now_s)
        if attempt > 1:
            assert effects == [on.Cancel(attempt, Station.DECODE, D1)]
            now_s = journey.wake_at
            effects = journey.handle(on.Tick(), now_s)
        assert (
            on.Again(attempt + 1, "d1", "full", Left.TICKET, "no_capacity", "Overloaded") in effects
        )
    journey.handle(on.PlacedDecode(20, D2), now_s)
    effects = journey.handle(on.Reserved(20), now_s)
    assert effects == [on.Start(20, D2, (70,), b"ticket", LIMITS.next_token_s)]


def test_a_ticket_is_renewed_while_it_waits_for_room_and_room_is_not_awaited_for_ever() -> None:
    journey = begin(*AT_HANDOFF)
    renewals = 0
    while not journey.is_over:
        now_s = journey.wake_at
        effects = journey.handle(on.Tick(), now_s)
        renewals += effects.count(on.Renew(1))
    assert renewals == LIMITS.room_s // LIMITS.renew_s
    assert effects[0] == on.Cancel(1, Station.PREFILL, P1)
    assert isinstance(effects[1], on.Fail)
    assert isinstance(effects[1].error, Overloaded)
    assert now_s == LIMITS.room_s


def test_a_decode_worker_lost_before_the_kv_moved_leaves_the_ticket() -> None:
    journey = begin(*AT_HANDOFF, on.PlacedDecode(1, D1))
    effects = journey.handle(on.Failed(1, Station.DECODE, Lost("gone")), 0.0)
    again = on.Again(2, "d1", "gone", Left.TICKET, "worker_lost", "Lost")
    assert effects == [on.Cancel(1, Station.DECODE, D1), again]


def test_a_decode_worker_lost_later_leaves_the_tokens() -> None:
    journey = begin(*AT_DECODE)
    effects = journey.handle(on.Failed(1, Station.DECODE, Lost("gone")), 0.0)
    again = on.Again(2, "d1", "gone", Left.TOKENS, "worker_lost", "Lost")
    assert effects == [on.Cancel(1, Station.DECODE, D1), again]
    effects = journey.handle(on.PlacedPrefill(2, P2), 0.0)
    assert effects == [on.OpenPrefill(2, P2, (70, 71), LIMITS.first_token_s)]


def test_a_ticket_that_is_gone_means_computing_again_and_blames_prefill() -> None:
    journey = begin(*AT_START)
    gone = Lost("lapsed", code=TICKET_GONE)
    effects = journey.handle(on.Failed(1, Station.DECODE, gone), 0.0)
    assert effects[-1] == on.Again(2, "p1", "lapsed", Left.TOKENS, TICKET_GONE, "Lost")
    assert {e for e in effects if isinstance(e, on.Cancel)} == {
        on.Cancel(1, Station.PREFILL, P1),
        on.Cancel(1, Station.DECODE, D1),
    }


def test_f25_kv_that_cannot_be_fetched_names_both_workers_and_is_computed_again() -> None:
    journey = begin(*AT_START)
    silence = Lost("0 of 1 blocks arrived from p1 (transfer_silent)", code=NOT_FETCHED)
    effects = journey.handle(on.Failed(1, Station.DECODE, silence), 0.0)
    again = on.Again(2, "d1", silence.message, Left.TOKENS, NOT_FETCHED, "Lost", "p1")
    assert effects[-1] == again
    for event in (
        on.PlacedPrefill(2, P2),
        on.Accepted(2, b"t"),
        on.Output(2, Station.PREFILL, row(71)),
        on.PlacedDecode(2, D1),
        on.Reserved(2),
    ):
        journey.handle(event, 1.0)
    effects = journey.handle(on.Failed(2, Station.DECODE, silence), 1.0)
    assert effects[-1] == on.Again(3, "d1", silence.message, Left.TOKENS, NOT_FETCHED, "Lost", "p2")


def test_f18_a_pair_that_refuses_each_other_names_both_and_keeps_the_ticket() -> None:
    journey = begin(*AT_START)
    refused = Refused("p1 serves another model, layout or numerics than we do")
    effects = journey.handle(on.Failed(1, Station.DECODE, refused), 0.0)
    assert effects[-1] == on.Again(
        2, "d1", refused.message, Left.TICKET, "pairing_refused", "Refused", "p1"
    )


def test_a_refusal_before_the_hand_over_is_the_decode_workers_own() -> None:
    journey = begin(*AT_HANDOFF, on.PlacedDecode(1, D1))
    refused = Refused("d1:1 is d2 now")
    effects = journey.handle(on.Failed(1, Station.DECODE, refused), 0.0)
    assert effects[-1] == on.Again(
        2, "d1", refused.message, Left.TICKET, "pairing_refused", "Refused"
    )


def test_f21_an_engine_that_fails_on_a_request_is_told_by_its_class() -> None:
    journey = begin(*AT_DECODE)
    failed = row(finish=Finish.ERROR)
    effects = journey.handle(on.Output(1, Station.DECODE, failed), 0.0)
    assert isinstance(effects[-1], on.Again)
    assert (effects[-1].code, effects[-1].kind) == ("internal_error", "Broken")


def test_three_lost_workers_are_enough() -> None:
    journey = begin()
    for attempt in range(1, MAX_ATTEMPTS + 1):
        journey.handle(on.PlacedPrefill(attempt, P1), 0.0)
        lost = Lost(f"loss {attempt}")
        effects = journey.handle(on.Failed(attempt, Station.PREFILL, lost), 0.0)
    assert effects == [on.Cancel(3, Station.PREFILL, P1), on.Fail(lost)]


def test_a_ticket_that_went_with_a_lost_decode_worker_is_not_a_second_loss() -> None:
    journey = begin(*AT_START)
    journey.handle(on.Failed(1, Station.DECODE, Lost("one")), 0.0)
    journey.handle(on.PlacedDecode(2, D2), 0.0)
    journey.handle(on.Reserved(2), 0.0)
    journey.handle(on.Failed(2, Station.DECODE, Lost("lapsed", code=TICKET_GONE)), 0.0)
    journey.handle(on.PlacedPrefill(3, P2), 0.0)
    effects = journey.handle(on.Failed(3, Station.PREFILL, Lost("two")), 0.0)
    assert on.Again(4, "p2", "two", Left.TOKENS, "worker_lost", "Lost") in effects


def test_a_router_that_knows_the_ticket_is_gone_places_the_prompt_anew() -> None:
    journey = begin(*AT_HANDOFF, on.PlacedDecode(1, D1))
    journey.handle(on.Failed(1, Station.DECODE, Lost("gone")), 0.0)
    effects = journey.handle(on.PlacedPrefill(2, P2), 0.0)
    assert effects == [
        on.Cancel(1, Station.PREFILL, P1),
        on.OpenPrefill(2, P2, (70,), LIMITS.first_token_s),
    ]


def test_what_the_caller_did_wrong_is_not_tried_again() -> None:
    journey = begin(on.PlacedPrefill(1, P1))
    wrong = BadRequest("too long")
    effects = journey.handle(on.Failed(1, Station.PREFILL, wrong), 0.0)
    assert effects == [on.Cancel(1, Station.PREFILL, P1), on.Fail(wrong)]


def test_after_a_loss_a_client_hears_within_seconds_that_there_is_no_other() -> None:
    journey = begin(*AT_DECODE)
    journey.handle(on.Failed(1, Station.DECODE, Lost("gone")), 100.0)
    assert journey.wake_at <= 100.0 + LIMITS.replace_s
    (effect,) = journey.handle(on.Tick(), 100.0 + LIMITS.replace_s)
    assert isinstance(effect, on.Fail)
    assert effect.error.code == "worker_lost"


def test_a_queue_without_end_ends() -> None:
    journey = begin()
    (effect,) = journey.handle(on.Tick(), LIMITS.queue_s)
    assert isinstance(effect, on.Fail)
    assert effect.error.code == "queue_timeout"


def test_a_running_request_survives_its_router_and_registers_anew() -> None:
    journey = begin(*AT_DECODE)
    for _ in range(30):
        assert journey.handle(on.LeaseEnded(Lost("router")), 0.0) == []
        effects = journey.handle(on.Tick(), journey.wake_at)
    assert effects == [on.Place(1, Phase.DECODE, P1.worker_id, D1.worker_id, 2)]


def test_a_request_that_waits_for_a_decode_worker_asks_the_new_router() -> None:
    journey = begin(*AT_HANDOFF, on.LeaseEnded(Lost("router")))
    effects = journey.handle(on.Tick(), journey.wake_at)
    assert effects == [
        on.Place(1, Phase.HANDOFF, P1.worker_id, None, 1),
        on.Report(Phase.PREFILL, 0, True),
    ]


def test_a_queued_request_without_a_router_fails_in_time() -> None:
    journey = begin()
    now_s = 0.0
    while not journey.is_over:
        effects = journey.handle(on.LeaseEnded(Lost("router")), now_s)
        now_s = journey.wake_at
        effects = journey.handle(on.Tick(), now_s)
    assert now_s <= LIMITS.router_s
    assert isinstance(effects[-1], on.Fail)


def test_f10_who_waits_in_the_queue_of_a_new_router_waits_for_no_router() -> None:
    journey = begin(on.LeaseEnded(Lost("router")))
    now_s = journey.wake_at
    assert journey.handle(on.Tick(), now_s) == [on.Place(1)]
    assert journey.handle(on.LeaseOpened(), now_s) == []
    assert journey.wake_at == LIMITS.queue_s > now_s + LIMITS.router_s
    assert journey.handle(on.PlacedPrefill(1, P1), LIMITS.queue_s - 1)


def test_a_refusal_of_the_router_is_the_answer() -> None:
    full = Overloaded("full", retry_after_s=3)
    assert begin().handle(on.LeaseEnded(full), 0.0) == [on.Fail(full)]


@pytest.mark.parametrize("events", [AT_PREFILL, AT_DECODE])
def test_f21_a_router_that_knows_a_prompt_as_poison_ends_it_at_once(
    events: tuple[Event, ...],
) -> None:
    journey = begin(*events)
    station = Station.DECODE if events is AT_DECODE else Station.PREFILL
    journey.handle(on.Failed(1, station, Lost("died of it")), 0.0)
    poison = Broken("its worker died twice", code="poison_request")
    assert journey.handle(on.LeaseEnded(poison), 0.0) == [on.Fail(poison)]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((), set()),
        (AT_PREFILL, {Station.PREFILL}),
        ((*AT_PREFILL, on.PlacedDecode(1, D1)), {Station.PREFILL, Station.DECODE}),
        (AT_START, {Station.PREFILL, Station.DECODE}),
        (AT_DECODE, {Station.DECODE}),
    ],
)
def test_a_client_that_leaves_is_forgotten_at_every_station(
    events: tuple[Event, ...], told: set[Station]
) -> None:
    effects = begin(*events).handle(on.Enough(), 0.0)
    assert all(isinstance(effect, on.Cancel) for effect in effects)
    assert {e.station for e in effects if isinstance(e, on.Cancel)} == told


@dataclass
class Worker:
    """A station of the random world: who it knows, and what it was forced through."""

    name: str
    station: Station
    is_alive: bool = True
    is_frozen: bool = False  # computes nothing, and is taken for dead
    known: dict[int, list[int]] = field(default_factory=dict)  # attempt -> output so far
    running: set[int] = field(default_factory=set)


class World:
    """Token i of the right answer is i. Everything else is chance."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.now_s = 0.0
        self.max_new = dice.randrange(1, 9)
        self.journey = Journey(self.max_new, LIMITS)
        self.workers = [Worker(n, Station.PREFILL) for n in ("p1", "p2")]
        self.workers += [Worker(n, Station.DECODE) for n in ("d1", "d2")]
        self.calls: list[Effect] = []  # on their way to a worker, in order
        self.heard: list[Event] = []  # on their way to the gateway
        self.emitted: list[int] = []
        self.ends: list[Effect] = []
        self.places = 0
        self.is_hybrid = dice.random() < 0.3
        self.has_router = True

    def worker(self, rank: Rank) -> Worker:
        return next(w for w in self.workers if w.name == rank.worker_id)

    def holder(self, station: Station, attempt: int) -> Worker | None:
        return next((w for w in self.workers if w.station is station and attempt in w.known), None)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case on.Emit(token_ids):
                    assert not self.ends
                    self.emitted += token_ids
                case on.End() | on.Fail():
                    self.ends.append(effect)
                case on.Place(attempt) | on.Again(attempt):
                    self.place(attempt, effect)
                case on.Report(_, _, True):
                    self.offer_decode(self.journey.attempt)
                case on.OpenPrefill() | on.Reserve() | on.Start() | on.Cancel() | on.Renew():
                    self.calls.append(effect)

    def place(self, attempt: int, effect: Effect) -> None:
        self.places += 1
        knows = self.dice.random() < 0.2  # that the ticket is gone
        if isinstance(effect, on.Again) and effect.left is Left.TICKET and not knows:
            self.offer_decode(attempt)
        elif isinstance(effect, on.Place) and effect.phase is not None:
            return
        elif self.is_hybrid:
            self.heard.append(on.PlacedHybrid(attempt, rank(self.dice.choice(("d1", "d2")))))
        else:
            self.heard.append(on.PlacedPrefill(attempt, rank(self.dice.choice(("p1", "p2")))))

    def offer_decode(self, attempt: int) -> None:
        self.heard.append(on.PlacedDecode(attempt, rank(self.dice.choice(("d1", "d2")))))

    def arrive(self, effect: Effect) -> None:
        """A call reaches its worker."""
        match effect:
            case on.OpenPrefill(attempt, at, forced):
                worker = self.worker(at)
                if not worker.is_alive:
                    self.fail(attempt, Station.PREFILL, Lost("dead"))
                elif self.dice.random() < 0.1:
                    self.fail(attempt, Station.PREFILL, Overloaded("full"))
                else:
                    worker.known[attempt] = list(forced)
                    worker.running.add(attempt)
                    self.heard.append(on.Accepted(attempt, b"%d" % attempt))
            case on.Reserve(attempt, at):
                worker = self.worker(at)
                if not worker.is_alive:
                    self.fail(attempt, Station.DECODE, Lost("dead"))
                elif self.dice.random() < 0.3:
                    self.fail(attempt, Station.DECODE, Overloaded("full"))
                else:
                    worker.known[attempt] = []
                    self.heard.append(on.Reserved(attempt))
            case on.Start(attempt, at, forced, ticket):
                self.begin_decode(attempt, self.worker(at), forced, ticket)
            case on.Renew(attempt):
                if self.holder(Station.PREFILL, attempt) is None:
                    self.heard.append(on.Lapsed(attempt))
            case on.Cancel(attempt, _, at):
                self.worker(at).known.pop(attempt, None)
                self.worker(at).running.discard(attempt)

    def begin_decode(
        self, attempt: int, worker: Worker, forced: tuple[int, ...], ticket: bytes | None
    ) -> None:
        if not worker.is_alive or (ticket is not None and attempt not in worker.known):
            return self.fail(attempt, Station.DECODE, Lost("died since"))
        if ticket is not None:
            source = self.holder(Station.PREFILL, int(ticket))
            if source is None or self.dice.random() < 0.05:
                worker.known.pop(attempt)
                code = self.dice.choice((TICKET_GONE, NOT_FETCHED))
                return self.fail(attempt, Station.DECODE, Lost("gone", code=code))
            source.known.pop(int(ticket))  # Commit
            source.running.discard(int(ticket))
        worker.known[attempt] = list(forced)
        worker.running.add(attempt)
        return None

    def fail(self, attempt: int, station: Station, error: DiptychError) -> None:
        self.heard.append(on.Failed(attempt, station, error))

    def step(self, worker: Worker) -> None:
        """One engine step."""
        if worker.is_frozen:
            return
        for attempt in sorted(worker.running):
            output = worker.known[attempt]
            count = 1 if worker.station is Station.PREFILL else self.dice.randrange(1, 3)
            new = list(range(len(output), min(self.max_new, len(output) + count)))
            output += new
            finish = Finish.LENGTH if len(output) == self.max_new else None
            if worker.station is Station.PREFILL:
                if self.dice.random() < 0.7:
                    self.heard.append(on.Progressed(attempt, 3, True))
                worker.running.discard(attempt)  # held
            sampled = Row(Key("r", attempt), tuple(new), finish)
            self.heard.append(on.Output(attempt, worker.station, sampled))
            if finish:
                worker.known.pop(attempt)
                worker.running.discard(attempt)

    def kill(self, worker: Worker) -> None:
        worker.is_alive = False
        for attempt in worker.known:
            self.fail(attempt, worker.station, Lost("died"))
        worker.known.clear()
        worker.running.clear()

    def freeze(self, worker: Worker) -> None:
        """It falls silent: whoever waits for it gives up, and it goes on when it wakes."""
        worker.is_frozen = True
        for attempt in worker.known:
            self.fail(attempt, worker.station, Lost("silent"))

    def hear(self) -> Event:
        """Events of one call come in order; those of different calls, in any."""
        line = line_of(self.dice.choice(self.heard))
        return self.heard.pop(next(i for i, e in enumerate(self.heard) if line_of(e) == line))

    def act(self) -> Event | None:
        """Let chance choose what happens next; an event that reaches the gateway, or nothing."""
        choice = self.dice.random()
        if choice < 0.35 and self.heard:
            return self.hear()
        if choice < 0.6 and self.calls:
            self.arrive(self.calls.pop(0))
        elif choice < 0.84:
            self.step(self.dice.choice(self.workers))
        elif choice < 0.86:
            self.kill(self.dice.choice(self.workers))
        elif choice < 0.87:
            self.freeze(self.dice.choice(self.workers))
        elif choice < 0.91:
            woken = self.dice.choice(self.workers)
            woken.is_alive, woken.is_frozen = True, False
        elif choice < 0.913:
            return on.LeaseOpened()
        elif choice < 0.915:
            return on.LeaseEnded(self.dice.choice([Lost("router"), Overloaded("no")]))
        elif choice < 0.92:
            return on.Enough()
        elif choice < 0.93 and self.heard and not isinstance(self.heard[0], on.Output):
            self.heard.append(self.heard[0])  # said twice
        else:
            self.now_s = max(self.now_s, self.journey.wake_at)
            return on.Tick()
        return None


def line_of(event: Event) -> tuple[str, int]:
    """The call that an event comes from."""
    match event:
        case on.Output(attempt, station) | on.Failed(attempt, station):
            return station, attempt
        case on.Accepted(attempt) | on.Progressed(attempt) | on.Lapsed(attempt):
            return Station.PREFILL, attempt
        case on.Reserved(attempt):
            return Station.DECODE, attempt
    return "router", 0


@pytest.mark.parametrize("block", range(8))
def test_whatever_happens_it_ends_once_with_the_right_tokens_and_nobody_left_behind(
    block: int,
) -> None:
    endings = set()
    for case in range(500):
        world = World(random.Random(f"journey {block} {case}"))
        world.perform(world.journey.start(0.0))
        left = False
        for _ in range(20_000):
            event = world.act()
            if event is None:
                continue
            left = left or event == on.Enough()
            world.perform(world.journey.handle(event, world.now_s))
            if world.journey.is_over:
                break
            assert world.journey.wake_at - world.now_s <= LIMITS.queue_s  # no wait without an end
        assert world.journey.is_over
        assert len(world.ends) == (0 if left else 1)
        assert world.emitted == list(range(len(world.emitted)))
        assert world.emitted == world.journey.output
        for end in world.ends:
            endings.add(type(end))
            if isinstance(end, on.End):
                assert len(world.emitted) == world.max_new
        for late in list(world.heard):
            assert world.journey.handle(late, world.now_s) == []
        while world.calls:
            world.arrive(world.calls.pop(0))
        assert [w.name for w in world.workers if w.known] == []
    assert endings == {on.End, on.Fail}
