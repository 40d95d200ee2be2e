"""What of a prefix is adopted, what is kept for the next one, and what it takes of the pools.

Blocks have 8 tokens, a window 4: with the margin of 12, the last 16 tokens of a prompt are always
computed.
"""

from dataclasses import dataclass, field

import pytest

from diptych.core.blocks import chain as block_chain
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row
from diptych.engine.anchors import AnchorCopy, AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.ledger import Ledger
from diptych.engine.pools import Hit
from diptych.engine.requests import Request
from diptych.engine.scheduler import Limits, Plan
from diptych.engine.slots import SlotPool
from diptych.engine.swap import SwapSpace

from .conftest import BOUNDS, make_generation

SCOPE = b"s" * 16


def prompt(length: int, salt: int = 0, shared: int = 0) -> tuple[int, ...]:
    """Tokens of which the first `shared` are everybody's."""
    return tuple(2 + (i * 7 + (salt if i >= shared else 0)) % 97 for i in range(length))


@dataclass
class Engine:
    """A ledger whose requests run one after the other."""

    num_blocks: int = 40
    num_anchors: int = 20
    num_host: int = 0
    window: int = 4
    replay: bool = True
    deterministic: bool = True
    max_batch_tokens: int = 64
    born: int = 0
    plans: list[Plan] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(
            BOUNDS,
            Limits(
                8,
                self.max_batch_tokens,
                window=self.window,
                replay=self.replay,
                deterministic=self.deterministic,
            ),
            BlockPool(self.num_blocks),
            SlotPool(4),
            AnchorPool(self.num_anchors),
            SwapSpace(self.num_host, self.num_host),
        )
        self.pools = self.ledger._pools

    def submit(
        self,
        tokens: tuple[int, ...],
        max_new: int = 1,
        *,
        scope: bytes = SCOPE,
        priority: str = "normal",
        forced: tuple[int, ...] = (),
        sampling: Sampling | None = None,
    ) -> Generation:
        self.born += 1
        generation = make_generation(
            f"r{self.born}",
            prompt=tokens,
            max_new=max_new + len(forced),
            scope=scope,
            priority=priority,
            forced=forced,
            sampling=sampling,
        )
        self.ledger.submit(generation, hold=False)
        return generation

    def step(self, token: int = 7) -> Plan:
        plan = self.ledger.next_plan()
        self.plans.append(plan)
        self.rows += self.ledger.commit(plan, [token] * sum(p.samples for p in plan.pieces))[0]
        self.ledger.check()
        return plan

    def run(self, tokens: tuple[int, ...], max_new: int = 1, **how: object) -> list[Plan]:
        """The plans of a request that runs alone."""
        self.submit(tokens, max_new, **how)  # type: ignore[arg-type]
        began = len(self.plans)
        while self.ledger.has_work:
            self.step()
        return self.plans[began:]

    def hit(self, tokens: tuple[int, ...]) -> Hit:
        generation = make_generation("probe", prompt=tokens, scope=SCOPE)
        return self.pools.hit(self.ledger._request(generation, hold=False, adopted=False))

    def anchored(self, tokens: tuple[int, ...]) -> list[int]:
        """Positions of a sequence that have an anchor."""
        names = block_chain(SCOPE, tokens, 8)
        return [8 * (i + 1) for i, name in enumerate(names) if name in self.pools.anchors]


def shape(plans: list[Plan]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for plan in plans for piece in plan.pieces]


def request_of(plan: Plan) -> Request:
    return plan.pieces[0].request


def test_chunks_of_a_prompt_end_where_anchors_are_made() -> None:
    engine = Engine()
    plans = engine.run(prompt(45))
    assert shape(plans) == [(0, 24), (24, 40), (40, 45)]
    slot = plans[0].pieces[0].slot
    assert [(s.slot, s.position) for plan in plans for s in plan.saves] == [(slot, 24), (slot, 40)]
    assert engine.anchored(prompt(45)) == [24, 40]


def test_a_second_prompt_adopts_up_to_the_last_anchor_that_leaves_enough_to_compute() -> None:
    engine = Engine()
    engine.run(prompt(45))
    first, *rest = engine.run(prompt(45))
    assert shape([first, *rest]) == [(24, 45)]  # the anchor at 40 is there already
    (load,) = first.loads
    assert (load.slot, load.position) == (first.pieces[0].slot, 24)
    assert first.pieces[0].floor == 45 - 16 and first.pieces[0].encoder_floor == 0
    assert engine.rows[-1].cached_tokens == 24 and engine.rows[0].cached_tokens == 0
    counts = engine.ledger.counts()
    assert (counts.query_tokens_total, counts.hit_tokens_total) == (90, 24)


def test_the_next_turn_of_a_conversation_adopts_up_to_where_the_answer_ended() -> None:
    engine = Engine()
    engine.run(prompt(45), max_new=30)
    said = (*prompt(45), *[7] * 30)
    assert engine.anchored(said) == [24, 40, 72]  # of the answer, the newest one
    assert engine.hit((*said, *prompt(20, salt=5))).length == 72
    assert engine.hit((*said, *prompt(12, salt=5))).length == 40


def test_only_what_is_written_has_a_name() -> None:
    engine = Engine()
    engine.run(prompt(20), max_new=13)  # 33 tokens, the last of which is not written
    assert len(engine.hit((*prompt(20), *[7] * 13, *prompt(30))).entries) == 4
    engine = Engine()
    engine.run(prompt(20), max_new=12)  # 32 tokens: the fourth block is not full
    said = (*prompt(20), *[7] * 12, *prompt(30))
    assert len(engine.pools.blocks.cache._by_name) == 3
    assert engine.hit(said).length == 24


def test_a_row_behind_the_end_is_neither_published_nor_anchored() -> None:
    engine = Engine()
    engine.submit(prompt(31), 20, sampling=Sampling(stop_token_ids=(9,)))
    for _ in range(3):
        engine.step()  # up to each of two anchors, and to the prompt's end
    first = engine.ledger.next_plan()  # writes position 31
    second = engine.ledger.next_plan()
    assert [s.position for s in first.saves] == [32]
    assert not second.saves
    engine.ledger.commit(first, [9])
    engine.ledger.commit(second, [8])
    engine.ledger.check()
    assert len(engine.pools.blocks.cache._by_name) == 4

    engine = Engine()
    engine.submit(prompt(30), 20, sampling=Sampling(stop_token_ids=(9,)))
    for _ in range(3):
        engine.step()
    first, second = engine.ledger.next_plan(), engine.ledger.next_plan()
    assert [s.position for s in second.saves] == [32]
    engine.ledger.commit(first, [9])
    engine.ledger.commit(second, [8])
    engine.ledger.check()
    assert len(engine.pools.blocks.cache._by_name) == 3
    assert engine.anchored((*prompt(30), 9, 8)) == [8, 24]


def test_where_two_prompts_part_an_anchor_is_made_for_the_third() -> None:
    engine = Engine()
    engine.run(prompt(60, salt=1, shared=32))
    assert engine.anchored(prompt(60, salt=1, shared=32)) == [40, 56]
    plans = engine.run(prompt(60, salt=2, shared=32))
    assert shape(plans) == [(0, 32), (32, 40), (40, 56), (56, 60)]
    assert engine.hit(prompt(60, salt=3, shared=32)).length == 32


def test_blocks_that_are_computed_twice_are_kept_once() -> None:
    engine = Engine(num_anchors=0, max_batch_tokens=96)
    for _ in range(2):
        engine.submit(prompt(45), 4)
    engine.step()
    a, b = engine.ledger._running.values()
    assert a.blocks[:5] == b.blocks[:5] and a.blocks[5] != b.blocks[5]
    assert engine.ledger.counts().free_blocks == 40 - 7


def test_pages_of_doubles_come_back_behind_the_step_that_reads_them() -> None:
    engine = Engine(num_anchors=0, max_batch_tokens=96)
    for _ in range(2):
        engine.submit(prompt(45), 4)
    first, second = engine.ledger.next_plan(), engine.ledger.next_plan()
    engine.ledger.commit(first, [7, 7])
    assert engine.ledger.counts().free_blocks == 40 - 12
    engine.ledger.commit(second, [7, 7])
    assert engine.ledger.counts().free_blocks == 40 - 7
    engine.ledger.check()


def test_blocks_and_anchors_go_when_their_pages_are_needed() -> None:
    engine = Engine(num_blocks=12)
    engine.run(prompt(45))
    assert engine.ledger.counts().cached_blocks == 5 and engine.ledger.counts().anchors == 2
    engine.run(prompt(90, salt=1))
    assert engine.hit(prompt(45)).length == 0 and engine.anchored(prompt(45)) == []


def test_an_idle_prefix_counts_as_taken_by_the_one_who_adopts_it() -> None:
    engine = Engine(num_blocks=12)
    engine.run(prompt(45))
    other = engine.submit(prompt(44, salt=1), 40)
    engine.step()
    assert engine.ledger.counts().free_blocks == 6
    engine.submit(prompt(45), 1)  # three cached blocks and three more: all that is left
    plan = engine.step()
    assert len(plan.pieces) == 2 and engine.ledger.counts().free_blocks >= 0
    assert engine.ledger.drop(other.key)


@pytest.mark.parametrize("how", ["no scope", "another scope", "no replay"])
def test_nothing_is_adopted_without(how: str) -> None:
    engine = Engine(replay=how != "no replay")
    scopes = {"no scope": b"", "another scope": b"t" * 16}
    engine.run(prompt(45), scope=SCOPE)
    (*_, last) = engine.run(prompt(45), scope=scopes.get(how, SCOPE))
    assert engine.rows[-1].cached_tokens == 0 and not any(p.loads for p in engine.plans)
    assert request_of(last).floor == (0 if how == "no replay" else 29)


def test_without_anchors_a_deterministic_engine_adopts_nothing() -> None:
    engine = Engine(num_anchors=0)
    engine.run(prompt(45))
    assert engine.hit(prompt(45)) == Hit(branch=24)
    assert shape(engine.run(prompt(45))) == [(0, 45)]


def test_without_an_anchor_an_engine_may_replay_a_window_if_it_need_not_be_deterministic() -> None:
    engine = Engine(num_anchors=0, deterministic=False)
    engine.run(prompt(45))
    (plan,) = engine.run(prompt(45))
    (piece,) = plan.pieces
    assert (piece.start, piece.end, piece.replayed, piece.encoder_floor) == (20, 45, 4, 20)
    assert engine.rows[-1].cached_tokens == 24


def test_an_anchor_a_window_away_is_better_than_a_replay() -> None:
    engine = Engine(deterministic=False)
    engine.run(prompt(45))
    hit = engine.hit(prompt(45))
    assert (hit.length, hit.anchored) == (24, True)
    hit = engine.hit(prompt(80, salt=1, shared=40))
    assert (hit.length, hit.anchored) == (40, True)
    assert engine.hit(prompt(80, salt=1, shared=36)) == Hit(
        hit.entries[:4], 32, anchored=False, branch=0
    )


def test_replayed_rows_may_be_cut_and_are_no_progress() -> None:
    engine = Engine(num_anchors=0, deterministic=False, max_batch_tokens=3)
    engine.run(prompt(45))
    engine.submit(prompt(45))
    pieces, progress = [], []
    for _ in range(3):
        plan = engine.ledger.next_plan()
        pieces += [(p.start, p.count, p.replayed) for p in plan.pieces]
        progress += [chunk.tokens for chunk in engine.ledger.commit(plan, [])[1]]
    assert pieces == [(20, 3, 3), (23, 3, 1), (26, 3, 0)]
    assert progress == [24, 26, 29]


def test_a_sequence_swapped_out_in_its_replay_takes_all_its_blocks_along() -> None:
    engine = Engine(num_anchors=0, deterministic=False, max_batch_tokens=3, num_host=9, window=12)
    engine.run(prompt(60))
    engine.submit(prompt(60))
    assert shape([engine.step()]) == [(20, 23)]
    (request,) = engine.ledger._running.values()
    blocks = request.blocks
    order = engine.pools.swap_out(request, step=99)
    assert order is not None and order.blocks == blocks[:4]  # it has adopted 32 positions


def test_what_windows_cut_short_have_made_is_marked_and_a_deterministic_reader_stops_there() -> (
    None
):
    engine = Engine(num_anchors=0, deterministic=False)
    engine.run(prompt(45))
    engine.run(prompt(64, salt=1, shared=45))
    cache, names = engine.pools.blocks.cache, block_chain(SCOPE, prompt(64, salt=1, shared=45), 8)
    entries = [cache.find(name) for name in names]
    assert [e.full_window for e in entries if e] == [True] * 5 + [False] * 3


def test_windows_cut_short_are_no_anchor_of_a_block_that_was_computed_in_full() -> None:
    engine = Engine(deterministic=False)
    engine.run(prompt(64))
    for name in list(engine.pools.anchors._anchors):
        engine.pools.anchors.forget(name)
    (plan,) = engine.run(prompt(64))
    assert plan.pieces[0].replayed == 4 and [s.position for s in plan.saves] == [64]
    assert engine.anchored(prompt(64)) == []


def test_a_retry_adopts_by_its_original_prompt_and_computes_the_forced_tokens() -> None:
    engine = Engine()
    engine.run(prompt(45), max_new=30)
    (first, *_) = engine.run(prompt(45), max_new=1, forced=(7,) * 29)
    assert first.pieces[0].start == 24 and first.pieces[0].floor == 29
    assert engine.rows[-1].cached_tokens == 24


def test_a_sequence_that_is_computed_again_adopts_what_it_left_behind() -> None:
    engine = Engine(num_blocks=14)
    engine.submit(prompt(45), 40)
    engine.submit(prompt(45, salt=1), 40)
    while not engine.ledger.counts().preemptions_total:
        engine.step()
    began = len(engine.plans)
    while engine.ledger.has_work:
        engine.step()
    again = [
        piece
        for plan in engine.plans[began:]
        for piece in plan.pieces
        if piece.request.key.request_id == "r2"
    ]
    counts = engine.ledger.counts()
    assert again[0].start == 24 and counts.query_tokens_total == 90
    assert 0 < counts.recomputed_tokens_total <= 45 + 40 - 24
    assert sum(len(row.token_ids) for row in engine.rows) == 80


def test_an_adopted_sequence_publishes_what_came_with_it() -> None:
    engine = Engine()
    generation = make_generation("d", prompt=prompt(45), max_new=9, forced=(7,), scope=SCOPE)
    assert engine.ledger.reserve(generation.key, 60) is not None
    assert engine.ledger.counts().free_blocks == 40 - 8
    engine.ledger.adopt(generation)
    assert engine.ledger.counts().free_blocks == 40 - 6  # it grows again when it must
    assert len(engine.pools.blocks.cache._by_name) == 5
    while engine.ledger.has_work:
        engine.step()
    assert engine.rows[0].cached_tokens == 0
    assert engine.anchored((*prompt(45), *[7] * 9)) == [48]


def test_blocks_of_batch_work_go_first() -> None:
    engine = Engine(num_blocks=12, num_anchors=0)
    engine.run(prompt(40))
    engine.run(prompt(40, salt=1), priority="batch")
    engine.run(prompt(40, salt=2))
    cache = engine.pools.blocks.cache
    assert cache.find(block_chain(SCOPE, prompt(40), 8)[4]) is not None
    assert cache.find(block_chain(SCOPE, prompt(40, salt=1), 8)[4]) is None


def test_an_anchor_is_not_overwritten_while_it_is_being_loaded() -> None:
    engine = Engine(num_anchors=1, max_batch_tokens=24)
    engine.run(prompt(40))
    assert engine.anchored(prompt(40)) == [40]
    engine.submit((*prompt(40), *prompt(20, salt=9)), 1)
    load = engine.ledger.next_plan()
    assert [type(order) for order in load.loads] == [AnchorCopy]
    engine.submit(prompt(24, salt=3), 1)
    plan = engine.ledger.next_plan()
    assert plan.pieces[-1].end % 8 == 0 and not plan.saves
    engine.ledger.commit(load, [7] * sum(p.samples for p in load.pieces))
    engine.ledger.commit(plan, [7] * sum(p.samples for p in plan.pieces))
    engine.ledger.check()
