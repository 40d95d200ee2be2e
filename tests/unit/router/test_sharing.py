"""Ledgers of several routers: together they know what is carried, and count nothing twice."""

import io
from dataclasses import replace

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Phase
from diptych.router import decisions
from diptych.router.admission import BLOCK_S, POISON
from diptych.router.costs import DEFAULTS
from diptych.router.decisions import Decision, Recorder
from diptych.router.ledger import REPORTS, Carried, Entry, Ledger, Pending, Share, Stage
from diptych.router.messages import (
    DecodeAt,
    Load,
    PrefillAt,
    Progress,
    Queued,
    RefusedBy,
    Want,
)
from diptych.router.policy import QUEUED_MS
from diptych.router.sharing import Sharing
from diptych.testing.house import House, worker_of

WORKERS = [WorkerId(name) for name in ("prefill-1", "prefill-2", "decode-1", "decode-2")]
P, _, D, _ = WORKERS
NUM_BLOCKS = 10_000
LIVES = [Incarnation(n) for n in (1, 2, 3)]
LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)


def entry(prompt_len: int = 100, **fields: object) -> Entry:
    want = Want("r", prompt_len=prompt_len, max_new=29, deadline_s=1)
    made = Entry(want=want, attempt=1, arrived_s=0.0, block_tokens=16, namespace=b"n")
    return replace(made, **fields)


entries = st.one_of(
    st.builds(
        entry,
        st.integers(1, 300),
        stage=st.sampled_from([Stage.PREFILL, Stage.HANDOFF]),
        prefill=st.sampled_from(WORKERS[:2]),
        work_us=st.integers(0, 10**6),
    ),
    st.builds(
        entry,
        st.integers(1, 300),
        stage=st.just(Stage.DECODE),
        decode=st.sampled_from(WORKERS[2:]),
        is_decoding=st.just(True),
        new_tokens=st.integers(0, 20),
    ),
)


class Platform:
    """Three routers, and workers that hold exactly what the routers have placed."""

    def __init__(self) -> None:
        self.ledgers = {life: Ledger() for life in LIVES}
        self.leases = 0

    def carried(self, worker: WorkerId) -> Carried:
        whole = Carried()
        for ledger in self.ledgers.values():
            whole.add(ledger.standing(worker).own, +1)
        return whole

    def open(self, life: Incarnation, new: Entry) -> None:
        if life in self.ledgers:
            self.leases += 1
            self.ledgers[life].open(self.leases, new)

    def share(self) -> None:
        for life, ledger in self.ledgers.items():
            told = Share(life, {w: replace(c) for w, c in ledger.own()}, ledger.own_pending())
            for other, theirs in self.ledgers.items():
                if other != life:
                    theirs.take_share(told)

    def report(self) -> None:
        for worker in WORKERS:
            carried = self.carried(worker)
            load = Load(
                running=carried.rows,
                waiting=carried.held,
                free_blocks=NUM_BLOCKS - carried.blocks,
            )
            for ledger in self.ledgers.values():
                ledger.report(worker, load, NUM_BLOCKS)

    def die(self, life: Incarnation) -> None:
        """A router is gone; gateways open its leases again at another one."""
        orphans = self.ledgers.pop(life).entries.values()
        for ledger in self.ledgers.values():
            ledger.drop_share(life)
        heir = min(self.ledgers)
        for orphan in orphans:
            self.open(heir, orphan)

    def check(self) -> None:
        """Every router sees the whole, and no more than that."""
        for ledger in self.ledgers.values():
            for worker in WORKERS:
                carried, standing = self.carried(worker), ledger.standing(worker)
                assert standing.rows == carried.rows
                assert standing.blocks == carried.blocks
                assert standing.prompts == carried.prompts
                assert standing.held == carried.held
                assert standing.context == carried.context
                assert standing.foreign_prompts == 0  # nobody is a stranger
            every = [e for other in self.ledgers.values() for e in other.entries.values()]
            coming = [e.blocks for e in every if e.stage is not Stage.DECODE]
            assert ledger.pending(b"n") == Pending(len(coming), sum(coming))


steps = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(LIVES), entries),
    st.tuples(st.just("close"), st.sampled_from(LIVES), st.integers(0, 5)),
    st.tuples(st.just("share"), st.none(), st.none()),
    st.tuples(st.just("report"), st.none(), st.none()),
    st.tuples(st.just("die"), st.sampled_from(LIVES), st.none()),
)


@settings(deadline=None, max_examples=60)  # a busy machine is no error
@given(st.lists(steps, max_size=40))
def test_each_router_sees_what_all_carry_and_counts_nothing_twice(steps: list[tuple]) -> None:
    platform = Platform()
    for what, life, more in steps:
        match what:
            case "open":
                platform.open(life, more)
            case "close" if life in platform.ledgers:
                open_ones = list(platform.ledgers[life].entries)
                if open_ones:
                    platform.ledgers[life].close(open_ones[more % len(open_ones)])
            case "share":
                platform.share()
            case "report":
                platform.report()
            case "die" if life in platform.ledgers and len(platform.ledgers) > 1:
                platform.die(life)
    platform.share()
    platform.report()
    platform.check()


def test_when_a_router_is_gone_reports_have_taken_over_and_its_heirs_count_once() -> None:
    platform = Platform()
    first, second, _ = LIVES
    for _ in range(6):
        platform.open(first, entry(stage=Stage.DECODE, decode=D, is_decoding=True))
    for _ in range(REPORTS):
        platform.share()
        platform.report()
    other = platform.ledgers[second]
    assert other.standing(D).foreign_rows == 6
    other.drop_share(first)  # it is not heard, and lives: its rows are still there
    assert (other.standing(D).rows, other.standing(D).context) == (6, 0)
    platform.die(first)
    platform.report()
    assert other.standing(D).rows == 6


def test_a_stranger_is_counted_besides_those_who_tell() -> None:
    ledger = Ledger()
    ledger.open(1, entry(stage=Stage.DECODE, decode=D))
    ledger.take_share(Share(LIVES[0], {D: Carried(rows=2, context=70, blocks=9)}))
    for _ in range(REPORTS):
        ledger.report(D, Load(running=5, free_blocks=60), num_blocks=100)
    standing = ledger.standing(D)
    assert (standing.rows, standing.foreign_prompts) == (5, 2)
    assert standing.blocks == 40
    ledger.take_share(Share(LIVES[0], {D: Carried(rows=3, context=70, blocks=9)}))
    assert standing.rows == 5  # until reports say otherwise, the new row is one of those seen


def test_a_worker_that_is_gone_takes_what_others_said_of_it_along() -> None:
    ledger = Ledger()
    ledger.take_share(Share(LIVES[0], {D: Carried(rows=2), P: Carried(held=1)}))
    ledger.forget(D)
    assert ledger.standing(D).rows == 0
    ledger.take_share(Share(LIVES[0], {P: Carried(held=2)}))
    assert (ledger.standing(D).rows, ledger.standing(P).held) == (0, 2)
    ledger.drop_share(LIVES[0])
    assert ledger.standing(P).held == 0


# Choices


def exchange(*houses: House) -> None:
    """Every router tells every other one."""
    told = [Sharing(house.dispatcher, life) for house, life in zip(houses, LIVES, strict=False)]
    for sharing, house in zip(told, houses, strict=True):
        for other, to in zip(told, houses, strict=True):
            if other is not sharing:
                other.heard(sharing.mine(house.now_s), to.now_s)


def test_a_router_gives_no_more_to_a_worker_that_another_keeps_busy() -> None:
    one, other = House("prefill-1", "decode-1", slots=64), House("prefill-1", "decode-1", slots=64)
    for _ in range(4):
        one.want(900)
    one.answers()
    [given_ms] = one.dispatcher.chooser.given_ms(one.now_s)
    assert given_ms > QUEUED_MS
    exchange(one, other)
    late = other.want(900)
    assert isinstance(other.answers()[late], Queued)
    assert other.dispatcher.chooser.given_ms(other.now_s) == [given_ms]
    other.report("prefill-1")
    answer = other.answers(0.05)[late]  # what is left of their work runs down by itself
    assert isinstance(answer, PrefillAt)


def test_rows_that_another_router_will_ask_for_are_spoken_for() -> None:
    one, other = House("prefill-1", "decode-1", slots=2), House("prefill-1", "decode-1", slots=2)
    leases = [one.want(), one.want()]
    assert all(isinstance(answer, PrefillAt) for answer in one.answers().values())
    exchange(one, other)
    late = other.want()
    assert isinstance(other.answers()[late], Queued)
    for lease in leases:
        one.progress(lease, LAST_CHUNK)
    assert all(isinstance(answer, DecodeAt) for answer in one.answers().values())
    exchange(one, other)
    assert late not in other.answers()
    one.dispatcher.close(leases[0])
    exchange(one, other)
    assert isinstance(other.answers()[late], PrefillAt)


def test_f21_a_prompt_that_killed_workers_of_one_router_is_refused_by_all() -> None:
    one, other = House("prefill-1", "decode-1"), House("prefill-1", "decode-1")
    one.dispatcher.blocked.add(b"poison", one.now_s)
    exchange(one, other)
    exchange(one, other)  # what was learned is not told on
    refused = other.answers_to(other.want(fingerprint=b"poison"))
    assert isinstance(refused, RefusedBy) and refused.code == POISON
    assert isinstance(other.answers_to(other.want(fingerprint=b"fine")), PrefillAt)
    assert other.dispatcher.blocked.own(other.now_s) == {}
    other.stay_alive(BLOCK_S)
    assert isinstance(other.answers_to(other.want(fingerprint=b"poison")), PrefillAt)


def test_routers_do_not_draw_alike() -> None:
    chosen = []
    for seed in (1, 2):
        drawn: list[Decision] = []
        house = House("hybrid-1", "hybrid-2", "hybrid-3", on_decision=drawn.append, seed=seed)
        house.want()
        house.answers()
        chosen.append(drawn[0].ask.draw)
    assert chosen[0] != chosen[1]


def test_an_index_that_is_wrong_is_found_out_whoever_places() -> None:
    """A worker reports the hits of all routers' prompts: half of the promised ones, here."""
    houses = [House("prefill-1", "decode-1", slots=64) for _ in range(2)]
    exchange(*houses)  # counting begins with the first share
    totals = 0
    for _ in range(60):
        for house in houses:
            house.dispatcher.estimates.expects_hit(P, 1000)
            totals += 500
            for each in houses:
                each.report("prefill-1", hit_tokens_total=totals)
        exchange(*houses)
    for house in houses:
        accuracy = house.dispatcher.estimates.accuracy(P)
        assert accuracy is not None
        assert abs(accuracy - 0.5) < 0.05
        assert not house.dispatcher.estimates.is_trusted(P)


# Staleness


def test_while_a_router_is_not_heard_worse_workers_are_near_enough_and_replay_agrees(
    tmp_path,
) -> None:
    recorder = Recorder(tmp_path / "decisions")
    house = House("hybrid-1", "hybrid-2", slots=64, on_decision=recorder.record)
    sharing = Sharing(house.dispatcher)
    at = []
    for is_stale in (False, True, False):
        sharing.count(num_peers=1, num_stale=int(is_stale))
        sharing.heard(Share(LIVES[0], {WorkerId("hybrid-1"): Carried(work_us=7000)}), house.now_s)
        lease = house.want(prompt_len=10)
        answer = house.answers_to(lease)
        at.append((worker_of(answer), answer.reasons[1]))
        house.dispatcher.close(lease)
    recorder.close()
    recorded = (tmp_path / "decisions").read_bytes()
    assert [reason for _, reason in at] == [
        "the best of 2 with room",
        "2 of 2 within 10 ms of the best",
        "the best of 2 with room",
    ]
    assert at[0][0] == at[2][0] == "hybrid-2"
    assert [line["ask"]["is_stale"] for line in map(orjson.loads, recorded.splitlines())] == [
        False, True, False,
    ]  # fmt: skip
    assert list(decisions.replay(io.BytesIO(recorded))) == [None, None, None]
    assert DEFAULTS.prompt_ms(10, 10) < 50  # or ten milliseconds were no margin
