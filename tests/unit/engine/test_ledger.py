import random
from dataclasses import dataclass, field

import pytest

from diptych.core.errors import BadRequest, Broken
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row
from diptych.engine.ledger import Ledger, Outcome

from .conftest import BOUNDS, make_generation, make_ledger


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


@dataclass
class Story:
    """What the outside has seen of one key."""

    generation: Generation
    held: bool = False
    output: list[int] = field(default_factory=list)
    finish: Finish | None = None
    dropped: bool = False


class World:
    """Random traffic against a ledger, and what must be true after every step."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.max_batch_tokens = rng.choice([8, 16, 33])
        self.ledger = make_ledger(
            num_blocks=rng.choice([32, 40, 90]),
            num_slots=rng.choice([2, 5, 8]),
            max_batch_tokens=self.max_batch_tokens,
        )
        self.stories: dict[Key, Story] = {}
        self.reserved: dict[Key, Generation] = {}
        self.born = 0

    def live(self) -> list[Key]:
        return [k for k, s in self.stories.items() if not s.finish and not s.dropped]

    def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.35 and len(self.live()) < 30:
            self.submit()
        elif choice < 0.45:
            self.reserve()
        elif choice < 0.52 and self.reserved:
            self.adopt()
        elif choice < 0.62 and (live := self.live()):
            self.drop(self.rng.choice(live))
        else:
            self.step()

    def generation(self) -> Generation:
        self.born += 1
        prompt_len = self.rng.choice([1, 2, 9, self.rng.randrange(1, 120)])
        forced = (5,) * self.rng.choice([0, 0, 0, 3])
        return make_generation(
            f"g{self.born}",
            prompt_len,
            len(forced) + self.rng.randrange(1, 30),
            forced=forced,
            sampling=Sampling(ignore_eos=self.rng.random() < 0.5, stop_token_ids=(3,)),
        )

    def submit(self) -> None:
        generation, hold = self.generation(), self.rng.random() < 0.3
        self.ledger.submit(generation, hold=hold)
        self.stories[generation.key] = Story(generation, hold)

    def reserve(self) -> None:
        generation = self.generation()
        pages = self.ledger.reserve(generation.key, generation.capacity)
        if pages is not None:
            self.reserved[generation.key] = generation
            self.stories[generation.key] = Story(generation)

    def adopt(self) -> None:
        key = self.rng.choice(list(self.reserved))
        self.ledger.adopt(self.reserved.pop(key))

    def drop(self, key: Key) -> None:
        assert self.ledger.drop(key)
        self.reserved.pop(key, None)
        self.stories[key].dropped = True

    def step(self) -> None:
        chosen = self.ledger.next_plan()
        assert sum(piece.count for piece in chosen.pieces) <= self.max_batch_tokens
        assert len({piece.request.key for piece in chosen.pieces}) == len(chosen.pieces)
        for piece in chosen.pieces:
            assert piece.start == piece.request.written and piece.count >= 1
            assert piece.end <= len(piece.request.blocks) * 8 and piece.request.slot
        outcomes: list[Outcome] = [
            Broken("bad") if self.rng.random() < 0.01 else self.rng.randrange(100)
            for piece in chosen.pieces
            if piece.samples
        ]
        if chosen.pieces and self.rng.random() < 0.01:
            rows = self.ledger.fail(chosen, "step failed")
        else:
            rows, _ = self.ledger.commit(chosen, outcomes)
        for row in rows:
            self.hear(row)

    def hear(self, row: Row) -> None:
        story = self.stories[row.key]
        assert not story.dropped and story.finish is None
        story.output += row.token_ids
        story.finish = row.finish
        generation = story.generation
        total = len(generation.forced) + len(story.output)
        assert total <= generation.max_new
        assert len(generation.prompt) + total <= BOUNDS.max_model_len
        if row.finish is Finish.LENGTH:
            at_limit = len(generation.prompt) + total == BOUNDS.max_model_len
            assert total == generation.max_new or at_limit
        if story.held and row.finish is None:
            pages = self.ledger.held(row.key)
            assert pages is not None and pages.num_tokens == len(generation.tokens)

    def drain(self) -> None:
        """Everything ends once held and reserved sequences are dropped and the queue moves."""
        for _ in range(5000):
            for key in self.live():
                if key in self.reserved or self.ledger.held(key):
                    self.drop(key)
            if not self.ledger.has_work:
                break
            self.step()
        assert not self.live()


@pytest.mark.parametrize("seed", range(24))
def test_random_traffic_keeps_the_books_and_ends_every_sequence(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(1500):
        world.act()
        world.ledger.check()
    world.drain()
    counts = world.ledger.counts()
    assert counts.free_blocks == counts.num_blocks and counts.free_slots == counts.num_slots
    assert counts.running == counts.waiting == counts.held == counts.reserved == 0
    assert any(s.finish is Finish.STOP for s in world.stories.values())
    assert any(s.finish is Finish.LENGTH for s in world.stories.values())
