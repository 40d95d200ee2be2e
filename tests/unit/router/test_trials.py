"""Which canary runs next, on a clock of the test's own."""

from collections.abc import Callable
from itertools import pairwise

from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.messages import Join, Load
from diptych.router.pairs import LAST_RETRY_S, Pairs
from diptych.router.trials import (
    AGAIN_S,
    AT_ONCE,
    BACKGROUND_GAP_S,
    HEDGE_S,
    NEW_TOKENS,
    Blame,
    Job,
    Trials,
    Verdict,
)

OK = Verdict((1, 2, 3, 4))
CUT = Verdict(blame=Blame.PAIR, why="0 of 1 blocks arrived")
Ends = Callable[[str, str], Verdict]


def names(job: Job) -> tuple[str, str]:
    return (job.prefill.worker_id if job.prefill else "", job.decode.worker_id)


class Bench:
    """Trials of workers whose canaries take a while and end as a test says."""

    def __init__(self, *workers: str, **join: object) -> None:
        self.now_s = 100.0
        self.pairs = Pairs(must_prove=True)
        self.trials = Trials(self.pairs)
        self.begun: list[tuple[float, str, str]] = []
        for worker in workers:
            self.join(worker, **join)

    def join(self, worker: str, life: int = 1, **join: object) -> None:
        rank = Rank(WorkerId(worker), f"{worker}:1", Incarnation(life))
        role = Role(worker.partition("-")[0])
        fields = {"namespace": b"n", "block_tokens": 16, "max_model_len": 512, **join}
        self.pairs.joined(rank, Join(worker, role, rank.address, rank.incarnation, **fields))
        self.pairs.heard(rank, Load())

    def due(self) -> list[Job]:
        jobs = self.trials.due(self.now_s)
        self.begun += [(self.now_s, *names(job)) for job in jobs]
        return jobs

    def run(self, until_s: float, ends: Ends = lambda p, d: OK, takes_s: float = 0.1) -> None:
        """Let time pass; every canary takes as long."""
        running: list[tuple[float, Job]] = []
        while True:
            running += [(self.now_s + takes_s, job) for job in self.due()]
            assert len(running) <= AT_ONCE
            times = [at_s for at_s, _ in running]
            next_s = self.trials.next_s(self.now_s)
            times += [next_s] if next_s is not None else []
            if min(times, default=until_s) >= until_s:
                break
            assert min(times) > self.now_s, "it would spin"
            self.now_s = min(times)
            for job in [job for at_s, job in running if at_s <= self.now_s]:
                self.trials.told(job, ends(*names(job)), self.now_s)
            running = [(at_s, job) for at_s, job in running if at_s > self.now_s]
        for _, job in running:
            self.trials.told(job, Verdict(blame=Blame.NOBODY), until_s)
        self.now_s = until_s

    @property
    def ready(self) -> set[str]:
        return set(self.pairs.here) - set(self.pairs.unready)

    @property
    def tried(self) -> list[tuple[str, str]]:
        return [(prefill, decode) for _, prefill, decode in self.begun]


def test_fresh_workers_prove_each_other_two_at_a_time() -> None:
    bench = Bench("prefill-1", "prefill-2", "decode-1", "decode-2")
    assert sorted(map(names, bench.due())) == [("prefill-1", "decode-1"), ("prefill-2", "decode-2")]


def test_sixty_four_by_sixty_four_are_no_storm() -> None:
    many = [f"{role}-{n}" for n in range(64) for role in ("prefill", "decode")]
    bench = Bench(*many)
    bench.run(102.0)
    assert len(bench.ready) == 128  # by 64 canaries of 0.1 s, four at a time: 1.6 s
    proving = len(bench.begun)
    assert 64 <= proving <= 66
    bench.run(112.0)
    assert len(bench.begun) - proving <= 10 / BACKGROUND_GAP_S + 1


def test_all_pairs_are_proven_in_the_end_one_at_a_time_and_anew_after_a_while() -> None:
    bench = Bench("prefill-1", "prefill-2", "decode-1", "decode-2")
    bench.run(110.0)
    every = {(p, d) for p in ("prefill-1", "prefill-2") for d in ("decode-1", "decode-2")}
    assert set(bench.tried) == every
    assert len(bench.begun) == 4
    bench.run(105.0 + AGAIN_S)
    assert len(bench.begun) == 8
    assert set(bench.tried[4:]) == every


def test_who_has_no_partner_or_was_not_heard_is_not_tried() -> None:
    bench = Bench("prefill-1")
    bench.join("decode-1", namespace=b"other")
    rank = Rank(WorkerId("decode-2"), "decode-2:1", Incarnation(1))
    bench.pairs.joined(rank, Join("decode-2", Role.DECODE, rank.address, namespace=b"n"))
    assert bench.due() == []
    bench.pairs.heard(rank, Load(draining=True))
    assert bench.due() == []
    bench.pairs.heard(rank, Load())
    assert list(map(names, bench.due())) == [("prefill-1", "decode-2")]


def test_a_hybrid_is_tried_alone() -> None:
    bench = Bench("hybrid-1")
    assert list(map(names, bench.due())) == [("", "hybrid-1")]
    bench.run(101.0, lambda p, d: OK)


def test_p10_a_worker_that_fetches_from_nobody_is_tried_ever_more_slowly_until_it_can() -> None:
    bench = Bench("prefill-1", "prefill-2", "decode-1", "decode-2")

    def ends(prefill: str, decode: str) -> Verdict:
        return CUT if decode == "decode-1" else OK

    bench.run(400.0, ends)
    assert bench.ready == {"prefill-1", "prefill-2", "decode-2"}
    assert bench.pairs.unready["decode-1"] == "canary: 0 of 1 blocks arrived"
    times = [at_s for at_s, _, decode in bench.begun if decode == "decode-1"]
    gaps = [after - before for before, after in pairwise(times)]
    assert 10 < len(times) < 25
    assert gaps[-1] >= LAST_RETRY_S / 2
    bench.run(400.0 + LAST_RETRY_S + 1)
    assert len(bench.ready) == 4


def test_f25_of_four_workers_one_pair_is_bad_and_all_serve() -> None:
    bench = Bench("prefill-1", "prefill-2", "decode-1", "decode-2")
    bad = ("prefill-1", "decode-1")
    bench.run(130.0, lambda p, d: CUT if (p, d) == bad else OK)
    assert len(bench.ready) == 4
    assert bench.pairs.num_bad == 1


def test_a_worker_whose_canary_takes_long_is_tried_with_another_one() -> None:
    bench = Bench("prefill-1", "decode-1")
    (stuck,) = bench.due()
    bench.join("decode-2")
    assert bench.due() == []  # prefill-1 is busy
    bench.now_s += HEDGE_S
    assert list(map(names, bench.due())) == [("prefill-1", "decode-2")]
    assert bench.trials.told(stuck, OK, bench.now_s) == OK


def test_a_failed_station_is_blamed_alone() -> None:
    bench = Bench("prefill-1", "prefill-2", "decode-1")
    late = Verdict(blame=Blame.PREFILL, why="prefill-1: prefill took longer than 10 s")
    bench.run(102.0, lambda p, d: late if p == "prefill-1" else OK)
    assert bench.ready == {"prefill-2", "decode-1"}
    assert bench.pairs.unready["prefill-1"].endswith("took longer than 10 s")
    assert bench.pairs.num_bad == 0


def test_who_is_busy_says_nothing_and_is_asked_again() -> None:
    bench = Bench("prefill-1", "decode-1")
    bench.run(104.9, lambda p, d: Verdict(blame=Blame.NOBODY, why="decode-1 has no room"))
    assert len(bench.begun) == 5
    assert bench.pairs.unready["decode-1"] == "canary: decode-1 has no room"
    assert bench.pairs.num_bad == 0


def test_other_tokens_than_the_first_are_a_failure_where_engines_promise_equal_ones() -> None:
    def ends(prefill: str, decode: str) -> Verdict:
        return Verdict((1, 2, 9, 9)) if decode == "decode-2" else OK

    bench = Bench("prefill-1", "decode-1", is_deterministic=True)
    bench.run(101.0, ends)
    bench.join("decode-2", is_deterministic=True)
    bench.run(110.0, ends)
    assert bench.ready == {"prefill-1", "decode-1"}
    told = "canary: other tokens than prefill-1 and decode-1"
    assert bench.pairs.unready["decode-2"] == told
    bench.join("decode-3")  # promises nothing
    bench.run(120.0, lambda p, d: Verdict((5,)) if d == "decode-3" else ends(p, d))
    assert "decode-3" in bench.ready


def test_an_answer_that_nobody_here_has_given_is_forgotten() -> None:
    bench = Bench("hybrid-1", is_deterministic=True)
    bench.run(101.0)
    bench.pairs.left(WorkerId("hybrid-1"))
    bench.join("hybrid-2", is_deterministic=True)
    bench.run(102.0, lambda p, d: Verdict((7, 7, 7, 7)))
    assert bench.ready == {"hybrid-2"}
    bench.join("hybrid-3", is_deterministic=True)
    bench.run(103.0)
    assert bench.ready == {"hybrid-2"}


def test_the_prompt_is_a_block_and_a_tail_if_that_fits() -> None:
    for grain, limit, length in ((128, 4096, 192), (16, 512, 24), (128, 100, 100 - NEW_TOKENS)):
        bench = Bench("prefill-1", "decode-1", block_tokens=grain, max_model_len=limit)
        (job,) = bench.due()
        assert job.prompt_len == length


def test_a_verdict_on_a_life_that_is_over_changes_nothing() -> None:
    bench = Bench("prefill-1", "decode-1")
    (job,) = bench.due()
    bench.pairs.left(WorkerId("decode-1"))
    bench.join("decode-1", life=2)
    bench.trials.told(job, OK, bench.now_s)
    assert bench.ready == set()
