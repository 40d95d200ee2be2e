"""What is known of workers and pairs, on a clock of the test's own."""

from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.messages import Join, Load
from diptych.router.pairs import BAD_S, KEPT_LIVES, LONGEST_BAD_S, UNTRIED, Pairs

GONE = "0 of 1 blocks arrived from prefill-1 (transfer_silent)"


class Fleet:
    """Pairs of workers that joined and reported."""

    def __init__(self, *workers: str, must_prove: bool = True, steps: int = 0) -> None:
        self.pairs = Pairs(must_prove=must_prove)
        self.ranks: dict[str, Rank] = {}
        for worker in workers:
            self.join(worker, steps=steps)

    def join(self, worker: str, *, life: int = 1, namespace: bytes = b"n", steps: int = 0) -> Rank:
        rank = Rank(WorkerId(worker), f"{worker}:1", Incarnation(life))
        join = Join(
            worker, Role(worker.partition("-")[0]), rank.address, rank.incarnation, namespace
        )
        self.pairs.joined(rank, join)
        self.pairs.heard(rank, Load(steps_total=steps))
        self.ranks[worker] = rank
        return rank

    def worked(self, prefill: str, decode: str, now_s: float = 100.0) -> None:
        self.pairs.worked(self.ranks[prefill], self.ranks[decode], now_s)

    def failed(self, prefill: str, decode: str, now_s: float = 100.0) -> None:
        self.pairs.failed(self.ranks[prefill], self.ranks[decode], GONE, now_s)

    @property
    def ready(self) -> set[str]:
        return set(self.pairs.here) - set(self.pairs.unready)


def test_a_worker_serves_once_kv_went_between_it_and_a_partner() -> None:
    fleet = Fleet("prefill-1", "prefill-2", "decode-1")
    assert fleet.ready == set()
    assert fleet.pairs.unready["decode-1"] == UNTRIED
    fleet.worked("prefill-1", "decode-1")
    assert fleet.ready == {"prefill-1", "decode-1"}
    assert dict(fleet.pairs.states()) == {
        "prefill-1": True, "prefill-2": False, "decode-1": True,
    }  # fmt: skip


def test_without_a_partner_that_is_the_reason() -> None:
    fleet = Fleet("prefill-1")
    fleet.join("decode-1", namespace=b"other")
    assert fleet.pairs.unready == {
        "prefill-1": "no decode worker of the same weights, layout and numerics",
        "decode-1": "no prefill worker of the same weights, layout and numerics",
    }


def test_a_hybrid_needs_nobody_to_serve_and_may_be_a_partner() -> None:
    fleet = Fleet("hybrid-1", "prefill-1")
    fleet.pairs.worked_alone(fleet.ranks["hybrid-1"])
    assert fleet.ready == {"hybrid-1"}
    fleet.worked("prefill-1", "hybrid-1")
    assert fleet.ready == {"hybrid-1", "prefill-1"}
    fleet.failed("prefill-1", "hybrid-1")
    assert fleet.ready == {"hybrid-1"}


def test_p10_the_reason_says_what_did_not_arrive() -> None:
    fleet = Fleet("prefill-1", "decode-1")
    fleet.failed("prefill-1", "decode-1")
    assert fleet.pairs.unready == {
        "prefill-1": f"canary: decode-1: {GONE}",
        "decode-1": f"canary: {GONE}",
    }


def test_f25_a_bad_pair_costs_neither_worker_its_place_while_it_has_another() -> None:
    fleet = Fleet("prefill-1", "prefill-2", "decode-1", "decode-2")
    for prefill, decode in (("prefill-1", "decode-1"), ("prefill-2", "decode-2")):
        fleet.worked(prefill, decode)
    fleet.failed("prefill-1", "decode-1")
    assert len(fleet.ready) == 4
    assert fleet.pairs.bad_partners(WorkerId("prefill-1")) == ("decode-1",)
    assert fleet.pairs.bad_partners(WorkerId("decode-1")) == ("prefill-1",)
    assert fleet.pairs.touched == {"prefill-1", "decode-1"}
    assert fleet.pairs.num_bad == 1
    fleet.failed("prefill-2", "decode-1")  # all its partners: it is the one
    assert fleet.ready == {"prefill-1", "prefill-2", "decode-2"}
    assert fleet.pairs.has_partner(WorkerId("prefill-1"))
    fleet.worked("prefill-2", "decode-1")
    assert len(fleet.ready) == 4


def test_a_mark_lasts_longer_each_time_and_success_ends_it() -> None:
    fleet = Fleet("prefill-1", "decode-1", must_prove=False)
    now_s, lasted = 100.0, []
    for _ in range(7):
        fleet.failed("prefill-1", "decode-1", now_s)
        until_s = fleet.pairs.next_expiry_s()
        assert until_s is not None
        lasted.append(until_s - now_s)
        fleet.pairs.expire(until_s - 0.1)
        assert fleet.pairs.num_bad == 1
        fleet.pairs.expire(until_s)
        assert fleet.pairs.num_bad == 0
        now_s = until_s
    assert lasted[:2] == [BAD_S, 2 * BAD_S]
    assert lasted[-1] == LONGEST_BAD_S
    fleet.worked("prefill-1", "decode-1", now_s)
    fleet.failed("prefill-1", "decode-1", now_s)
    assert fleet.pairs.next_expiry_s() == now_s + BAD_S


def test_where_nothing_must_be_proven_marks_alone_make_nobody_unready() -> None:
    fleet = Fleet("prefill-1", "decode-1", must_prove=False)
    fleet.failed("prefill-1", "decode-1")
    assert fleet.pairs.unready == {}


def test_another_life_has_proven_nothing_and_the_same_one_keeps_what_it_has() -> None:
    fleet = Fleet("prefill-1", "decode-1")
    fleet.worked("prefill-1", "decode-1")
    fleet.pairs.left(WorkerId("decode-1"))
    assert fleet.ready == set()
    fleet.join("decode-1")
    assert fleet.ready == {"prefill-1", "decode-1"}
    fleet.join("decode-1", life=2)
    assert fleet.ready == {"prefill-1"}


def test_f10_who_worked_before_the_router_came_serves_until_something_speaks_against_it() -> None:
    fleet = Fleet("prefill-1", "prefill-2", "decode-1", "decode-2", steps=7)
    fleet.join("decode-3")
    assert fleet.ready == {"prefill-1", "prefill-2", "decode-1", "decode-2"}
    fleet.worked("prefill-1", "decode-1")
    assert {"prefill-2", "decode-2"} < fleet.ready
    fleet.failed("prefill-1", "decode-2")
    assert "decode-2" in fleet.ready
    fleet.failed("prefill-2", "decode-2")
    assert "decode-2" not in fleet.ready


def test_steps_that_came_of_canaries_earn_no_trust() -> None:
    fleet = Fleet("prefill-1", "decode-1")
    fleet.pairs.heard(fleet.ranks["prefill-1"], Load(steps_total=9))
    fleet.join("prefill-1", steps=9)
    assert fleet.ready == set()


def test_lives_of_workers_that_are_away_are_not_kept_for_ever() -> None:
    fleet = Fleet("prefill-1")
    for number in range(KEPT_LIVES + 10):
        fleet.join(f"decode-{number}")
        fleet.worked("prefill-1", f"decode-{number}")
        fleet.pairs.left(WorkerId(f"decode-{number}"))
    assert len(fleet.pairs.known) == KEPT_LIVES
    assert fleet.pairs.life(fleet.ranks["decode-0"]) is None
