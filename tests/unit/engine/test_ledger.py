import random
from collections import Counter

import pytest

from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.sampling import Sampling
from diptych.core.step import Row
from diptych.engine.ledger import Ledger

from .conftest import make_generation, make_ledger
from .world import DELIVERIES, STATES, World


def run_step(ledger: Ledger, token: int = 7) -> list[Row]:
    chosen = ledger.next_plan()
    rows, _ = ledger.commit(chosen, [token] * sum(p.samples for p in chosen.pieces))
    return rows


def test_a_prompt_runs_to_its_last_token_and_frees_its_pages() -> None:
    ledger = make_ledger()
    generation = make_generation(max_new=3)
    ledger.submit(generation, hold=False)
    rows = [row for _ in range(3) for row in run_step(ledger)]
    assert [row.token_ids for row in rows] == [(7,)] * 3
    assert [row.finish for row in rows] == [None, None, Finish.LENGTH]
    assert ledger.counts().free_blocks == 64 and ledger.counts().tokens_total == 3
    assert not ledger.has_work


def test_a_held_sequence_keeps_just_the_pages_of_its_prompt_until_it_is_dropped() -> None:
    ledger = make_ledger()
    generation = make_generation(prompt_len=9, max_new=100)
    ledger.submit(generation, hold=True)
    (row,) = run_step(ledger)
    assert row.token_ids == (7,) and row.finish is None
    assert not ledger.has_work
    pages = ledger.held(generation.key)
    assert pages is not None and len(pages.blocks) == 2 and pages.num_tokens == 9
    assert ledger.counts().held == 1 and ledger.counts().free_blocks == 62
    assert ledger.drop(generation.key)
    assert ledger.held(generation.key) is None and ledger.counts().free_blocks == 64


def test_a_prompt_that_is_given_up_wastes_the_chunk_under_way_and_no_more() -> None:
    ledger = make_ledger(max_batch_tokens=32)
    generation = make_generation(prompt_len=200, max_new=10)
    ledger.submit(generation, hold=True)
    run_step(ledger)
    flying = ledger.next_plan()
    assert ledger.drop(generation.key)
    ledger.commit(flying, [])
    assert ledger.next_plan().idle
    counts = ledger.counts()
    assert counts.aborted_tokens_total == 32
    assert (counts.overrun_tokens_total, counts.failed_tokens_total) == (0, 0)
    assert counts.free_blocks == counts.num_blocks


def test_rows_behind_an_end_and_steps_that_break_are_waste_of_other_kinds() -> None:
    ledger = make_ledger()
    stops = Sampling(temperature=0, stop_token_ids=(9,))
    ledger.submit(make_generation("a", prompt_len=9, max_new=10, sampling=stops), hold=False)
    run_step(ledger)
    first, second = ledger.next_plan(), ledger.next_plan()
    assert ledger.commit(first, [9])[0][0].finish is Finish.STOP
    ledger.commit(second, [7])
    ledger.submit(make_generation("b", prompt_len=9, max_new=10), hold=False)
    ledger.fail(ledger.next_plan(), "broken")
    counts = ledger.counts()
    assert (counts.overrun_tokens_total, counts.failed_tokens_total) == (1, 9)
    assert counts.aborted_tokens_total == 0


def test_a_held_sequence_that_ends_with_its_first_token_frees_its_pages() -> None:
    ledger = make_ledger()
    generation = make_generation(max_new=1)
    ledger.submit(generation, hold=True)
    assert run_step(ledger)[0].finish is Finish.LENGTH
    assert ledger.held(generation.key) is None and ledger.counts().free_slots == 8


def test_an_adopted_sequence_computes_only_its_last_token() -> None:
    ledger = make_ledger()
    generation = make_generation(prompt_len=9, max_new=8, forced=(7,))
    pages = ledger.reserve(generation.key, generation.capacity)
    assert pages is not None and len(pages.blocks) == 2 and pages.num_tokens == 0
    assert ledger.counts().reserved == 1
    ledger.adopt(generation)
    (piece,) = ledger.next_plan().pieces
    assert (piece.start, piece.count, piece.request.blocks) == (9, 1, pages.blocks)
    assert not piece.ends_prompt


def test_adopting_needs_a_reservation_that_is_large_enough() -> None:
    ledger = make_ledger()
    generation = make_generation(prompt_len=9, max_new=8, forced=(7,))
    with pytest.raises(BadRequest, match="nothing is reserved"):
        ledger.adopt(generation)
    ledger.reserve(generation.key, 8)
    with pytest.raises(BadRequest, match="1 blocks are reserved; expected 2"):
        ledger.adopt(generation)


def test_a_reservation_does_not_take_what_the_queue_needs() -> None:
    ledger = make_ledger(num_blocks=4)
    ledger.submit(make_generation("queued", prompt_len=17, max_new=1), hold=False)
    assert ledger.reserve(Key("r", 1), 16) is None
    assert ledger.reserve(Key("r", 1), 8) is not None


def test_what_can_never_fit_is_refused_at_the_door() -> None:
    ledger = make_ledger(num_blocks=4)
    with pytest.raises(BadRequest, match=r"may need 5 blocks of 8 tokens; .* has 4") as caught:
        ledger.submit(make_generation(prompt_len=33, max_new=1), hold=False)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(BadRequest, match="may need 5 blocks"):
        ledger.reserve(Key("r", 1), 33)
    with pytest.raises(BadRequest, match="capacity is 0"):
        ledger.reserve(Key("r", 1), 0)


@pytest.mark.parametrize("state", ["waiting", "running", "held", "reserved"])
def test_a_key_is_known_once_wherever_it_stands_until_it_is_dropped(state: str) -> None:
    ledger = make_ledger()
    generation = make_generation()
    if state == "reserved":
        ledger.reserve(generation.key, 8)
    else:
        ledger.submit(generation, hold=state == "held")
    if state in ("running", "held"):
        run_step(ledger)
    assert getattr(ledger.counts(), state) == 1
    with pytest.raises(BadRequest, match="known already"):
        ledger.submit(generation, hold=False)
    with pytest.raises(BadRequest, match="known already"):
        ledger.reserve(generation.key, 8)
    assert ledger.drop(generation.key) and not ledger.drop(generation.key)
    assert getattr(ledger.counts(), state) == 0
    ledger.check()
    ledger.submit(generation, hold=False)


def test_a_row_without_a_token_ends_alone() -> None:
    ledger = make_ledger()
    for name in "abc":
        ledger.submit(make_generation(name), hold=False)
    rows, _ = ledger.commit(ledger.next_plan(), [7, Broken("bad logits"), 7])
    assert [row.finish for row in rows] == [None, Finish.ERROR, None]
    assert rows[1].message == "bad logits"
    assert ledger.counts().running == 2
    ledger.check()


CI_SEEDS, CI_ACTS = range(100), 2200  # some 1e5 steps
SOAK_SEEDS, SOAK_ACTS = range(1000, 1120), 50_000  # some 3e6


def live_through(world: World, acts: int) -> World:
    """Random traffic, then quiet. World checks what must be true at each turn."""
    for number in range(acts):
        world.act()
        if not number % 8:
            world.check()
    world.drain()
    return world


def test_random_traffic_keeps_the_books_and_gives_everybody_what_it_gets_alone() -> None:
    """Seeds go through all sizes: few pages and many, one step out or none, exact or not."""
    worlds = [live_through(World(random.Random(seed)), CI_ACTS) for seed in CI_SEEDS]
    drops = sum((world.drops for world in worlds), Counter[str]())
    finishes = sum((world.finishes for world in worlds), Counter[Finish]())
    counts = [world.ledger.counts() for world in worlds]
    assert sum(world.steps for world in worlds) > 100_000
    assert drops.total() > 1000 and drops.keys() == STATES
    assert min(finishes[f] for f in (Finish.STOP, Finish.LENGTH, Finish.ERROR)) > 100
    assert sum(c.preemptions_total - c.swaps_total for c in counts) > 300
    assert sum(c.swaps_total for c in counts) > 300
    assert sum(c.hit_tokens_total for c in counts) > 10_000
    broken = sum((world.broken for world in worlds), Counter[bool]())
    assert min(broken[True], broken[False]) > 100
    brought = sum((world.brought for world in worlds), Counter[str]())
    assert min(brought[how] for how in DELIVERIES) > 60
    assert sum(world.brought_tokens for world in worlds) > 250


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_long_random_traffic_keeps_the_books(seed: int) -> None:
    live_through(World(random.Random(seed)), SOAK_ACTS)


def test_the_same_traffic_is_planned_in_the_same_way() -> None:
    first, second = (live_through(World(random.Random(7)), 600) for _ in range(2))
    assert first.steps == second.steps and first.ledger.counts() == second.ledger.counts()
