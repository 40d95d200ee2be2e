"""The dispatcher under the faults of other people's routers: rows of the failure matrix."""

import random
import re

import pytest

from diptych.core.ids import BlockHash, Incarnation
from diptych.core.phases import Phase
from diptych.router.admission import BLOCK_S, DEATH, OPEN_S, POISON, RETRY_FLOOR, TRIP_AFTER
from diptych.router.costs import Costs
from diptych.router.messages import (
    BlockChanges,
    DecodeAt,
    Have,
    PrefillAt,
    Progress,
    Queued,
    RefusedBy,
    SkipTo,
)
from diptych.router.registry import SILENCE_LIMIT_S
from diptych.testing.house import House, worker_of

LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)
FIRST_TOKEN = Progress(Phase.DECODE, 1)


def blocks(*numbers: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(n.to_bytes(16, "little")) for n in numbers)


def announce(house: House, worker: str, *numbers: int) -> None:
    record = house.registry.find(worker)
    assert record is not None
    change = BlockChanges(0, blocks(*numbers), (True,) * len(numbers))
    life = record.join.incarnation
    assert house.dispatcher.announced(worker, life, change) is None


def finish(house: House, lease: int) -> None:
    house.progress(lease, FIRST_TOKEN)
    house.dispatcher.close(lease)


# Balance


def test_a_prompt_goes_where_its_beginning_is_cached() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1", slots=64)
    announce(house, "prefill-1", 9)
    announce(house, "prefill-2", *range(1, 31))
    announce(house, "prefill-3", 1, 2)
    chosen = set()
    for _ in range(6):
        lease = house.want(500, hashes=blocks(*range(1, 32)))
        chosen.add(worker_of(house.answers()[lease]))
        house.dispatcher.close(lease)
    assert chosen == {"prefill-2"}


def test_an_equal_prompt_follows_before_anything_is_announced() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1", slots=64)
    for worker in ("prefill-1", "prefill-2", "prefill-3"):
        announce(house, worker)
    prompt = blocks(*range(1, 63))
    first = worker_of(house.answers_to(house.want(1000, hashes=prompt)))
    house.now_s += 0.04  # it should be nearly computed
    busy = {f"prefill-{i}" for i in (1, 2, 3)} - {first}
    for worker in busy:
        house.report(worker, waiting=2)  # another router's
    answer = house.answers_to(house.want(1000, hashes=prompt))
    assert worker_of(answer) == first
    assert isinstance(answer, PrefillAt)
    assert "504 of 1000 tokens" in answer.reasons[0]  # half of what is expected there
    house.now_s += 6.0  # nothing came of it
    answer = house.answers_to(house.want(1000, hashes=prompt))
    assert isinstance(answer, PrefillAt)
    assert "1000 of 1000 tokens" in answer.reasons[0]


def test_those_who_wait_for_a_busy_holder_hold_up_nobody_else() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", slots=64)
    held = blocks(*range(1, 63))
    announce(house, "prefill-1", *held_numbers())
    announce(house, "prefill-2", 99)
    leases = [house.want(1000, hashes=held) for _ in range(12)]
    answers = house.answers()
    at = [worker_of(answers[n]) for n in leases if isinstance(answers[n], PrefillAt)]
    assert "prefill-1" in at
    stranger = house.want(10, hashes=())
    answers |= house.answers()
    assert isinstance(answers[stranger], PrefillAt | Queued)
    for _ in range(100):
        for worker in ("prefill-1", "prefill-2"):
            house.report(worker)
        answers |= house.answers(0.1)
    assert all(isinstance(answers[lease], PrefillAt) for lease in (*leases, stranger))


def held_numbers() -> range:
    return range(1, 63)


def test_r13_a_worker_that_announces_nothing_is_flagged_and_chosen_by_its_load() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", slots=64)
    announce(house, "prefill-1", 1)
    announce(house, "decode-1", 1)
    assert house.dispatcher.chooser.load_only() == ["prefill-2"]
    busy = [house.want(800, hashes=blocks(2)) for _ in range(2)]
    answers = house.answers()
    assert {worker_of(answers[lease]) for lease in busy} == {"prefill-1", "prefill-2"}


def test_an_index_that_is_wrong_about_a_worker_stops_counting() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", slots=64)
    announce(house, "prefill-1", *range(1, 63))
    announce(house, "prefill-2", 99)
    computed = []
    for _ in range(24):  # what the index promises is never there
        lease = house.want(1000, hashes=blocks(*range(1, 63)))
        answer = house.answers()[lease]
        assert isinstance(answer, PrefillAt)
        computed.append(answer.reasons[0].rpartition(" for ")[2])
        house.progress(lease, LAST_CHUNK)
        house.answers()
        finish(house, lease)
        house.report("prefill-1")
    assert computed[0].startswith("8 of 1000 tokens")
    assert dict(house.dispatcher.chooser.accuracies())["prefill-1"] < 0.7
    assert computed[-1].startswith("1000 of 1000 tokens")


def test_a_worker_gets_no_more_than_a_little_work_ahead() -> None:
    house = House("prefill-1", "decode-1", slots=64)
    leases = [house.want(900) for _ in range(10)]
    answers = house.answers()
    given = [lease for lease in leases if isinstance(answers[lease], PrefillAt)]
    assert len(given) == 3  # 38 ms each, until 100 ms are queued
    house.progress(given[0], LAST_CHUNK)
    assert not any(isinstance(a, PrefillAt) for a in house.answers().values())  # it is computed now
    following = house.answers(0.04)
    assert sum(isinstance(a, PrefillAt) for a in following.values()) == 1


def test_a_prompt_that_is_done_does_not_hide_the_one_computed_behind_it() -> None:
    house = House("prefill-1", "decode-1", slots=64)
    first, second = house.want(900), house.want(900)
    house.answers()
    for lease in (first, second):  # each is a single chunk
        house.progress(lease, LAST_CHUNK)
    house.answers(0.03)
    house.progress(first, FIRST_TOKEN)
    given_ms = house.dispatcher.chooser.given_ms(house.now_s)
    assert given_ms[0] > 30
    house.progress(second, FIRST_TOKEN)
    assert house.dispatcher.chooser.given_ms(house.now_s) == [0.0]


# Overload


def test_who_would_wait_longer_than_its_class_is_refused_at_once_and_told_when_to_return() -> None:
    house = House("prefill-1", "decode-1", slots=64, queue_limit=1000)
    leases = [house.want(200_000, 30, priority_class="interactive") for _ in range(5)]
    answers = house.answers()
    assert isinstance(answers[leases[0]], PrefillAt)
    refused = answers[leases[-1]]
    assert isinstance(refused, RefusedBy)
    assert refused.code == "no_capacity"
    assert re.search(r"first token is expected in 3\d s; 30 s are left", refused.message)
    assert refused.retry_after_s >= 1
    waiting = [answers[lease] for lease in leases if isinstance(answers[lease], Queued)]
    assert waiting
    assert all(answer.predicted_s <= 30 for answer in waiting if isinstance(answer, Queued))


def test_batch_waits_where_interactive_would_be_refused_and_lets_it_pass() -> None:
    house = House("prefill-1", "decode-1", slots=64, queue_limit=1000)
    batch = [house.want(9_000, 600, priority_class="batch") for _ in range(4)]
    assert isinstance(house.answers()[batch[0]], PrefillAt)
    urgent = house.want(100, 600, priority_class="interactive")
    assert isinstance(house.answers()[urgent], Queued)
    house.dispatcher.close(batch[0])
    house.report("prefill-1", free_slots=64)
    assert isinstance(house.answers()[urgent], PrefillAt)


def test_a_tenants_flood_does_not_hold_up_another_tenant() -> None:
    house = House("prefill-1", "decode-1", slots=64)
    flood = [house.want(5000, tenant="many") for _ in range(20)]
    house.answers()
    other = house.want(5000, tenant="few")
    house.answers()
    house.dispatcher.close(flood[0])
    second = house.answers()
    for lease in second:
        house.dispatcher.close(lease)
    third = house.answers()
    assert other in {**second, **third}


# Faults


def test_r1_prompts_that_are_too_long_open_no_breaker_and_close_none() -> None:
    house = House("hybrid-1", "hybrid-2")
    for _ in range(10):  # the worker refuses them: no Again, no progress, the stream just ends
        lease = house.want()
        house.answers()
        house.dispatcher.close(lease)
    assert house.dispatcher.breakers.num_open(house.now_s) == 0
    lease = house.want()
    assert isinstance(house.answers_to(lease), SkipTo)
    finish(house, lease)
    tripping = trip(house)
    house.stay_alive(OPEN_S)  # half open
    for _ in range(10):
        lease = house.want()
        house.answers()
        house.dispatcher.close(lease)
    assert house.dispatcher.breakers.trips_total == 1
    good = [house.want() for _ in range(4)]
    answers = house.answers()
    assert {worker_of(answers[lease]) for lease in good} == {"hybrid-1", "hybrid-2"}
    assert tripping == "hybrid-1"


def trip(house: House) -> str:
    """Let requests of hybrid-1 fail in a row."""
    failures = 0
    while failures < TRIP_AFTER:
        lease = house.want()
        if worker_of(house.answers_to(lease)) == "hybrid-1":
            house.again(lease, "hybrid-1", Have.NOTHING, code="upstream_timeout")
            failures += 1
            house.dispatcher.close(lease)
            house.stay_alive(2.1)
        else:
            finish(house, lease)
    return "hybrid-1"


def test_a_worker_that_is_only_busy_does_not_trip_its_breaker() -> None:
    house = House("hybrid-1")
    lease = house.want()
    for attempt in range(2, 12):
        house.stay_alive(3)
        house.again(lease, "hybrid-1", Have.NOTHING, attempt, code="no_capacity")
    assert house.dispatcher.breakers.num_open(house.now_s) == 0


def test_r10_a_worker_that_has_started_again_does_not_pay_for_its_former_life() -> None:
    house = House("prefill-1", "decode-1")
    leases = [house.want() for _ in range(TRIP_AFTER)]
    house.answers()
    for lease in leases:
        house.progress(lease, LAST_CHUNK)
    assert all(isinstance(answer, DecodeAt) for answer in house.answers().values())
    house.leave("decode-1")
    for lease in leases:  # gateways tell it a moment later
        house.again(lease, "decode-1", Have.TICKET, code=DEATH)
    assert house.answers() == {}
    house.now_s += 0.1
    house.join("decode-1")
    answers = house.answers()
    assert {worker_of(answers[lease]) for lease in leases} == {"decode-1"}
    assert house.dispatcher.breakers.num_open(house.now_s) == 0


def test_r2_a_worker_that_falls_silent_is_out_within_five_seconds_and_the_others_serve() -> None:
    house = House("hybrid-1", "hybrid-2", "hybrid-3", slots=64)
    given = [house.want() for _ in range(30)]
    first = house.answers()
    stuck = [lease for lease in given if worker_of(first[lease]) == "hybrid-1"]
    silent_s = 0.0
    while house.registry.find("hybrid-1") is not None:
        silent_s += 0.5
        house.now_s += 0.5
        for name in ("hybrid-2", "hybrid-3"):
            house.report(name)
        house.answers()
    assert silent_s <= SILENCE_LIMIT_S
    for lease in stuck:
        house.again(lease, "hybrid-1", Have.NOTHING, code=DEATH)
    moved = house.answers()
    later = [house.want() for _ in range(20)]
    moved |= house.answers()
    assert {worker_of(moved[lease]) for lease in (*stuck, *later)} == {"hybrid-2", "hybrid-3"}


def test_f6_f7_who_lost_a_worker_waits_for_a_row_and_not_for_the_pace_of_its_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    slow = Costs(step_ms=10.0, row_ms=30.0)  # two rows break the promise of 60 ms a token
    monkeypatch.setattr(house.dispatcher.estimates, "costs", lambda worker, role: slow)
    first, second, third = (house.want(priority_class="interactive") for _ in range(3))
    assert house.answers().keys() == {first, second, third}
    for lease in (first, second, third):
        house.progress(lease, LAST_CHUNK)
    assert house.answers().keys() == {first, second}  # the third waits
    dead = house.dispatcher.ledger.entries[first].decode
    assert dead is not None
    house.leave(dead)
    house.again(first, dead, Have.TICKET, code=DEATH)
    answers = house.answers()
    assert answers.keys() == {first}
    assert worker_of(answers[first]) == house.dispatcher.ledger.entries[second].decode
    house.dispatcher.close(first)
    house.dispatcher.close(second)
    assert isinstance(house.answers()[third], DecodeAt)


def test_r3_r5_without_any_report_the_routers_own_ledger_decides_and_says_so() -> None:
    """60 s without reports: nobody is taken for full, nor for idle."""
    house = House("prefill-1", "prefill-2", "decode-1", "decode-2", slots=8)
    for second in range(60):
        house.now_s += 1.0
        leases = [house.want(500) for _ in range(4)]
        answers = house.answers()
        placed = [answers[lease] for lease in leases]
        assert all(isinstance(answer, PrefillAt) for answer in placed), second
        names = [worker_of(answer) for answer in placed]
        assert names.count("prefill-1") == names.count("prefill-2")
        for lease in leases:
            house.progress(lease, LAST_CHUNK)
        rows = house.answers()
        assert all(isinstance(rows[lease], DecodeAt) for lease in leases)
        for lease in leases:
            finish(house, lease)
    assert house.registry.is_blind
    wake_s = house.dispatcher.next_wake_s()
    assert wake_s is not None
    assert wake_s > house.now_s  # it does not spin
    for record in house.registry.records():
        house.report(record.join.member_id)
    house.answers()
    assert not house.registry.is_blind


def test_f21_a_request_whose_worker_dies_twice_is_refused_and_its_prompt_blocked() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1")
    lease = house.want(fingerprint=b"poison")
    for attempt in (2, 3):
        dead = worker_of(house.answers()[lease])
        house.leave(dead)
        house.again(lease, dead, Have.NOTHING, attempt, code=DEATH)
    answer = house.answers()[lease]
    assert isinstance(answer, RefusedBy)
    assert answer.code == POISON
    assert len(house.registry.records()) == 2  # one worker is left for all others
    house.dispatcher.close(lease)
    same = house.want(fingerprint=b"poison")
    answer = house.answers()[same]
    assert isinstance(answer, RefusedBy)
    assert (answer.code, round(answer.retry_after_s)) == (POISON, round(BLOCK_S))
    assert isinstance(house.answers_to(house.want(fingerprint=b"other")), PrefillAt)
    house.stay_alive(BLOCK_S)
    assert isinstance(house.answers_to(house.want(fingerprint=b"poison")), PrefillAt)


def test_deaths_in_different_phases_or_of_workers_told_to_go_are_no_poison() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1", "decode-2")
    lease = house.want()
    house.again(lease, worker_of(house.answers()[lease]), Have.NOTHING, 2, code=DEATH)
    house.stay_alive(0.1)
    draining = worker_of(house.answers_to(house.want()))
    house.report(draining, draining=True)
    house.again(lease, draining, Have.NOTHING, 3, code=DEATH)
    house.progress(lease, LAST_CHUNK)
    answers = house.stay_alive(3)
    assert lease not in answers or not isinstance(answers[lease], RefusedBy)


def test_retries_beyond_the_budget_are_refused_and_running_outputs_are_not() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", slots=1000, queue_limit=1000)
    codes = []
    for _ in range(int(RETRY_FLOOR) + 20):
        lease = house.want()
        house.answers()
        house.again(lease, "prefill-9", Have.NOTHING, 2, code="upstream_timeout")
        answer = house.answers().get(lease)
        codes.append(answer.code if isinstance(answer, RefusedBy) else "")
        house.dispatcher.close(lease)
    assert codes[: int(RETRY_FLOOR)] == [""] * int(RETRY_FLOOR)
    assert codes[-1] == "no_capacity"
    lease = house.want()
    house.answers()
    house.again(lease, "prefill-9", Have.TOKENS, 2, code=DEATH)
    assert not isinstance(house.answers().get(lease), RefusedBy)


def test_r10_requests_that_live_through_constant_joining_and_leaving_all_end() -> None:
    """1,536 requests while a worker comes or goes every second; each ends inside its deadline."""
    chance = random.Random("r10")
    house = House("prefill-1", "prefill-2", "decode-1", "decode-2", slots=16, queue_limit=2000)
    names = [f"{role}-{i}" for role in ("prefill", "decode") for i in range(1, 5)]
    stages: dict[int, str] = {}
    deadline: dict[int, float] = {}
    attempts: dict[int, int] = {}
    ended = refused = opened = 0
    for second in range(400):
        alive = [record.join.member_id for record in house.registry.records()]
        if chance.random() < 0.5 and len(alive) > 2:
            gone = chance.choice(alive)
            house.leave(gone)
            for lease, stage in list(stages.items()):
                if stage.endswith(gone):
                    attempts[lease] += 1
                    house.again(lease, gone, Have.NOTHING, attempts[lease], code=DEATH)
                    stages[lease] = "waiting"
        else:
            house.join(chance.choice(names), slots=16)
        while opened < min(1536, 8 * second):
            lease = house.want(chance.randint(10, 500), 20, tenant=chance.choice("abc"))
            stages[lease], attempts[lease] = "waiting", 1
            deadline[lease] = house.now_s + 20 + 10 + 60
            opened += 1
        for record in house.registry.records():
            house.report(record.join.member_id, running=0, free_slots=16)
        for lease, answer in house.answers(1.0).items():
            if isinstance(answer, RefusedBy):
                refused += 1
                house.dispatcher.close(lease)
                del stages[lease]
            elif isinstance(answer, PrefillAt):
                stages[lease] = f"prefill at {answer.rank.worker_id}"
            elif isinstance(answer, DecodeAt):
                stages[lease] = f"decode at {answer.rank.worker_id}"
        for lease, stage in list(stages.items()):
            if stage.startswith("prefill"):
                house.progress(lease, LAST_CHUNK)
                stages[lease] = f"handoff from {stage.rpartition(' ')[2]}"
            elif stage.startswith("decode"):
                finish(house, lease)
                del stages[lease]
                ended += 1
            else:
                assert house.now_s < deadline[lease], f"lease {lease} hangs: {stage}"
        if opened == 1536 and not stages:
            break
    assert ended + refused == 1536
    assert ended > 500
    assert not house.dispatcher.ledger.entries
    assert len(house.dispatcher.prompts) == len(house.dispatcher.handoffs) == 0


def test_f10_a_new_router_learns_blocks_from_snapshots_and_counts_running_requests() -> None:
    house = House("prefill-1", "prefill-2", "decode-1")
    record = house.registry.find("prefill-2")
    assert record is not None
    snapshot = BlockChanges(
        777, blocks(*range(1, 31)), is_snapshot=True, is_first=True, is_last=True
    )
    announce(house, "prefill-1", 50)
    assert house.dispatcher.announced("prefill-2", Incarnation(2), snapshot) is None
    lease = house.want(500, hashes=blocks(*range(1, 32)))
    assert worker_of(house.answers()[lease]) == "prefill-2"
    assert house.dispatcher.index.gaps_total == 0
