"""Whom the policy chooses."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.ids import Incarnation, Rank, WorkerId
from diptych.core.phases import Role
from diptych.router.ledger import Pending
from diptych.router.policy import (
    LITTLE_QUEUED_TOKENS,
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


def place_prompt(*candidates: Candidate, prompt_len: int = 10, pending: int = 0) -> Choice | Wait:
    return choose_prefill(candidates, prompt_len, 10, lambda namespace: Pending(pending, pending))


candidate_lists = st.lists(
    st.builds(
        worker,
        st.text("abcdef", min_size=1, max_size=3),
        st.sampled_from([Role.PREFILL, Role.DECODE, Role.HYBRID]),
        st.sampled_from([b"n", b"m"]),
        prompts=st.integers(0, 3),
        prompt_tokens=st.integers(0, 1500),
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
@given(candidate_lists, st.integers(1, 800), st.integers(1, 800))
def test_a_prompt_goes_where_least_is_in_flight_and_an_answer_can_follow(
    candidates: list[Candidate], prompt_len: int, max_new: int
) -> None:
    choice = choose_prefill(candidates, prompt_len, max_new, nothing_pending)
    if isinstance(choice, Wait):
        return
    chosen = [c for c in candidates if c.rank == choice.rank and c.role is choice.role]
    assert choice.reasons
    assert choice.role in (Role.PREFILL, Role.HYBRID)
    if choice.role is Role.PREFILL:
        partners = [c for c in candidates if c.role in (Role.DECODE, Role.HYBRID)]
        assert {c.namespace for c in chosen} & {c.namespace for c in partners}


@settings(deadline=None)  # a busy machine is no error
@given(candidate_lists, st.integers(1, 1600))
def test_an_answer_goes_to_the_fewest_rows_of_its_own_namespace(
    candidates: list[Candidate], capacity: int
) -> None:
    able = [c for c in candidates if c.role in (Role.DECODE, Role.HYBRID) and c.namespace == b"n"]
    trusted = [c for c in able if not c.has_failed]
    pool = trusted or [c for c in able if c.is_back]
    fits = [
        c
        for c in pool
        if c.rows < c.num_slots and (c.rows == 0 or c.blocks + -(-capacity // 16) <= c.num_blocks)
    ]
    choice = choose_decode(candidates, b"n", capacity)
    if not fits:
        assert isinstance(choice, Wait)
        assert (choice.why is Why.NOBODY) == (not able)
    else:
        assert isinstance(choice, Choice)
        fewest = min(c.rows for c in fits)
        assert any(c.rank == choice.rank and c.rows == fewest for c in fits)


def test_ties_go_to_the_one_chosen_least_recently() -> None:
    choice = place_prompt(prefill("a", last_assigned=7), prefill("b", last_assigned=3), decode("d"))
    assert isinstance(choice, Choice)
    assert choice.rank.worker_id == "b"


def test_a_worker_with_little_queued_takes_more_and_one_with_much_does_not() -> None:
    busy = prefill("a", prompts=1, prompt_tokens=LITTLE_QUEUED_TOKENS - 10)
    assert isinstance(place_prompt(busy, decode("d"), prompt_len=10), Choice)
    outcome = place_prompt(busy, decode("d"), prompt_len=11)
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.BUSY


def test_a_long_prompt_is_taken_by_an_idle_worker() -> None:
    outcome = place_prompt(prefill("a"), decode("d"), prompt_len=10 * LITTLE_QUEUED_TOKENS)
    assert isinstance(outcome, Choice)


def test_no_prompt_is_given_away_without_a_decode_row_to_come() -> None:
    nearly_full = decode("d", rows=6)
    assert isinstance(place_prompt(prefill("a"), nearly_full, pending=1), Choice)
    assert isinstance(place_prompt(prefill("a"), nearly_full, pending=2), Wait)


def test_a_worker_that_failed_is_avoided_while_another_lives_even_a_busy_one() -> None:
    failed = decode("a", has_failed=True, is_back=True)
    busy = decode("b", rows=8)
    free = decode("b", rows=7)
    choice = choose_decode([failed, free], b"n", 10)
    assert isinstance(choice, Choice)
    assert choice.rank.worker_id == "b"
    assert any("avoided a" in reason for reason in choice.reasons)
    outcome = choose_decode([failed, busy], b"n", 10)
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.FAILED  # personal: others need not wait behind this request


def test_the_only_worker_is_tried_again_after_a_sign_of_life() -> None:
    failed = decode("a", has_failed=True, is_back=False)
    outcome = choose_decode([failed], b"n", 10)
    assert isinstance(outcome, Wait)
    assert outcome.why is Why.FAILED
    assert isinstance(choose_decode([replace(failed, is_back=True)], b"n", 10), Choice)


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
    own = prefill("b", prompts=1, prompt_tokens=25)
    choice = place_prompt(foreign, own, decode("d"), prompt_len=10)
    assert isinstance(choice, Choice)
    assert choice.rank.worker_id == "a"
    choice = place_prompt(foreign, own, decode("d"), prompt_len=20)
    assert isinstance(choice, Choice)
    assert choice.rank.worker_id == "b"


def test_no_prompt_is_given_away_without_decode_blocks_to_come() -> None:
    tight = decode("d", rows=1, blocks=97)
    assert isinstance(place_prompt(prefill("a"), tight, prompt_len=23), Choice)  # 2 of 3 blocks
    assert isinstance(place_prompt(prefill("a"), tight, prompt_len=23, pending=2), Wait)
    assert isinstance(place_prompt(prefill("a"), tight, prompt_len=60), Wait)
    idle = decode("d", num_blocks=2)  # too small for ever: the worker itself says so
    assert isinstance(place_prompt(prefill("a"), idle, prompt_len=60), Choice)
