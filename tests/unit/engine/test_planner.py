"""Who gets rows and pages, and who gives them up."""

from dataclasses import dataclass, field

from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.ledger import Ledger
from diptych.engine.planner import BYPASS_MAX
from diptych.engine.requests import Request
from diptych.engine.scheduler import Limits, Plan
from diptych.engine.slots import SlotPool
from diptych.engine.swap import SwapSpace

from .conftest import BOUNDS, make_generation


@dataclass
class Engine:
    """A ledger over few pages of 8 tokens, driven by hand."""

    num_blocks: int = 5
    num_slots: int = 8
    num_host_blocks: int = 0
    num_anchors: int = 0
    max_batch_tokens: int = 64
    plans: list[Plan] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(
            BOUNDS,
            Limits(8, self.max_batch_tokens, window=4, replay=True),
            BlockPool(self.num_blocks),
            SlotPool(self.num_slots),
            AnchorPool(self.num_anchors),
            SwapSpace(self.num_host_blocks, self.num_host_blocks),
        )

    def submit(
        self,
        name: str,
        prompt_len: int = 15,
        max_new: int = 20,
        priority: str = "normal",
        *,
        hold: bool = False,
        scope: bytes = b"",
    ) -> Generation:
        generation = make_generation(name, prompt_len, max_new, priority=priority, scope=scope)
        self.ledger.submit(generation, hold=hold)
        return generation

    def plan(self) -> Plan:
        self.plans.append(self.ledger.next_plan())
        return self.plans[-1]

    def commit(self, plan: Plan, token: int = 7) -> None:
        self.rows += self.ledger.commit(plan, [token] * sum(p.samples for p in plan.pieces))[0]

    def step(self, count: int = 1) -> Plan:
        """Steps one after the other; the last plan."""
        for _ in range(count):
            self.commit(self.plan())
            self.ledger.check()
        return self.plans[-1]

    def request(self, name: str) -> Request:
        key = Key(name, 1)
        waiting = {request.key: request for request in self.ledger._queue}
        return self.ledger._running.get(key) or waiting[key]

    def finish(self) -> None:
        while self.ledger.has_work:
            assert not self.step().idle
        assert self.ledger.counts().free_blocks == self.num_blocks


def names(plan: Plan) -> str:
    return "".join(piece.request.key.request_id for piece in plan.pieces)


def shape(plan: Plan) -> list[tuple[int, int]]:
    return [(piece.start, piece.count) for piece in plan.pieces]


def test_nothing_to_do_is_an_idle_plan() -> None:
    engine = Engine()
    assert engine.plan().idle and not engine.ledger.has_work


def test_sequences_that_wait_for_one_row_go_before_prompts() -> None:
    engine = Engine(num_blocks=30, max_batch_tokens=16)
    engine.submit("a", 15)
    engine.step()
    engine.submit("b", 40)
    assert names(engine.step()) == "ab" and shape(engine.plans[-1]) == [(15, 1), (0, 15)]
    assert shape(engine.step()) == [(16, 1), (15, 15)]


def test_several_prompts_share_a_step() -> None:
    engine = Engine(num_blocks=30, max_batch_tokens=16)
    for name, length in zip("abcd", (5, 6, 7, 8), strict=True):
        engine.submit(name, length)
    assert shape(engine.plan()) == [(0, 5), (0, 6), (0, 5)]
    assert engine.ledger.counts().running == 3


def test_a_more_urgent_prompt_under_way_goes_before_an_older_one() -> None:
    engine = Engine(num_blocks=30, max_batch_tokens=32, num_anchors=9)
    engine.submit("a", 60, scope=b"s" * 16)
    engine.step()
    engine.submit("b", 40, priority="interactive", scope=b"t" * 16)
    assert shape(engine.step()) == [(32, 8), (0, 24)]  # both stop where an anchor is made
    assert names(engine.step()) == "ba"


def test_without_a_slot_nobody_is_admitted() -> None:
    engine = Engine(num_blocks=30, num_slots=1)
    engine.submit("a")
    engine.submit("b")
    assert names(engine.step()) == "a" and engine.ledger.counts().waiting == 1


def test_admission_takes_blocks_for_the_prompt_and_one_row_and_decoding_takes_them_one_by_one() -> (
    None
):
    engine = Engine(num_blocks=9)
    engine.submit("a", 16, 20)
    engine.step()
    assert engine.ledger.counts().free_blocks == 6
    engine.step(8)
    assert engine.ledger.counts().free_blocks == 6
    engine.step()
    assert engine.ledger.counts().free_blocks == 5


def test_a_sequence_that_needs_only_what_its_prompt_takes_gets_no_more() -> None:
    engine = Engine(num_blocks=2)
    engine.submit("a", 16, 1)
    assert engine.step().pieces[0].samples
    assert engine.rows[-1].finish is Finish.LENGTH


def test_the_younger_one_sits_out_while_pages_are_short() -> None:
    engine = Engine()
    engine.submit("a")
    engine.submit("b")
    assert names(engine.step(2)) == "ab"
    assert names(engine.step()) == "a"  # both need a third block, there is one
    assert engine.request("b").slot and engine.ledger.counts().preemptions_total == 0


def test_pages_are_swapped_out_and_come_back_when_the_copy_is_made() -> None:
    engine = Engine(num_host_blocks=9)
    engine.submit("a")
    engine.submit("b")
    engine.step(10)
    blocks, slot = engine.request("b").blocks, engine.request("b").slot
    plan = engine.plan()
    assert not plan.pieces and not plan.idle  # a needs a fourth block, and must wait for b's
    (swap,) = plan.swap_outs
    assert (swap.blocks, swap.slot) == (blocks, slot)
    assert engine.ledger.counts().swapped == 1 and engine.ledger.counts().free_blocks == 0
    engine.commit(plan)
    assert engine.ledger.counts().free_blocks == 2
    assert names(engine.step()) == "a"


def test_a_swapped_sequence_comes_back_to_where_it_was() -> None:
    engine = Engine(num_host_blocks=9)
    a, b = engine.submit("a"), engine.submit("b")
    engine.step(11)
    (out,) = engine.plans[-1].swap_outs
    written, tokens = engine.request("b").written, list(engine.request("b").tokens)
    while engine.ledger.counts().swapped:
        plan = engine.step()
    (back,) = plan.swap_ins
    assert (back.host_blocks, back.host_slot) == (out.host_blocks, out.host_slot)
    piece = plan.pieces[-1]
    assert piece.request.key == b.key and (piece.start, piece.count) == (written, 1)
    assert piece.blocks[: len(back.blocks)] == back.blocks and piece.slot == back.slot
    assert piece.request.tokens[:-1] == tokens
    engine.finish()
    for key in (a.key, b.key):
        assert sum(len(row.token_ids) for row in engine.rows if row.key == key) == 20
    counts = engine.ledger.counts()
    assert counts.swaps_total == counts.preemptions_total == 1


def test_without_host_pages_a_sequence_is_computed_again_from_its_tokens() -> None:
    engine = Engine()
    engine.submit("a")
    b = engine.submit("b")
    engine.step(10)
    tokens = len(engine.request("b").tokens)
    plan = engine.step()
    assert names(plan) == "a" and not plan.swap_outs  # its pages are there at once
    assert (engine.request("b").launched, engine.request("b").written) == (0, 0)
    while names(plan) != "b":
        plan = engine.step()
    assert shape(plan) == [(0, tokens)] and plan.pieces[0].samples
    assert not plan.pieces[0].ends_prompt
    engine.finish()
    assert sum(len(row.token_ids) for row in engine.rows if row.key == b.key) == 20
    assert engine.ledger.counts().preemptions_total == 1


def test_the_decoder_layers_begin_where_the_prompt_says_also_when_it_is_computed_again() -> None:
    engine = Engine(num_blocks=8)
    engine.submit("a", 30, 20)
    engine.submit("b", 25, 20)
    floors = {piece.floor for _ in range(60) for piece in engine.step().pieces}
    assert floors == {30 - 16, 25 - 16} and engine.ledger.counts().preemptions_total


def test_a_step_that_is_out_is_waited_for_before_its_sequence_loses_its_pages() -> None:
    engine = Engine()
    engine.submit("a", 15, 20)
    engine.submit("b", 2, 20)
    ahead = engine.plan()
    while names(plan := engine.plan()) == "ab":
        engine.commit(ahead)
        ahead = plan
    assert plan.idle  # a needs a block of b, which is being computed: both sit this step out
    tokens = len(engine.request("b").tokens)
    engine.commit(ahead)
    assert len(engine.request("b").tokens) == tokens + 1 and engine.request("b").slot
    assert shape(engine.step()) == [(24, 1)]
    assert not engine.request("b").slot and len(engine.request("b").tokens) == tokens + 1
    engine.finish()


def test_batch_work_loses_first_and_the_most_urgent_never() -> None:
    engine = Engine(num_blocks=7)
    engine.submit("b", priority="batch")
    engine.submit("n", priority="normal")
    engine.step()
    engine.submit("i", priority="interactive")
    while not engine.ledger.counts().preemptions_total:
        engine.step()
    assert not engine.request("b").slot and engine.request("i").slot
    engine.finish()
    last = [row.key.request_id for row in engine.rows if row.finish]
    assert last[0] == "n" or last[0] == "i"
    assert last[-1] == "b"


def test_held_and_reserved_pages_are_nobodys_to_take() -> None:
    engine = Engine(num_blocks=7)
    held = engine.submit("h", 16, hold=True)
    engine.step()
    assert engine.ledger.reserve(Key("r", 1), 16) is not None
    engine.submit("a", 15, 20)
    engine.step(10)
    assert engine.plan().idle and engine.ledger.has_work
    assert engine.ledger.held(held.key) is not None
    engine.ledger.drop(held.key)
    assert names(engine.step()) == "a"


def test_f20_a_reservation_leaves_enough_for_the_longest_sequence_to_end() -> None:
    engine = Engine(num_blocks=7)
    engine.submit("a", 15, 20)  # up to 34 positions: five blocks
    engine.step()
    assert engine.ledger.reserve(Key("r", 1), 17) is None
    assert engine.ledger.reserve(Key("r", 1), 16) is not None
    assert engine.ledger.reserve(Key("q", 1), 1) is None


def test_pages_on_their_way_out_are_not_asked_back_before_they_have_left() -> None:
    engine = Engine(num_host_blocks=9)
    engine.submit("a")
    engine.submit("b")
    engine.step(10)
    out = engine.plan()
    assert out.swap_outs
    engine.ledger.drop(Key("a", 1))
    assert engine.plan().idle  # there is room for b again, and its copy is not made yet
    engine.commit(out)
    assert engine.plan().swap_ins


def test_no_more_sequences_lose_their_pages_than_it_takes() -> None:
    engine = Engine(num_blocks=9, num_host_blocks=18)
    for name in "abcd":
        engine.submit(name)
    for _ in range(40):
        engine.step()
        assert len(engine.plans[-1].swap_outs) <= 1
    assert engine.ledger.counts().swaps_total
    engine.finish()


def test_what_a_broken_step_swapped_out_is_computed_again() -> None:
    engine = Engine(num_host_blocks=9)
    engine.submit("a")
    engine.submit("b")
    engine.step(10)
    out = engine.plan()
    assert out.swap_outs
    engine.ledger.fail(out, "broke")
    assert engine.request("b").swapped is None and not engine.request("b").launched
    engine.ledger.check()
    engine.finish()
    assert sum(row.finish is Finish.LENGTH for row in engine.rows) == 2


def test_a_swapped_sequence_that_is_dropped_leaves_the_host() -> None:
    engine = Engine(num_host_blocks=9)
    engine.submit("a")
    b = engine.submit("b")
    engine.step(10)
    out = engine.plan()
    assert out.swap_outs and engine.ledger.drop(b.key)
    assert not engine.ledger._pools.space.fits(9)  # the copy is still being made
    engine.commit(out)
    assert engine.ledger._pools.space.fits(9)


def test_a_sequence_that_grew_comes_back_before_new_ones() -> None:
    engine = Engine()
    engine.submit("a")
    engine.submit("b")
    engine.step(11)
    assert not engine.request("b").slot
    engine.submit("c", 2, 2)
    while not engine.request("b").slot:
        plan = engine.step()
        assert "c" not in names(plan)[:1]
    engine.finish()


def test_one_that_does_not_fit_is_passed_only_so_often() -> None:
    engine = Engine(num_blocks=12, num_slots=4)
    engine.submit("a", 60, 30)
    engine.step()
    engine.submit("x", 40, 2)
    for number in range(3 * BYPASS_MAX):
        engine.submit(f"s{number}", 2, 2)
    passed = 0
    while not engine.request("x").slot:
        assert passed <= BYPASS_MAX
        plan = engine.step()
        if not engine.request("x").slot:
            passed += sum(piece.start == 0 for piece in plan.pieces)
    assert passed == BYPASS_MAX
    engine.finish()


def test_batch_work_does_not_pass_an_interactive_request() -> None:
    engine = Engine(num_blocks=8)
    engine.submit("a", 30, 30)
    engine.step()
    engine.submit("i", 40, 2, priority="interactive")
    engine.submit("b", 2, 2, priority="batch")
    assert names(engine.step()) == "a"
    engine.submit("n", 2, 2)
    assert names(engine.step()) == "an"


def test_a_request_that_is_not_ready_holds_back_nobody_and_then_goes_by_its_age() -> None:
    engine = Engine(num_blocks=30, num_slots=1)
    slow = make_generation("slow")
    engine.ledger.submit(slow, hold=False, ready=False)
    assert engine.ledger.counts().preparing == 1 and not engine.ledger.has_work
    engine.submit("a", max_new=1)
    engine.submit("b", max_new=1)
    assert names(engine.step()) == "a"
    assert engine.ledger.ready(slow.key)
    assert names(engine.step()) == "slow"


def test_what_is_dropped_before_it_is_ready_does_not_come_back() -> None:
    engine = Engine()
    slow = make_generation("slow")
    engine.ledger.submit(slow, hold=False, ready=False)
    assert engine.ledger.drop(slow.key) and not engine.ledger.ready(slow.key)
    assert not engine.ledger.has_work and engine.ledger.counts().preparing == 0


def test_a_flood_of_urgent_requests_does_not_starve_batch_work() -> None:
    engine = Engine(num_blocks=30, num_slots=2)
    limits = engine.ledger.limits.class_limits_s
    batch = make_generation("b", 9, 3, priority="batch", tenant="quiet")
    engine.ledger.submit(batch, hold=False, now_s=0.0)
    now_s, number = 0.0, 0
    while not any(row.key == batch.key and row.finish for row in engine.rows):
        now_s += 1.0
        while engine.ledger.counts().waiting < 20:
            number += 1
            flood = make_generation(f"i{number}", 9, 5, priority="interactive", tenant="loud")
            engine.ledger.submit(flood, hold=False, now_s=now_s)
        plan = engine.ledger.next_plan(now_s)
        engine.commit(plan)
        assert now_s < limits[1] + limits[2] + 20


def test_the_token_under_way_is_the_next_row_and_the_last_one_is_not_planned_for() -> None:
    engine = Engine(num_blocks=30)
    engine.submit("a", 5, 3)
    first = engine.plan()
    second = engine.plan()
    assert shape(second) == [(5, 1)] and second.pieces[0].unknown and second.pieces[0].samples
    engine.commit(first)
    third = engine.plan()
    assert shape(third) == [(6, 1)]
    engine.commit(second)
    assert engine.plan().idle  # the third token is certain to be the last
    engine.commit(third)
    assert [row.finish for row in engine.rows] == [None, None, Finish.LENGTH]
    assert not engine.ledger.has_work


def test_a_held_sequence_computes_no_row_beyond_its_prompt() -> None:
    engine = Engine(num_blocks=30)
    generation = engine.submit("a", 5, 30, hold=True)
    first = engine.plan()
    assert engine.plan().idle
    engine.commit(first)
    pages = engine.ledger.held(generation.key)
    assert pages is not None and pages.num_tokens == 5


def test_a_row_behind_the_end_is_computed_for_nothing() -> None:
    engine = Engine(num_blocks=30)
    generation = make_generation("a", 5, 30, sampling=Sampling(stop_token_ids=(9,)))
    engine.ledger.submit(generation, hold=False)
    first, second = engine.plan(), engine.plan()
    engine.commit(first, token=9)
    assert engine.rows[-1].finish is Finish.STOP
    assert engine.ledger.counts().free_blocks < 30  # the second one still writes
    engine.commit(second)
    assert len(engine.rows) == 1 and engine.ledger.counts().free_blocks == 30
    assert engine.ledger.counts().tokens_total == 1


def test_pages_of_a_dropped_sequence_come_back_behind_the_last_step_that_touches_them() -> None:
    engine = Engine(num_blocks=30)
    generation = engine.submit("a")
    first, second = engine.plan(), engine.plan()
    assert engine.ledger.drop(generation.key)
    engine.submit("a")  # the key is free at once
    engine.commit(first)
    assert engine.ledger.counts().free_blocks == 28
    engine.commit(second)
    assert engine.ledger.counts().free_blocks == 30 and not engine.rows
    engine.ledger.check()


def test_a_broken_step_ends_the_sequences_of_the_one_that_follows_it_too() -> None:
    engine = Engine(num_blocks=30)
    engine.submit("a")
    first, second = engine.plan(), engine.plan()
    (row,) = engine.ledger.fail(first, "broke")
    assert row.finish is Finish.ERROR and row.message == "broke"
    assert engine.ledger.fail(second, "broke, too") == []
    assert engine.ledger.counts().free_blocks == 30 and not engine.ledger.has_work
