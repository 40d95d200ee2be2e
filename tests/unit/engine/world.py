"""Random traffic against a ledger, over pages that remember whose they are.

The model is a running hash: every position has a value that depends on all tokens up to it. A block
page remembers the value of the last position written to it, a slot, an anchor and their copies on
the host that of the position where their windows end. Whoever reads a page that was given to
another, evicted, swapped wrongly, or not written yet is found at once, and the next token is a
function of the value, so that what a sequence says alone is known.
"""

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from diptych.core.errors import Broken
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import PRIORITIES, Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.ledger import Ledger, Outcome
from diptych.engine.loading import Rates, choose
from diptych.engine.planner import BYPASS_MAX
from diptych.engine.requests import Bounds, blocks_for
from diptych.engine.scheduler import Limits, Piece, Plan
from diptych.engine.slots import SlotPool
from diptych.engine.swap import SwapSpace

from .shelf import NOT_HERE, Asked, Delivery, Fill, Mark, Shelf

BOUNDS = Bounds(vocab_size=60, max_model_len=96, eos_token_id=1)
GRAIN = 8
WINDOW = 4

STATES = {
    "preparing",
    "waiting",
    "running",
    "in flight",
    "held",
    "reserved",
    "preempted",
    "being swapped",
    "swapped",
}

DELIVERIES = {"whole", "in part", "nothing", "for nobody", "refused"}

_MASK = 2**61 - 1


def mix(value: int, token: int) -> int:
    return (value * 0x9E3779B97F4A7C15 + token + 1) % _MASK


def say(value: int, seed: int) -> int:
    return 2 + (value ^ seed) % 58 if (value ^ seed) % 31 else 1


def alone(generation: Generation) -> tuple[tuple[int, ...], Finish]:
    """What a generation says when nobody else is there, and how it ends."""
    value = 0
    for token in generation.tokens:
        value = mix(value, token)
    how, said = generation.sampling, list(generation.forced)
    while True:
        token = say(value, how.seed)
        said.append(token)
        value = mix(value, token)
        output = tuple(said[len(generation.forced) :])
        if token in how.stop_token_ids or (token == BOUNDS.eos_token_id and not how.ignore_eos):
            return output, Finish.STOP
        total = len(generation.prompt) + len(said)
        if len(said) == generation.max_new or total == BOUNDS.max_model_len:
            return output, Finish.LENGTH


class Machine:
    """Executes plans on marks instead of bytes."""

    def __init__(self) -> None:
        self.blocks: dict[int, Mark] = {}
        self.slots: dict[int, Mark] = {}
        self.anchors: dict[int, Mark] = {}
        self.host_blocks: dict[int, Mark] = {}
        self.host_slots: dict[int, Mark] = {}
        self.sampled: dict[tuple[int, int], int] = {}  # by step and slot
        self._values: dict[Key, list[int]] = {}  # by position; a cache, checked against tokens

    def forward(self, plan: Plan) -> dict[int, int]:
        """All that a plan orders; the value behind each piece that samples, by its place."""
        for swap in plan.swap_ins:
            for page, host in zip(swap.blocks, swap.host_blocks, strict=True):
                self.blocks[page] = self.host_blocks[host]
            self.slots[swap.slot] = self.host_slots[swap.host_slot]
        for anchor in plan.loads:
            assert self.anchors[anchor.page][0] == anchor.position
            self.slots[anchor.slot] = self.anchors[anchor.page]
        last = {i: self._compute(piece, plan.step) for i, piece in enumerate(plan.pieces)}
        for anchor in plan.saves:
            self.anchors[anchor.page] = self.slots[anchor.slot]
        for swap in plan.swap_outs:
            for page, host in zip(swap.blocks, swap.host_blocks, strict=True):
                self.host_blocks[host] = self.blocks[page]
            self.host_slots[swap.host_slot] = self.slots[swap.slot]
        return {i: value for i, value in last.items() if plan.pieces[i].samples}

    def _compute(self, piece: Piece, step: int) -> int:
        request, start, end = piece.request, piece.start, piece.end
        if piece.lapsed:  # a row for nobody: all it may do is harm to pages that are not its own
            first = (start + piece.replayed) // GRAIN
            for page in piece.blocks[first : blocks_for(end, GRAIN)]:
                self.blocks[page] = (-1, 0)
            self.slots[piece.slot] = (-1, 0)
            return 0
        tokens = request.tokens
        if len(tokens) < end:
            assert piece.unknown and len(tokens) == end - 1
            tokens = [*tokens, self.sampled.get((step - 1, piece.slot), 0)]
        values = self._values_of(request.key, tokens, end)
        settled = start + piece.replayed
        if start > piece.encoder_floor:  # else windows begin here
            assert self.slots[piece.slot] == (start, values[start - 1]), "a foreign slot"
        if settled == end:  # windows only
            self.slots[piece.slot] = (end, values[end - 1])
            return 0
        for index in range(settled // GRAIN):
            upto = (index + 1) * GRAIN
            assert self.blocks[piece.blocks[index]] == (upto, values[upto - 1]), "a foreign block"
        if settled % GRAIN:
            mark = self.blocks[piece.blocks[settled // GRAIN]]
            assert mark == (settled, values[settled - 1]), "a foreign tail"
        for index in range(settled // GRAIN, blocks_for(end, GRAIN)):
            upto = min((index + 1) * GRAIN, end)
            self.blocks[piece.blocks[index]] = (upto, values[upto - 1])
        self.slots[piece.slot] = (end, values[end - 1])
        return values[end - 1]

    def _values_of(self, key: Key, tokens: list[int], end: int) -> list[int]:
        values = self._values.setdefault(key, [])
        del values[max(0, end - 1) :]  # the newest token may have been a guess for nobody
        for token in tokens[len(values) : end]:
            values.append(mix(values[-1] if values else 0, token))
        return values

    def forget(self, key: Key) -> None:
        self._values.pop(key, None)


@dataclass
class Story:
    """What the outside has seen of one key."""

    generation: Generation
    hold: bool = False
    output: list[int] = field(default_factory=list)
    finish: Finish | None = None
    cached_tokens: int = 0


@dataclass
class Flight:
    """A plan that is out."""

    plan: Plan
    values: dict[int, int] | None = None  # once its forward was executed
    outcomes: list[Outcome] | None = None  # once it was sampled
    written: dict[int, Key] = field(default_factory=dict)  # block pages, and who writes them
    readers: dict[int, set[Key]] = field(default_factory=dict)  # of block pages
    slots: dict[int, Key] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """Of a ledger and of what comes to it."""

    num_blocks: int
    num_slots: int
    num_anchors: int = 0
    num_host_blocks: int = 0
    num_host_slots: int = 0
    max_batch_tokens: int = 16
    replay: bool = True
    deterministic: bool = True
    overlapped: bool = True
    appetite: float = 0.1  # requests that come, for each thing that happens
    tiered: bool = False

    @classmethod
    def random(cls, rng: random.Random) -> "Sizes":
        num_slots = rng.choice([2, 3, 5, 8])
        return cls(
            num_blocks=rng.choice([12, 14, 20, 40]),
            num_slots=num_slots,
            num_anchors=rng.choice([0, 3, 8, 20]),
            num_host_blocks=rng.choice([0, 12, 40]),
            num_host_slots=rng.choice([0, 1, 4]),
            max_batch_tokens=max(num_slots, rng.choice([8, 16, 33])),
            replay=rng.random() < 0.9,
            deterministic=rng.random() < 0.7,
            overlapped=rng.random() < 0.7,
            appetite=rng.choice([0.05, 0.2, 0.4]),
            tiered=rng.random() < 0.6,
        )


class World:
    """A ledger, a machine, and what must be true whatever happens."""

    def __init__(self, rng: random.Random, sizes: Sizes | None = None) -> None:
        self.rng = rng
        self.sizes = sizes = sizes or Sizes.random(rng)
        self.limits = Limits(
            GRAIN,
            sizes.max_batch_tokens,
            window=WINDOW,
            replay=sizes.replay,
            deterministic=sizes.deterministic,
            tiered=sizes.tiered,
        )
        self.ledger = Ledger(
            BOUNDS,
            self.limits,
            BlockPool(sizes.num_blocks),
            SlotPool(sizes.num_slots),
            AnchorPool(sizes.num_anchors),
            SwapSpace(sizes.num_host_blocks, sizes.num_host_slots),
        )
        self.machine = Machine()
        self.shelf = Shelf(GRAIN)
        self.asked: list[Asked] = []
        self.coming: list[Delivery] = []
        self.now_s = 0.0
        self.live: dict[Key, Story] = {}
        self.preparing: list[Key] = []
        self.reserved: dict[Key, Generation] = {}
        self.out: deque[Flight] = deque()
        self.prompts: list[tuple[int, ...]] = [()]
        self.born = 0
        self.steps = 0
        self.finishes: Counter[Finish] = Counter()
        self.drops: Counter[str] = Counter()  # by where the sequence stood
        self.cached_tokens = 0
        self.brought_tokens = 0
        self.brought: Counter[str] = Counter()  # deliveries, by how they ended
        self.poison: set[Key] = set()  # whose steps all break
        self.broken = Counter[bool]()  # steps, by whether a sequence was alone in them

    # What comes

    def act(self) -> None:
        """One thing that happens, mostly a step."""
        self.now_s += self.rng.expovariate(5.0)
        choice = self.rng.random()
        if self.sizes.tiered and self.rng.random() < 0.3:
            self.trade()
        elif self.rng.random() < self.sizes.appetite and len(self.live) < 24:
            self.submit()
        elif choice < 0.01:
            self.reserve()
        elif choice < 0.06 and self.reserved:
            self.adopt()
        elif choice < 0.14 and self.preparing:
            self.make_ready(self.rng.choice(self.preparing))
        elif choice < 0.16 and self.live:
            dropped = self.drop(self.rng.choice(list(self.live)))
            if self.rng.random() < 0.2:  # and comes again under the same key
                self.submit(dropped)
        elif choice < 0.26 and (held := [k for k, s in self.live.items() if s.hold and s.output]):
            self.drop(self.rng.choice(held))
        else:
            self.step()

    def generation(self) -> Generation:
        """Prompts begin like others, or go on where others ended."""
        rng = self.rng
        self.born += 1
        prompt = rng.choice(self.prompts) if rng.random() < 0.7 else ()
        if rng.random() < 0.4:
            prompt = prompt[: rng.randrange(len(prompt) + 1)]
        lengths = [1, 9, 30, 50] if self.sizes.tiered else [1, 2, 9, 30]
        prompt += tuple(rng.randrange(2, 60) for _ in range(rng.choice(lengths)))
        prompt = prompt[: BOUNDS.max_model_len - 8]
        remembered = 40 if self.sizes.tiered else 6  # long enough for pages to be given away
        self.prompts = [(), *self.prompts[-remembered:], prompt]
        forced = tuple(rng.randrange(2, 60) for _ in range(rng.choice([0, 0, 0, 3])))
        how = Sampling(seed=rng.getrandbits(60), ignore_eos=rng.random() < 0.5, stop_token_ids=(3,))
        return Generation(
            Key(f"g{self.born}", 1),
            prompt,
            how,
            max_new=len(forced) + rng.choice([1, 3, 20, 60]),
            forced=forced,
            scope=rng.choice([b"", b"s" * 16, b"s" * 16, b"t" * 16]),
            priority=rng.choice(PRIORITIES),
            tenant=rng.choice("ab"),
            retention=rng.choice(["chat"] * 6 + ["agent", "none"]),
        )

    def submit(self, generation: Generation | None = None, *, hold: bool | None = None) -> Key:
        generation = generation or self.generation()
        hold = self.rng.random() < 0.1 if hold is None else hold
        if generation.sampling.seed % 200 == 0:
            self.poison.add(generation.key)
        ready = self.rng.random() < (0.1 if self.sizes.tiered else 0.8)
        self.ledger.submit(generation, hold=hold, ready=ready, now_s=self.now_s)
        if not ready:
            self.preparing.append(generation.key)
        self.live[generation.key] = Story(generation, hold)
        return generation.key

    def reserve(self) -> None:
        generation = self.generation()
        pages = self.ledger.reserve(generation.key, len(generation.tokens))
        if pages is None:
            return
        for flight in self.out:
            assert flight.readers.keys().isdisjoint(pages.blocks), "reserved before the fence"
            assert pages.slot not in flight.slots, "reserved before the fence"
        for delivery in self.coming:
            assert not set(delivery.begun.pages) & set(pages.blocks), "reserved while being filled"
        self.reserved[generation.key] = generation
        self.live[generation.key] = Story(generation)
        value = 0
        for position, token in enumerate(generation.tokens[:-1]):  # what the other side computed
            value = mix(value, token)
            self.machine.blocks[pages.blocks[position // GRAIN]] = (position + 1, value)
            self.machine.slots[pages.slot] = (position + 1, value)

    def adopt(self) -> None:
        key = self.rng.choice(list(self.reserved))
        self.ledger.adopt(self.reserved.pop(key))
        self.keep()

    def make_ready(self, key: Key) -> None:
        """Whoever waits for the tier goes on when that has ended, well or not."""
        self.asked = [asked for asked in self.asked if asked.key != key]
        for delivery in [d for d in self.coming if d.key == key]:
            self.end(delivery)
        self.preparing.remove(key)
        assert self.ledger.ready(key)

    def drop(self, key: Key) -> Generation:
        self.drops[self.where(key)] += 1
        assert self.ledger.drop(key) and not self.ledger.drop(key)
        self.keep()
        self.reserved.pop(key, None)
        if key in self.preparing:
            self.preparing.remove(key)
        self.machine.forget(key)
        return self.live.pop(key).generation

    def drop_if_known(self, key: Key) -> None:
        if key in self.live:
            self.drop(key)

    def where(self, key: Key) -> str:
        """Where a sequence stands, in words."""
        if key in self.preparing:
            return "preparing"
        if key in self.reserved:
            return "reserved"
        if self.ledger.held(key) is not None:
            return "held"
        if key in self.ledger._running:
            return "in flight" if any(self.has(f, key) for f in self.out) else "running"
        (request,) = (r for r in self.ledger._queue if r.key == key)
        if request.swapped:
            is_leaving = any(f.plan.step == request.last_step for f in self.out)
            return "being swapped" if is_leaving else "swapped"
        return "waiting" if request.cached is None else "preempted"

    @staticmethod
    def has(flight: Flight, key: Key) -> bool:
        return any(piece.request.key == key for piece in flight.plan.pieces)

    # The cache tier

    def keep(self) -> None:
        """After everything that writes, and before anything that gives pages away."""
        for note in self.ledger.take_notes():
            pages = self.machine.anchors if note.is_anchor else self.machine.blocks
            mark = pages[note.page]
            if self.rng.random() < 0.98:
                self.shelf.keep(note, mark, self.rng.choice(["memory", "disk"]))

    def trade(self) -> None:
        """Somebody asks, takes pages, gets something, gets no more; or the tier forgets."""
        rng, choice = self.rng, self.rng.random()
        if choice < 0.01:
            self.shelf.lose(rng)
        elif choice < 0.04 and self.coming:
            self.drop_if_known(rng.choice(self.coming).key)
        elif choice < 0.4 and self.coming:
            rng.choice(self.coming).fill_one()
        elif choice < 0.55 and self.coming:
            self.end(rng.choice(self.coming))
        elif choice < 0.75 and self.asked:
            self.begin(self.asked.pop(rng.randrange(len(self.asked))))
        elif self.preparing:
            self.ask(rng.choice(self.preparing))

    def ask(self, key: Key) -> None:
        is_asking = any(who.key == key for who in (*self.asked, *self.coming))
        missing = None if is_asking else self.ledger.missing(key)
        if missing is not None and (stored := self.shelf.find(missing)):
            count = len(stored) if self.rng.random() < 0.7 else self.rng.randrange(len(stored))
            self.asked.append(Asked(key, missing, stored[:count]))

    def begin(self, asked: Asked) -> None:
        missing, rates = asked.missing, Rates(row_s=1.0, wait_s=0.0)
        load = choose(
            missing.local, asked.stored, self.limits, rates, block_bytes=1, anchor_bytes=1
        )
        if load is None:
            return
        begun = self.ledger.begin_import(missing.request, load)
        if begun is None:
            self.brought["refused"] += 1
            return
        self.expect_nobodys(begun.pages, begun.anchor_page)
        shelf, machine = self.shelf, self.machine
        marks = [shelf.blocks[name][0] if name in shelf.blocks else None for name in begun.names]
        pages = zip(begun.pages, marks, strict=True)
        fills = [Fill(machine.blocks, page, mark) for page, mark in pages]
        if begun.anchor_page is not None:
            mark = shelf.anchors.get(begun.anchor_block)
            fills.append(Fill(machine.anchors, begun.anchor_page, mark))
        for fill in fills:
            fill.pages[fill.page] = NOT_HERE
        coming = asked.stored[begun.first - missing.local.anchored :][: len(begun.pages)]
        self.coming.append(Delivery(asked.key, begun, coming, fills))

    def end(self, delivery: Delivery) -> None:
        self.coming.remove(delivery)
        is_whole, count = delivery.is_whole, delivery.num_filled
        self.brought["whole" if is_whole else "in part" if count else "nothing"] += 1
        if delivery.key not in self.preparing:
            self.brought["for nobody"] += 1
        self.ledger.end_import(delivery.begun, delivery.coming[:count], has_anchor=is_whole)

    def expect_nobodys(self, pages: tuple[int, ...], anchor_page: int | None) -> None:
        """What is about to be filled is touched by no plan that is out."""
        for flight in self.out:
            assert flight.readers.keys().isdisjoint(pages), "filled before the fence"
            anchors = (*flight.plan.loads, *flight.plan.saves)
            assert anchor_page not in {anchor.page for anchor in anchors}, "an anchor before it"
        for delivery in self.coming:
            assert not set(delivery.begun.pages) & set(pages), "filled for two"

    # Steps

    def step(self) -> None:
        """Plan and launch; retire what was launched before, or at once."""
        plan = self.ledger.next_plan(self.now_s)
        if plan.idle:
            if not self.out:
                self.expect_blocked()
        else:
            self.steps += 1
            self.out.append(self.launch(plan))
        while len(self.out) > (1 if self.sizes.overlapped and not plan.idle else 0):
            self.retire(self.out[0])
        self.keep()

    def expect_blocked(self) -> None:
        """Nothing can be done: then there is nothing to do, or pages are with others for good."""
        counts = self.ledger.counts()
        is_waiting = bool(counts.held or counts.reserved or self.coming)
        assert not self.ledger.has_work or is_waiting, "the engine is stuck"

    def launch(self, plan: Plan) -> Flight:
        flight = Flight(plan)
        assert sum(piece.count for piece in plan.pieces) <= self.sizes.max_batch_tokens
        assert len({piece.request.key for piece in plan.pieces}) == len(plan.pieces)
        assert not any(piece.request.ended for piece in plan.pieces)
        for piece in plan.pieces:
            key = piece.request.key
            assert piece.count >= 1 and piece.slot and piece.end <= len(piece.blocks) * GRAIN
            assert piece.end <= piece.request.capacity
            flight.slots[piece.slot] = key
            for page in piece.blocks:
                flight.readers.setdefault(page, set()).add(key)
            settled = piece.start + piece.replayed
            if settled < piece.end:
                for page in piece.blocks[settled // GRAIN : blocks_for(piece.end, GRAIN)]:
                    assert page not in flight.written, "two write one page"
                    flight.written[page] = key
        for swap in plan.swap_outs:
            assert flight.slots.get(swap.slot) is None
        self.expect_fenced(flight)
        if self.rng.random() < 0.5:  # a fast device is done before the last step is retired
            for older in self.out:
                self.sample(older)
            self.forward(flight)
        return flight

    def forward(self, flight: Flight) -> None:
        if flight.values is None:
            flight.values = self.machine.forward(flight.plan)

    def sample(self, flight: Flight) -> None:
        self.forward(flight)
        if flight.outcomes is None:
            flight.outcomes = list(self.outcomes(flight))

    def expect_fenced(self, flight: Flight) -> None:
        """What an older plan that is out touches is not given to others, nor what is filled."""
        for delivery in self.coming:
            assert flight.readers.keys().isdisjoint(delivery.begun.pages), "read while being filled"
            used = {anchor.page for anchor in (*flight.plan.loads, *flight.plan.saves)}
            assert delivery.begun.anchor_page not in used, "an anchor while it is being filled"
        for page, key in flight.written.items():
            for other in (*self.out, flight):
                assert other.readers.get(page, set()) <= {key}, "a page that another one reads"
        for older in self.out:
            for slot, key in flight.slots.items():
                assert older.slots.get(slot, key) == key, "a slot before its fence"
            saved = {anchor.page for anchor in flight.plan.saves}
            used = {anchor.page for anchor in (*older.plan.loads, *older.plan.saves)}
            assert saved.isdisjoint(used), "an anchor before its fence"
            given = {h for swap in flight.plan.swap_outs for h in swap.host_blocks}
            copies = (*older.plan.swap_ins, *older.plan.swap_outs)
            assert given.isdisjoint(h for swap in copies for h in swap.host_blocks)

    def retire(self, flight: Flight) -> None:
        plan = flight.plan
        hit = [piece.request.key for piece in plan.pieces if not piece.lapsed]
        if self.rng.random() < 0.003 or not self.poison.isdisjoint(hit):
            rows = self.ledger.fail(plan, "the step failed")
            assert [row.key for row in rows] == (hit if len(hit) == 1 else [])
            self.broken[len(hit) == 1] += bool(hit)
        else:
            self.sample(flight)
            assert flight.outcomes is not None
            rows, _ = self.ledger.commit(plan, flight.outcomes)
        assert self.out.popleft() is flight
        for row in rows:
            self.hear(row)
        if self.out and self.rng.random() < 0.5:
            self.sample(self.out[0])

    def outcomes(self, flight: Flight) -> Iterator[Outcome]:
        plan, values = flight.plan, flight.values
        assert values is not None
        self.machine.sampled = {k: v for k, v in self.machine.sampled.items() if k[0] >= plan.step}
        for index, piece in enumerate(plan.pieces):
            if not piece.samples:
                continue
            if piece.lapsed:
                yield 0
            elif self.rng.random() < 0.002:
                yield Broken("bad logits")
            else:
                assert len(piece.request.tokens) == piece.end
                token = say(values[index], piece.request.generation.sampling.seed)
                self.machine.sampled[plan.step, piece.slot] = token
                yield token

    def hear(self, row: Row) -> None:
        story = self.live[row.key]  # nothing is heard of who is dropped or has ended
        generation = story.generation
        if row.cached_tokens:
            usable = max(0, len(generation.prompt) - self.limits.keep) // GRAIN * GRAIN
            assert not story.output and self.limits.replay and generation.scope
            assert row.cached_tokens <= usable and not row.cached_tokens % GRAIN
            self.cached_tokens += row.cached_tokens
            brought = row.cached_memory + row.cached_disk
            assert brought <= row.cached_tokens and not brought % GRAIN
            self.brought_tokens += brought
        assert row.key not in self.poison or row.finish is Finish.ERROR
        story.output += row.token_ids
        expected, finish = alone(generation)
        assert tuple(story.output) == expected[: len(story.output)], generation.key
        if row.finish is not None:
            assert row.finish is Finish.ERROR or row.finish is finish
            self.finishes[row.finish] += 1
            if self.rng.random() < 0.5:
                self.prompts.append((*generation.tokens, *story.output)[:80])
            self.machine.forget(row.key)
            del self.live[row.key]
        elif story.hold:
            pages = self.ledger.held(row.key)
            assert pages is not None and pages.num_tokens == len(generation.tokens)
            for flight in self.out:
                assert flight.written.keys().isdisjoint(pages.blocks)

    # What must be true

    def check(self) -> None:
        self.ledger.check()
        counts = self.ledger.counts()
        assert counts.running + counts.waiting + counts.held + counts.reserved + (
            counts.preparing
        ) == len(self.live)
        entries = self.ledger._queue._entries.values()
        assert all(entry.bypassed <= BYPASS_MAX for entry in entries)

    def drain(self) -> None:
        """Everything ends once it is ready and nobody keeps pages; then all pages are free."""
        while self.live or self.out:
            for key in list(self.preparing):
                self.make_ready(key)
            for delivery in list(self.coming):  # whose askers have left
                self.end(delivery)
            for key in list(self.live):
                if key in self.reserved or self.ledger.held(key) is not None:
                    self.drop(key)
            self.step()
        self.check()
        counts = self.ledger.counts()
        assert counts.free_blocks == counts.num_blocks and counts.free_slots == counts.num_slots
        assert not self.ledger.has_work and not counts.swapped
        told = counts.memory_hit_tokens_total + counts.disk_hit_tokens_total
        assert self.brought_tokens <= told <= counts.hit_tokens_total
        assert self.ledger._pools.num_coming == 0 and not self.ledger._pools._fences
        assert self.ledger._pools.space.fits(self.sizes.num_host_blocks) or (
            not self.sizes.num_host_slots
        )
