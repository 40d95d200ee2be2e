"""What happens around a request does not change its tokens.

Random traffic, seeded: arrivals, drops, stops by chance, chunks, pages so few that sequences are
swapped out or computed again, prompts that go on where others ended, steps that overlap or not, one
engine or two. Every sequence must get what it gets alone. With a model that only hashes there is
time for thousands; the tiny model computes for real.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.engine.anchors import AnchorPool
from diptych.engine.block_pool import BlockPool
from diptych.engine.build import build_parts
from diptych.engine.device import Device, DeviceThread
from diptych.engine.ledger import Ledger
from diptych.engine.options import Options
from diptych.engine.requests import Bounds
from diptych.engine.scheduler import Limits
from diptych.engine.slots import SlotPool
from diptych.engine.stepper import Stepper
from diptych.engine.swap import SwapSpace
from diptych.supervisor.checkpoint import embedded_folder

from .conftest import TINY
from .hashing import HashingRunner, isolated
from .lazy import LazyDevice
from .traffic import Heard, Hybrid, Rig, Split, Traffic, drive

BOUNDS = Bounds(vocab_size=97, max_model_len=160, eos_token_id=1)
TINY_LEN = 96
SMALL: dict[str, Any] = {"block_tokens": 8}
DEVICES: dict[str, Callable[[], Device | None]] = {
    "one by one": lambda: None,
    "late": LazyDevice,
    "thread": DeviceThread,
}


@dataclass
class Seen:
    """What the traffic of a test made engines do: a test of nothing must not pass."""

    requests: int = 0
    preemptions: int = 0
    swaps: int = 0
    hit_tokens: int = 0
    errors: int = 0

    def add(self, engine: Hybrid) -> None:
        self.errors += list(engine.heard.finished.values()).count(Finish.ERROR)
        for counts in (rig.ledger.counts() for rig in engine.rigs):
            assert counts.free_blocks == counts.num_blocks
            assert counts.free_slots == counts.num_slots
            self.preemptions += counts.preemptions_total
            self.swaps += counts.swaps_total
            self.hit_tokens += counts.hit_tokens_total


def check(engine: Hybrid) -> None:
    for rig in engine.rigs:
        rig.ledger.check()


def hashing_limits(rng: random.Random) -> Limits:
    window = rng.choice([3, 5])
    return Limits(
        rng.choice([4, 8]),
        max_batch_tokens=rng.choice([6, 7, 11, 32]),
        window=window,
        replay=rng.random() < 0.9,
    )


def hashing_rig(
    rng: random.Random, limits: Limits, device: Device | None, faults: random.Random | None
) -> Rig:
    """Pools of any size, down to what one sequence of full length takes; steps break by chance."""

    def fails() -> float | None:
        return faults.random() if faults and faults.random() < 0.02 else None

    longest = -(-BOUNDS.max_model_len // limits.grain)
    blocks, slots = longest + rng.randrange(longest // 2), rng.randrange(3, 7)
    anchors = rng.choice([0, 2, 5, 30])
    host = rng.choice([(0, 0), (longest // 2, 1), (3 * longest, 3)])
    runner = HashingRunner(BOUNDS, limits, blocks, slots, anchors, *host, fails)
    ledger = Ledger(
        BOUNDS, limits, BlockPool(blocks), SlotPool(slots), AnchorPool(anchors), SwapSpace(*host)
    )
    return Rig(ledger, Stepper(ledger, runner, device), runner)


def hash_traffic(rng: random.Random, device: str, count: int, seen: Seen) -> None:
    """Random engines, random requests: all of them get what they get alone."""
    limits = hashing_limits(rng)
    faults = random.Random(rng.random()) if rng.random() < 0.5 else None
    rigs = [hashing_rig(rng, limits, DEVICES[device](), faults) for _ in range(rng.choice([1, 2]))]
    engine = Split(*rigs) if len(rigs) == 2 else Hybrid(*rigs)
    engine.heard.faults = faults is not None
    lengths = (1, 2, 7, 16, 40), (1, 8, 30, 60)
    traffic = Traffic(rng, BOUNDS.vocab_size, BOUNDS.max_model_len, *lengths)
    asked = drive(engine, traffic, count, lambda: check(engine))
    for key, generation in asked.items():
        expect(engine.heard, generation, list(isolated(generation, BOUNDS, limits)))
        assert key in engine.heard.finished or key in engine.heard.dropped
    seen.requests += len(asked)
    seen.add(engine)
    for each in engine.rigs:
        each.stepper.close()


def expect(heard: Heard, generation: Generation, alone: list[int]) -> None:
    found = heard.tokens.get(generation.key, [])
    if heard.is_cut(generation.key):
        alone = alone[: len(found)]
    assert found == alone, generation


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_gets_alone_what_it_gets_in_random_traffic(device: str) -> None:
    seen = Seen()
    for seed in range(40):
        hash_traffic(random.Random(seed), device, 30, seen)
    assert seen.requests == 1200
    assert seen.preemptions > 100 and seen.swaps > 50 and seen.hit_tokens > 1000
    assert seen.errors > 20


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_gets_alone_what_it_gets_in_a_lot_of_random_traffic(device: str) -> None:
    seen = Seen()
    for seed in range(10_000, 11_000):
        hash_traffic(random.Random(seed), device, 60, seen)
    assert seen.requests == 60_000


def tiny_rig(folder: Path, **choices: Any) -> Rig:
    parts = build_parts(folder, model_name="tiny", options=Options(**SMALL | choices))
    return Rig(parts.ledger, parts.stepper, parts.arenas)


def random_tiny_rig(folder: Path, length: int, rng: random.Random, spare_blocks: int) -> Rig:
    slots = rng.choice([5, 8])
    return tiny_rig(
        folder,
        max_model_len=length,
        replay=rng.choice(["compact", "mask"]),
        async_stepping=rng.random() < 0.5,
        max_num_seqs=slots,
        max_batch_tokens=rng.choice([slots, 32]),
        num_blocks=length // 8 + spare_blocks,
        num_anchors=rng.choice([2, 64]),
        swap_bytes=rng.choice([0, 0, 2**28]),
    )


def tiny_traffic(
    rng: random.Random, count: int, seen: Seen, folder: Path = TINY, length: int = TINY_LEN
) -> None:
    """As `hash_traffic`, with the tiny model: an engine that serves nobody else is the judge.

    Either pages are short, or conversations go on.
    """
    if rng.random() < 0.5:
        rigs = [
            random_tiny_rig(folder, length, rng, spare_blocks=0) for _ in range(rng.choice([1, 2]))
        ]
        traffic = Traffic(rng, 900, length, (1, 3, 9), (1, 4, 24), reuse=0.1)
    else:
        rigs = [
            random_tiny_rig(folder, length, rng, spare_blocks=24) for _ in range(rng.choice([1, 2]))
        ]
        traffic = Traffic(rng, 900, length, (1, 9, 20, 40), (1, 2, 4), reuse=0.9)
    engine = Split(*rigs) if len(rigs) == 2 else Hybrid(*rigs)
    asked = drive(engine, traffic, count, lambda: check(engine))
    judge = Hybrid(tiny_rig(folder, max_model_len=length))
    for generation in asked.values():
        cold = replace(generation, scope=b"")  # nothing is cached
        judge.submit(cold)
        while judge.step():
            pass
        expect(engine.heard, generation, judge.heard.tokens[generation.key])
    seen.requests += len(asked)
    seen.add(engine)
    for each in (*engine.rigs, *judge.rigs):
        each.stepper.close()


@pytest.mark.timeout(300)
def test_the_tiny_model_says_in_random_traffic_what_it_says_to_one() -> None:
    seen = Seen()
    for seed in range(5):
        tiny_traffic(random.Random(seed), 15, seen)
    assert seen.requests == 75
    assert seen.preemptions > 3 and seen.swaps > 1 and seen.hit_tokens > 20


@pytest.mark.timeout(300)
def test_the_bundled_model_says_in_random_traffic_what_it_says_to_one() -> None:
    seen = Seen()
    for seed, length in ((1, 96), (3, 96), (0, 192), (2, 192)):  # short of pages; conversations
        tiny_traffic(random.Random(seed), 10, seen, embedded_folder(), length)
    assert seen.requests == 40
    assert seen.preemptions > 0 and seen.hit_tokens > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_tiny_model_says_in_a_lot_of_random_traffic_what_it_says_to_one() -> None:
    seen = Seen()
    for seed in range(100, 140):
        tiny_traffic(random.Random(seed), 25, seen)
    assert seen.requests == 1000
