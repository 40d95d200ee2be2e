"""What the end of an attempt says of workers, on a clock of the test's own."""

from diptych.core.ids import WorkerId
from diptych.core.phases import Phase
from diptych.router.admission import POISON
from diptych.router.messages import DecodeAt, Have, PrefillAt, Progress, Queued, RefusedBy
from diptych.router.waiting_room import NOBODY_WAIT_S
from diptych.testing.house import House, worker_of

LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)


def at_decode(house: House, lease: int) -> str:
    """Let the prompt be computed where it is; the decode worker that takes it over."""
    house.progress(lease, LAST_CHUNK)
    return worker_of(house.answers_to(lease))


def test_f25_a_pair_that_cannot_talk_is_avoided_and_nobody_is_blamed() -> None:
    house = House("prefill-1", "prefill-2", "decode-1", "decode-2", slots=100)
    lease = house.want()
    prefill = worker_of(house.answers_to(lease))
    decode = at_decode(house, lease)
    house.again(lease, decode, Have.TOKENS, 2, "kv_not_fetched", "Lost", partner=prefill)
    again = house.answers_to(lease)
    assert isinstance(again, PrefillAt)
    assert again.rank.worker_id != prefill  # the request tries another one
    assert house.dispatcher.breakers.num_open(house.now_s) == 0
    house.dispatcher.close(lease)
    served = set()
    for _ in range(40):
        other = house.want()
        served.add((worker_of(house.answers_to(other)), at_decode(house, other)))
    assert (prefill, decode) not in served
    assert {name for pair in served for name in pair} == {
        *("prefill-1", "prefill-2", "decode-1", "decode-2"),
    }


def test_f25_a_ticket_that_nobody_else_may_fetch_is_computed_again_elsewhere() -> None:
    house = House("prefill-1", "prefill-2", "decode-1")
    lease = house.want()
    prefill = worker_of(house.answers_to(lease))
    at_decode(house, lease)
    house.again(lease, "decode-1", Have.TICKET, 2, "pairing_refused", "Refused", partner=prefill)
    again = house.answers_to(lease)
    assert isinstance(again, PrefillAt)
    assert again.rank.worker_id != prefill


def test_f25_a_ticket_goes_to_a_decode_worker_that_can_fetch_it() -> None:
    house = House("prefill-1", "decode-1", "decode-2")
    lease = house.want()
    house.answers()
    decode = at_decode(house, lease)
    house.again(lease, decode, Have.TICKET, 2, "pairing_refused", "Refused", partner="prefill-1")
    again = house.answers_to(lease)
    assert isinstance(again, DecodeAt)
    assert again.rank.worker_id != decode


def test_without_proofs_the_only_pair_is_tried_again_after_a_sign_of_life() -> None:
    house = House("prefill-1", "decode-1")
    lease = house.want()
    house.answers()
    at_decode(house, lease)
    house.again(lease, "decode-1", Have.TOKENS, 2, "kv_not_fetched", "Lost", partner="prefill-1")
    assert isinstance(house.answers_to(lease), Queued)
    house.now_s += 0.5
    house.report("prefill-1")
    assert isinstance(house.answers_to(lease), PrefillAt)


def test_a_request_whose_kv_came_over_proves_the_pair() -> None:
    house = House("prefill-1", "decode-1", must_prove=True)
    for name in ("prefill-1", "decode-1"):
        house.report(name, steps_total=3)  # they worked before the router came
    lease = house.want()
    house.answers()
    at_decode(house, lease)
    house.progress(lease, Progress(Phase.DECODE, 1))
    assert dict(house.pairs.states()) == {"prefill-1": True, "decode-1": True}


def test_p10_requests_wait_for_workers_that_have_proven_nothing_and_not_for_ever() -> None:
    house = House("prefill-1", "decode-1", must_prove=True)
    house.stay_alive(1)
    lease = house.want(deadline_s=600)
    assert isinstance(house.answers_to(lease), Queued)
    fleet = house.dispatcher.fleet(house.now_s)
    assert not fleet.ready
    assert fleet.reasons == (
        "decode-1: canary: none has come through yet",
        "prefill-1: canary: none has come through yet",
    )
    assert [m.ready for m in fleet.members] == [False, False]
    assert lease not in house.stay_alive(NOBODY_WAIT_S - 1)
    answer = house.stay_alive(1)[lease]
    assert isinstance(answer, RefusedBy) and answer.code == "no_capacity"
    assert answer.message == "no worker is proven yet"
    waits = house.want()
    house.answers()
    house.pairs.worked(house.rank("prefill-1"), house.rank("decode-1"), house.now_s)
    assert isinstance(house.answers_to(waits), PrefillAt)


def test_f21_engines_that_fail_on_a_request_are_deaths_though_they_live() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1")
    lease = house.want(fingerprint=b"f")
    first = worker_of(house.answers_to(lease))
    house.again(lease, first, Have.NOTHING, 2, "internal_error", "Broken")
    second = worker_of(house.answers_to(lease))
    house.stay_alive(1)
    house.again(lease, second, Have.NOTHING, 3, "internal_error", "Broken")
    answer = house.answers_to(lease)
    assert isinstance(answer, RefusedBy) and answer.code == POISON
    assert house.dispatcher.blocked.left_s(b"f", house.now_s) > 0


def test_f21_a_worker_that_is_heard_after_its_link_broke_has_not_died() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1")
    lease = house.want(fingerprint=b"f")
    first = worker_of(house.answers_to(lease))
    house.again(lease, first, Have.NOTHING, 2, "worker_lost", "Lost")
    second = worker_of(house.answers_to(lease))
    house.stay_alive(1)
    house.again(lease, second, Have.NOTHING, 3, "worker_lost", "Lost")
    assert isinstance(house.answers_to(lease), PrefillAt)
    assert house.dispatcher.blocked.left_s(b"f", house.now_s) == 0


def test_f21_two_workers_that_die_are_poison_also_while_their_records_linger() -> None:
    house = House("prefill-1", "prefill-2", "prefill-3", "decode-1")
    lease = house.want(fingerprint=b"f")
    for attempt in (2, 3):
        failed = worker_of(house.answers_to(lease))
        house.now_s += 0.2
        house.again(lease, failed, Have.NOTHING, attempt, "worker_lost", "Lost")
    answer = house.answers_to(lease)
    assert isinstance(answer, RefusedBy) and answer.code == POISON
    assert house.pairs.bad_partners(WorkerId("decode-1")) == ()


def test_f18_p8_workers_that_may_not_be_paired_are_refused_with_that_reason() -> None:
    house = House("prefill-1", must_prove=True)
    house.join("decode-1", namespace=b"other")
    lease = house.want(deadline_s=600)
    house.answers()
    answer = house.stay_alive(NOBODY_WAIT_S)[lease]
    assert isinstance(answer, RefusedBy) and answer.code == "no_capacity"
    assert answer.message.startswith("prefill and decode workers may not be paired")
    assert house.dispatcher.fleet(house.now_s).reasons == (
        "prefill and decode workers may not be paired: other weights, layout or numerics",
        "decode-1: no prefill worker of the same weights, layout and numerics",
        "prefill-1: no decode worker of the same weights, layout and numerics",
    )
