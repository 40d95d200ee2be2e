"""Whom the policy chooses."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.costs import Costs
from diptych.router.ledger import Pending
from diptych.router.policy import (
    NEAR_MS,
    NEAR_RATIO,
    QUEUED_MS,
    SKIP_TOKENS,
    Ask,
    Candidate,
    Choice,
    Wait,
    Why,
    choose_decode,
    choose_prefill,
    find_path,
)


def worker(name: str, role: Role, namespace: bytes = b"n", **fields: object) -> Candidate:
    free = Candidate(
        rank=Rank(WorkerId(name), f"{name}:1", Incarnation(1)),
        role=role,
        namespace=namespace,
        block_tokens=16,
        num_slots=8,
        num_blocks=100,
        free_slots=8,
        free_blocks=100,
    )
    return replace(free, **fields)


def prefill(name: str, **fields: object) -> Candidate:
    return worker(name, Role.PREFILL, **fields)


def decode(name: str, **fields: object) -> Candidate:
    return worker(name, Role.DECODE, **fields)


def nothing_pending(namespace: bytes) -> Pending:
    return Pending()


def place_prompt(
    *candidates: Candidate, prompt_len: int = 10, pending: int = 0, **fields: object
) -> Choice | Wait:
    ask = Ask(prompt_len, 10, **fields)
    return choose_prefill(candidates, ask, lambda namespace: Pending(pending, pending))


def place_answer(*candidates: Candidate, prompt_len: int = 10, **fields: object) -> Choice | Wait:
    return choose_decode(candidates, b"n", Ask(prompt_len, 1, **fields))


def chosen(outcome: Choice | Wait) -> str:
    assert isinstance(outcome, Choice), outcome
    return outcome.rank.worker_id


candidate_lists = st.lists(
    st.builds(
        worker,
        st.text("abcdef", min_size=1, max_size=3),
        st.sampled_from([Role.PREFILL, Role.DECODE, Role.HYBRID]),
        st.sampled_from([b"n", b"m"]),
        prompts=st.integers(0, 3),
        queue_ms=st.floats(0, 500),
        rows=st.integers(0, 8),
        blocks=st.integers(0, 100),
        free_slots=st.integers(0, 8),
        free_blocks=st.integers(0, 100),
        last_assigned=st.integers(0, 9),
        has_failed=st.booleans(),
        is_back=st.booleans(),
    ),
    max_size=8,
)


@settings(deadline=None)  # a busy machine is no error
@given(candidate_lists, st.integers(1, 800), st.integers(1, 800), st.integers(0, 2**64 - 1))
def test_a_prompt_goes_to_somebody_with_room_and_an_answer_can_follow(
    candidates: list[Candidate], prompt_len: int, max_new: int, draw: int
) -> None:
    choice = choose_prefill(candidates, Ask(prompt_len, max_new, draw=draw), nothing_pending)
    if isinstance(choice, Wait):
        return
    takers = [c for c in candidates if c.rank == choice.rank and c.role is choice.role]
    assert choice.reasons
    assert choice.role in (Role.PREFILL, Role.HYBRID)
    assert any(c.queue_ms < QUEUED_MS for c in takers)
    if choice.role is Role.PREFILL:
        partners = [c for c in candidates if c.role in (Role.DECODE, Role.HYBRID)]
        assert {c.namespace for c in takers} & {c.namespace for c in partners}


def decode_ms(c: Candidate, prompt_len: int) -> float:
    """The formula of serving a token sequence of 128, written again."""
    costs = c.costs
    gap_ms = costs.step_ms + costs.row_ms * (c.rows + 1)
    gap_ms += costs.context_ms * (c.context + prompt_len)
    more_ms = costs.row_ms + costs.context_ms * prompt_len
    fetching_ms = costs.fetch_ms + costs.fetch_token_ms * prompt_len
    return fetching_ms + 128 * gap_ms + c.rows * 64 * more_ms


@settings(deadline=None)  # a busy machine is no error
@given(candidate_lists, st.integers(1, 1600), st.integers(0, 2**64 - 1))
def test_an_answer_goes_near_the_cheapest_of_its_own_namespace(
    candidates: list[Candidate], prompt_len: int, draw: int
) -> None:
    able = [c for c in candidates if c.role in (Role.DECODE, Role.HYBRID) and c.namespace == b"n"]
    trusted = [c for c in able if not c.has_failed]
    pool = trusted or [c for c in able if c.is_back]
    fits = [
        c
        for c in pool
        if c.rows < c.num_slots and (c.rows == 0 or c.blocks + -(-prompt_len // 16) <= c.num_blocks)
    ]
    choice = place_answer(*candidates, prompt_len=prompt_len, draw=draw)
    if not fits:
        assert isinstance(choice, Wait)
        assert (choice.why is Why.NOBODY) == (not able)
    else:
        assert isinstance(choice, Choice)
        best_ms = min(decode_ms(c, prompt_len) for c in fits)
        limit_ms = best_ms + max(NEAR_MS, NEAR_RATIO * best_ms) + 1e-6  # a little wide
        takers = [c for c in fits if c.rank == choice.rank]
        assert any(decode_ms(c, prompt_len) <= limit_ms for c in takers)


@given(st.integers(2, 9), st.integers(0, 2**64 - 1))
def test_of_two_equals_drawn_the_one_with_less_in_flight_is_taken(count: int, draw: int) -> None:
    workers = [prefill(f"p{i}", prompts=1, queue_ms=i / 10) for i in range(count)]
    number = int(chosen(place_prompt(*workers, decode("d"), draw=draw))[1:])
    first, second = draw % count, draw // count % (count - 1)
    assert number == min(first, second + (second >= first))


def test_all_equals_get_their_share_of_the_draws() -> None:
    workers = [prefill(f"p{i}") for i in range(5)]
    outcomes = [place_prompt(*workers, decode("d"), draw=d * 7919) for d in range(500)]
    names = [chosen(outcome) for outcome in outcomes]
    assert min(names.count(f"p{i}") for i in range(4)) > 10  # the last loses every tie by name


def test_a_cached_prefix_wins_until_the_queue_there_costs_more() -> None:
    held = {"a": 16_000.0}
    room = {"num_blocks": 0, "num_slots": 0}
    idle = prefill("b", **room)
    for queue_ms, expected in ((0.0, "a"), (99.0, "a")):
        busy = prefill("a", prompts=1, queue_ms=queue_ms, **room)
        outcome = place_prompt(busy, idle, decode("d"), prompt_len=20_000, held=held)
        assert chosen(outcome) == expected
    few = {"a": 1_000.0}  # worth 31 ms
    busy = prefill("a", prompts=1, queue_ms=99.0, **room)
    outcome = place_prompt(busy, idle, decode("d"), prompt_len=1_500, held=few)
    assert chosen(outcome) == "b"


def test_what_the_tier_holds_is_fetched_so_a_holder_matters_little() -> None:
    """A thirty-fifth of the weight: a queue of a few milliseconds turns the choice."""
    room = {"num_blocks": 0, "num_slots": 0}
    held = {"a": 16_000.0}
    busy = prefill("a", prompts=1, queue_ms=60.0, **room)
    workers = (busy, prefill("b", **room), decode("d"))
    alone = place_prompt(*workers, prompt_len=17_000, held=held)
    shared = place_prompt(*workers, prompt_len=17_000, held=held, shared=16_000)
    assert (chosen(alone), chosen(shared)) == ("a", "b")


def test_what_the_tier_has_on_disk_takes_longer_to_fetch() -> None:
    room = {"num_blocks": 0, "num_slots": 0}

    def expected_ms(**ask: int) -> float:
        outcome = place_prompt(prefill("a", **room), decode("d"), prompt_len=17_000, **ask)
        assert isinstance(outcome, Choice)
        assert "for 1000 of 17000 tokens" in outcome.reasons[0]
        return outcome.expected_ms

    costs = Costs()
    memory, disk = expected_ms(shared=16_000), expected_ms(shared=16_000, on_disk=16_000)
    assert disk - memory == pytest.approx(16_000 * costs.disk_token_ms)
    half = expected_ms(shared=16_000, on_disk=8_000)
    assert half == pytest.approx((memory + disk) / 2)
    # Of what is held already nothing is fetched, and the tail is what lies on disk.
    holder = {"held": {"a": 8_000.0}, "shared": 16_000}
    outcomes = [
        place_prompt(prefill("a", **room), decode("d"), prompt_len=17_000, on_disk=n, **holder)
        for n in (0, 8_000, 16_000)
    ]
    assert all(isinstance(outcome, Choice) for outcome in outcomes)
    none, tail, all_of_it = (o.expected_ms for o in outcomes if isinstance(o, Choice))
    assert tail == all_of_it == pytest.approx(none + 8_000 * costs.disk_token_ms)


def test_a_prompt_waits_for_a_busy_worker_that_will_still_be_done_sooner() -> None:
    room = {"num_blocks": 0, "num_slots": 0}
    holder, other = prefill("a", prompts=3, queue_ms=120.0, **room), prefill("b", **room)
    ask = {"prompt_len": 20_000, "held": {"a": 19_900.0}}
    outcome = place_prompt(holder, other, decode("d"), **ask)
    assert isinstance(outcome, Wait)
    assert (outcome.why, outcome.worker) == (Why.WORTH_IT, "a")
    assert outcome.work_ms < 20
    assert chosen(place_prompt(holder, other, decode("d"), **ask, may_wait=False)) == "b"
    promised = {"a": 600.0}  # to others who wait for it
    assert chosen(place_prompt(holder, other, decode("d"), **ask, promised_ms=promised)) == "b"


def test_a_new_prompt_meets_its_equals_wherever_nobody_holds_a_block() -> None:
    workers = [prefill(f"p{i}") for i in range(6)]
    first = {chosen(place_prompt(*workers, decode("d"), first_block=7, draw=d)) for d in range(20)}
    assert len(first) == 1
    others = {chosen(place_prompt(*workers, decode("d"), first_block=b)) for b in range(1, 60)}
    assert others == {f"p{i}" for i in range(6)}


def test_prompts_of_a_hybrid_cost_the_rows_they_hold_up() -> None:
    many, few = worker("a", Role.HYBRID, rows=7), worker("b", Role.HYBRID, rows=1)
    assert chosen(place_prompt(many, few, prompt_len=1_000)) == "b"


def test_a_decode_worker_that_holds_nearly_all_of_a_prompt_computes_the_rest_itself() -> None:
    room = {"num_blocks": 0, "num_slots": 0}
    workers = (prefill("p", **room), decode("d", **room))
    held = {"d": 9_984.0}
    outcome = place_prompt(*workers, prompt_len=10_000, held=held)
    assert isinstance(outcome, Choice)
    assert (outcome.rank.worker_id, outcome.role) == ("d", Role.DECODE)
    more = 10_000 + SKIP_TOKENS
    assert chosen(place_prompt(*workers, prompt_len=more, held=held)) == "p"
    busy = (workers[0], decode("d", rows=60, **room))
    assert chosen(place_prompt(*busy, prompt_len=10_000, held={"d": 9_984.0, "p": 9_984.0})) == "p"


def test_a_class_that_is_promised_a_pace_is_not_put_where_it_breaks() -> None:
    slow = Costs(step_ms=20, row_ms=10)
    crowd = decode("a", rows=4, costs=slow)
    assert isinstance(place_answer(crowd, gap_target_ms=70.1), Choice)
    outcome = place_answer(crowd, gap_target_ms=69.9)
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.BUSY
    hopeless = decode("a", rows=1, costs=Costs(step_ms=500))
    assert isinstance(place_answer(hopeless, gap_target_ms=60.0), Choice)  # nobody is faster


def test_reasons_are_short_and_in_milliseconds() -> None:
    workers = prefill("a", prompts=1, queue_ms=40.0), decode("d")
    choice = place_prompt(*workers, prompt_len=1_000, held={"a": 640.0})
    assert isinstance(choice, Choice)
    assert choice.reasons == (
        "85 ms expected: 40 queued, 21 for 360 of 1000 tokens, 3 to move KV, 21 for those held up",
        "the best of 1 with room",
    )
    assert choice.hit == 640


def test_ties_go_to_the_one_chosen_least_recently() -> None:
    choice = place_prompt(prefill("a", last_assigned=7), prefill("b", last_assigned=3), decode("d"))
    assert isinstance(choice, Choice)
    assert choice.rank.worker_id == "b"


def test_a_worker_with_little_queued_takes_more_and_one_with_much_does_not() -> None:
    busy = prefill("a", prompts=3, queue_ms=QUEUED_MS - 1)
    assert isinstance(place_prompt(busy, decode("d")), Choice)
    outcome = place_prompt(replace(busy, queue_ms=QUEUED_MS), decode("d"))
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.BUSY


def test_a_long_prompt_is_taken_by_an_idle_worker() -> None:
    outcome = place_prompt(prefill("a"), decode("d"), prompt_len=100_000)
    assert isinstance(outcome, Choice)


def test_no_prompt_is_given_away_without_a_decode_row_to_come() -> None:
    nearly_full = decode("d", rows=6)
    assert isinstance(place_prompt(prefill("a"), nearly_full, pending=1), Choice)
    assert isinstance(place_prompt(prefill("a"), nearly_full, pending=2), Wait)


def test_a_worker_that_failed_is_avoided_while_another_lives_even_a_busy_one() -> None:
    failed = decode("a", has_failed=True, is_back=True)
    busy = decode("b", rows=8)
    free = decode("b", rows=7)
    choice = place_answer(failed, free)
    assert isinstance(choice, Choice)
    assert choice.rank.worker_id == "b"
    assert any("avoided a" in reason for reason in choice.reasons)
    outcome = place_answer(failed, busy)
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.FAILED  # personal: others need not wait behind this request


def test_the_only_worker_is_tried_again_after_a_sign_of_life() -> None:
    failed = decode("a", has_failed=True, is_back=False)
    outcome = place_answer(failed)
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.FAILED
    assert isinstance(place_answer(replace(failed, is_back=True)), Choice)


def test_workers_of_different_namespaces_are_never_paired() -> None:
    outcome = place_prompt(prefill("a", namespace=b"x"), decode("d", namespace=b"y"))
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.NOBODY
    assert "paired" in outcome.message


def test_a_path_needs_both_roles_or_a_hybrid() -> None:
    assert find_path([]).reasons == (
        "no prefill worker is ready",
        "no decode worker is ready",
    )
    assert find_path([prefill("a")]).reasons == ("no decode worker is ready",)
    assert find_path([prefill("a"), decode("d")]).namespace == b"n"
    assert find_path([worker("h", Role.HYBRID, b"m")]).namespace == b"m"


def test_a_full_hybrid_makes_the_prompt_wait() -> None:
    hybrid = worker("h", Role.HYBRID)
    choice = place_prompt(hybrid)
    assert isinstance(choice, Choice)
    assert choice.role is Role.HYBRID
    assert isinstance(place_prompt(replace(hybrid, rows=8)), Wait)


def test_foreign_prompts_count_as_long_as_this_one() -> None:
    foreign = prefill("a", prompts=2, foreign_prompts=2)
    own = prefill("b", prompts=1, queue_ms=40.0)
    assert chosen(place_prompt(foreign, own, decode("d"), prompt_len=10)) == "a"
    assert chosen(place_prompt(foreign, own, decode("d"), prompt_len=1_000)) == "b"


def test_no_prompt_is_given_away_without_decode_blocks_to_come() -> None:
    tight = decode("d", rows=1, blocks=97)
    assert isinstance(place_prompt(prefill("a"), tight, prompt_len=23), Choice)  # 2 of 3 blocks
    assert isinstance(place_prompt(prefill("a"), tight, prompt_len=23, pending=2), Wait)
    assert isinstance(place_prompt(prefill("a"), tight, prompt_len=60), Wait)
    idle = decode("d", num_blocks=2)  # too small for ever: the worker itself says so
    assert isinstance(place_prompt(prefill("a"), idle, prompt_len=60), Choice)


def test_f25_kv_is_fetched_by_a_worker_that_can_as_long_as_there_is_one() -> None:
    cut = decode("cut", bad_partners=("holder",))
    crowded = decode("crowded", rows=5)
    assert chosen(place_answer(cut, crowded, holder="holder")) == "crowded"
    assert chosen(place_answer(cut, crowded, holder="another")) == "cut"
    assert chosen(place_answer(cut, holder="holder")) == "cut"  # better than nobody


def test_f25_a_prompt_goes_where_its_kv_can_be_fetched_from() -> None:
    cut = prefill("cut", bad_partners=("d",))
    busy = prefill("busy", queue_ms=50)
    assert chosen(place_prompt(cut, busy, decode("d", bad_partners=("cut",)))) == "busy"
    assert chosen(place_prompt(cut, busy, decode("d", bad_partners=("cut",)), decode("e"))) == "cut"
    assert chosen(place_prompt(cut, decode("d", bad_partners=("cut",)))) == "cut"


def test_f25_a_row_of_a_worker_that_cannot_fetch_is_no_promise() -> None:
    full = decode("full", rows=8)
    free = decode("free", bad_partners=("p",))
    assert isinstance(place_prompt(prefill("p", bad_partners=("free",)), full, free), Wait)
    assert chosen(place_prompt(prefill("p"), full, decode("free"))) == "p"
