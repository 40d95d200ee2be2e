"""Leases from Want to their end, on a clock of the test's own."""

import random

from diptych.core.ids import WorkerId
from diptych.core.phases import Phase
from diptych.router.candidates import SUSPECT_S
from diptych.router.ledger import Entry, Pending, Stage
from diptych.router.messages import (
    DecodeAt,
    Have,
    PrefillAt,
    Progress,
    Queued,
    RefusedBy,
    Resume,
    SkipTo,
    Want,
)
from diptych.router.registry import SILENCE_LIMIT_S
from diptych.router.waiting_room import HANDOFF_WAIT_S, NOBODY_WAIT_S, RETRY_WAIT_S
from diptych.testing.house import House, worker_of

LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)

EVENTS = "want want progress progress again close leave join report".split()  # noqa: SIM905 shorter

NEUTRAL = Entry(Want("r", 1, 1, 1), 1, 0.0)  # avoids nobody


def test_prompts_spread_over_the_workers_by_tokens_in_flight() -> None:
    house = House("prefill-1", "prefill-2", "decode-1")
    first, second, third = house.want(500), house.want(100), house.want(100)
    answers = house.answers()
    assert worker_of(answers[second]) == worker_of(answers[third]) != worker_of(answers[first])


def test_a_decode_worker_is_named_once_the_last_chunk_has_started() -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    lease = house.want()
    house.answers()
    house.progress(lease, Progress(Phase.PREFILL, 4))
    assert house.answers() == {}
    house.progress(lease, LAST_CHUNK)
    assert isinstance(house.answers()[lease], DecodeAt)
    house.progress(lease, LAST_CHUNK)
    assert house.answers() == {}  # said once is enough


def test_rows_spread_over_the_decode_workers() -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    leases = [house.want() for _ in range(4)]
    house.answers()
    for lease in leases:
        house.progress(lease, LAST_CHUNK)
    chosen = [worker_of(answer) for answer in house.answers().values()]
    assert sorted(chosen) == ["decode-1", "decode-1", "decode-2", "decode-2"]


def test_a_hybrid_gets_the_whole_request() -> None:
    house = House("hybrid-1")
    lease = house.want()
    assert isinstance(house.answers()[lease], SkipTo)


def test_who_waits_is_told_its_place_and_is_served_in_order() -> None:
    house = House("prefill-1", "decode-1", slots=1)
    first, second, third = house.want(), house.want(), house.want()
    answers = house.answers()
    assert isinstance(answers[first], PrefillAt)
    waiting = [answers[lease] for lease in (second, third)]
    assert [isinstance(a, Queued) and (a.ahead, a.attempt) for a in waiting] == [(0, 1), (1, 1)]
    house.dispatcher.close(first)
    house.report("prefill-1", free_slots=1)
    answers = house.answers(1)
    assert isinstance(answers[second], PrefillAt)
    assert third not in answers
    assert house.dispatcher.fleet(house.now_s).queued == 1


def test_the_queue_refuses_what_does_not_fit_and_says_when_to_come_back() -> None:
    house = House("prefill-1", "decode-1", slots=1, queue_limit=2)
    house.want()
    house.answers()
    waiting = [house.want() for _ in range(2)]
    refused = house.want()
    answers = house.answers()
    assert all(isinstance(answers[lease], Queued) for lease in waiting)
    answer = answers[refused]
    assert isinstance(answer, RefusedBy)
    assert answer.code == "no_capacity"
    assert answer.retry_after_s >= 1


def test_who_waits_past_its_deadline_is_refused_by_name() -> None:
    house = House("prefill-1", "decode-1", slots=1)
    house.want()
    late = house.want(deadline_s=3)
    house.answers()
    assert house.dispatcher.next_wake_s() == house.now_s + 3
    answer = house.stay_alive(3)[late]
    assert isinstance(answer, RefusedBy)
    assert answer.code == "queue_timeout"


def test_without_any_worker_of_a_role_the_wait_is_short() -> None:
    house = House("prefill-1")
    lease = house.want(deadline_s=600)
    assert isinstance(house.answers()[lease], Queued)
    assert lease not in house.stay_alive(NOBODY_WAIT_S - 1)
    answer = house.stay_alive(1)[lease]
    assert isinstance(answer, RefusedBy)
    assert answer.code == "no_capacity"
    assert "no decode worker" in answer.message


def test_a_worker_that_joins_in_time_serves_those_who_waited() -> None:
    house = House("prefill-1")
    lease = house.want()
    house.answers()
    house.stay_alive(NOBODY_WAIT_S - 2)
    house.join("decode-1")
    assert isinstance(house.answers()[lease], PrefillAt)


def test_after_a_gap_without_workers_the_clock_starts_anew() -> None:
    house = House()
    first = house.want()
    house.answers()
    assert isinstance(house.stay_alive(NOBODY_WAIT_S)[first], RefusedBy)
    house.dispatcher.close(first)
    house.stay_alive(100)
    second = house.want()
    assert isinstance(house.answers()[second], Queued)
    wake_s = house.dispatcher.next_wake_s()
    assert wake_s is not None
    assert wake_s > house.now_s


def test_a_retry_keeps_its_place_avoids_who_failed_and_echoes_its_attempt() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", slots=4)
    lease = house.want(deadline_s=1)
    failed = worker_of(house.answers()[lease])
    house.stay_alive(30)
    house.again(lease, failed, Have.NOTHING)
    answer = house.answers()[lease]
    assert isinstance(answer, PrefillAt)
    assert answer.attempt == 2
    assert answer.rank.worker_id != failed


def test_a_late_again_of_an_older_attempt_changes_nothing() -> None:
    house = House("prefill-1", "decode-1")
    lease = house.want(attempt=3)
    house.answers()
    house.again(lease, "prefill-1", Have.NOTHING, attempt=3)
    assert house.answers() == {}


def test_everybody_avoids_a_worker_that_just_failed_somebody() -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    lease = house.want()
    house.answers()
    house.progress(lease, LAST_CHUNK)
    failed = worker_of(house.answers()[lease])
    house.again(lease, failed, Have.NOTHING)
    others = [house.want(), house.want()]
    house.answers()
    for other in (lease, *others):
        house.progress(other, LAST_CHUNK)
    assert failed not in {worker_of(answer) for answer in house.answers().values()}
    house.stay_alive(SUSPECT_S)
    another = house.want()
    house.answers()
    house.progress(another, LAST_CHUNK)
    assert worker_of(house.answers()[another]) == failed  # and it has the fewest rows


def test_with_its_ticket_alive_a_retry_only_needs_a_decode_worker() -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    lease = house.want()
    house.answers()
    house.progress(lease, LAST_CHUNK)
    failed = worker_of(house.answers()[lease])
    house.again(lease, failed, Have.TICKET)
    answer = house.answers()[lease]
    assert isinstance(answer, DecodeAt)
    assert answer.rank.worker_id != failed


def test_a_ticket_whose_worker_is_gone_is_worth_nothing() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", "decode-2")
    lease = house.want()
    house.leave(worker_of(house.answers()[lease]))
    house.progress(lease, LAST_CHUNK)
    failed = worker_of(house.answers()[lease])
    house.again(lease, failed, Have.TICKET)
    assert isinstance(house.answers()[lease], PrefillAt)


def test_the_only_worker_is_used_again_once_it_reported_after_its_failure() -> None:
    house = House("hybrid-1")
    lease = house.want()
    house.answers()
    house.again(lease, "hybrid-1", Have.NOTHING)
    assert isinstance(house.answers()[lease], Queued)
    house.now_s += 0.5
    house.report("hybrid-1")
    answer = house.answers()[lease]
    assert isinstance(answer, SkipTo)
    assert answer.attempt == 2


def test_a_restarted_worker_is_not_blamed_for_its_former_life() -> None:
    house = House("hybrid-1")
    lease = house.want()
    house.answers()
    house.again(lease, "hybrid-1", Have.NOTHING)
    house.leave("hybrid-1")
    house.now_s += 0.1
    house.join("hybrid-1")
    assert isinstance(house.answers()[lease], SkipTo)


def test_a_silent_worker_is_dropped_with_all_it_carried() -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    lease = house.want()
    house.answers()
    house.progress(lease, LAST_CHUNK)
    silent = worker_of(house.answers()[lease])
    for _ in range(int(SILENCE_LIMIT_S)):
        house.now_s += 1
        for record in house.registry.records():
            if record.join.member_id != silent:
                house.report(record.join.member_id)
        house.answers()
    members = {m.join.member_id: m for m in house.dispatcher.fleet(house.now_s).members}
    assert silent not in members
    assert len(members) == 2
    assert house.dispatcher.ledger.standing(WorkerId(silent)).rows == 0


def test_a_handoff_waits_for_a_row_but_not_for_ever() -> None:
    house = House("prefill-1", "decode-1", slots=4)
    lease = house.want()
    house.answers()
    house.report("decode-1", running=4)  # another router's work
    house.progress(lease, LAST_CHUNK)
    assert house.answers() == {}
    assert house.stay_alive(HANDOFF_WAIT_S - 1) == {}
    answer = house.stay_alive(1)[lease]
    assert isinstance(answer, RefusedBy)
    assert answer.code == "no_capacity"


def test_a_resumed_request_is_counted_and_never_answered() -> None:
    house = House("prefill-1", "decode-1", slots=1)
    resume = Resume(Phase.DECODE, decode_worker=WorkerId("decode-1"), tokens=3)
    house.want(resume=resume)
    assert house.answers() == {}
    assert house.dispatcher.ledger.standing(WorkerId("decode-1")).rows == 1
    waiting = house.want()
    assert isinstance(house.answers()[waiting], Queued)


def test_a_resumed_prompt_goes_on_to_its_decode_worker() -> None:
    house = House("prefill-1", "decode-1")
    resume = Resume(Phase.PREFILL, prefill_worker=WorkerId("prefill-1"))
    lease = house.want(resume=resume, attempt=2)
    house.progress(lease, LAST_CHUNK)
    answer = house.answers()[lease]
    assert isinstance(answer, DecodeAt)
    assert answer.attempt == 2


def test_a_resume_before_its_workers_joined_finds_them_later() -> None:
    house = House()
    resume = Resume(Phase.PREFILL, prefill_worker=WorkerId("prefill-1"))
    lease = house.want(resume=resume)
    house.join("prefill-1")
    house.join("decode-1")
    house.progress(lease, LAST_CHUNK)
    assert isinstance(house.answers()[lease], DecodeAt)


def test_draining_workers_get_nothing_new() -> None:
    house = House("hybrid-1", "hybrid-2")
    house.report("hybrid-1", draining=True)
    leases = [house.want() for _ in range(3)]
    assert {worker_of(house.answers()[lease]) for lease in leases[:1]} == {"hybrid-2"}


def test_the_fleet_says_what_is_missing() -> None:
    house = House("prefill-1")
    fleet = house.dispatcher.fleet(house.now_s)
    assert not fleet.ready
    assert fleet.reasons == ("no decode worker is ready",)
    house.join("decode-1")
    fleet = house.dispatcher.fleet(house.now_s)
    assert fleet.ready
    assert (fleet.model, fleet.namespace) == ("m", b"n")
    assert (fleet.max_model_len, fleet.block_tokens) == (512, 16)


def test_a_retry_after_a_long_run_gets_time_to_wait_again() -> None:
    house = House("hybrid-1", slots=1)
    lease = house.want(deadline_s=20)
    house.answers()
    house.stay_alive(100)
    house.leave("hybrid-1")
    house.again(lease, "hybrid-1", Have.TOKENS)
    assert isinstance(house.answers()[lease], Queued)
    assert house.dispatcher.prompts.next_deadline_s() == house.now_s + RETRY_WAIT_S


def test_whatever_happens_no_lease_is_forgotten_and_nothing_is_left_over() -> None:
    for seed in range(60):
        _live(random.Random(seed))


def _live(chance: random.Random) -> None:
    names = ["prefill-1", "prefill-2", "decode-1", "decode-2", "hybrid-1"]
    house = House(*names[: chance.randint(2, 5)], slots=2, queue_limit=6)
    ledger = house.dispatcher.ledger
    attempts: dict[int, int] = {}
    refused: set[int] = set()
    for _ in range(120):
        alive = [record.join.member_id for record in house.registry.records()]
        event = chance.choice(EVENTS)
        lease = chance.choice(list(attempts)) if attempts else None
        if event == "want":
            attempts[house.want(chance.randint(1, 900), chance.choice([1, 60]))] = 1
        elif event == "progress" and lease:
            house.progress(lease, chance.choice([LAST_CHUNK, Progress(Phase.DECODE, 3)]))
        elif event == "again" and lease:
            attempts[lease] += 1
            refused.discard(lease)
            house.again(lease, chance.choice(names), chance.choice(list(Have)), attempts[lease])
        elif event == "close" and lease:
            house.dispatcher.close(lease)
            del attempts[lease]
        elif event == "leave" and alive:
            house.leave(chance.choice(alive))
        elif event == "join":
            house.join(chance.choice(names), slots=2)
        elif event == "report" and alive:
            house.report(chance.choice(alive), running=chance.randint(0, 2), free_slots=2)
        for answered, answer in house.answers(chance.choice([0, 0.1, 1.5])).items():
            assert answer.attempt == attempts[answered]
            if isinstance(answer, RefusedBy):
                refused.add(answered)
            elif not isinstance(answer, Queued):
                assert house.registry.find(answer.rank.worker_id) is not None
        seen = house.dispatcher._candidates
        as_made = seen.all(NEUTRAL, house.now_s)
        assert as_made == [seen.of(record, None, house.now_s) for record in seen.workers()]
        for lease, entry in ledger.entries.items():
            is_waiting = lease in house.dispatcher.prompts or lease in house.dispatcher.handoffs
            needs_answer = entry.stage in (Stage.WAITING, Stage.HANDOFF)
            assert needs_answer == (is_waiting or lease in refused)
        assert set(ledger.entries) == set(attempts)
        wake_s = house.dispatcher.next_wake_s()
        if len(house.dispatcher.prompts) or len(house.dispatcher.handoffs):
            assert wake_s is not None
            assert wake_s > house.now_s
    for lease in attempts:
        house.dispatcher.close(lease)
    for name in names:
        own = ledger.standing(WorkerId(name)).own
        assert (own.prompts, own.prompt_tokens, own.held, own.rows, own.blocks) == (0, 0, 0, 0, 0)
    assert house.dispatcher.fleet(house.now_s).queued == 0
    assert ledger.pending(b"n") == Pending()
