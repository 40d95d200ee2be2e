"""Requests by the handful, a runner without a model, and engines over the tiny checkpoint."""

import asyncio
import hashlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from diptych.core.ids import Key
from diptych.core.layout import make_layout
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.core.step import Row, StepOutput
from diptych.engine.block_pool import BlockPool
from diptych.engine.build import build_engine
from diptych.engine.device import Device
from diptych.engine.ledger import Ledger, Outcome
from diptych.engine.loop import Engine
from diptych.engine.options import Options
from diptych.engine.port import Counts
from diptych.engine.requests import Bounds, Request, capacity
from diptych.engine.scheduler import Limits, Plan
from diptych.engine.slots import SlotPool
from diptych.engine.stepper import Stepper

GOLDEN = Path(__file__).parents[2] / "golden"
TINY = GOLDEN / "tiny-text"
BOUNDS = Bounds(vocab_size=100, max_model_len=256, eos_token_id=1)
T = TypeVar("T")
WAIT_S = 20.0  # longer than anything here takes; a test that reaches it fails


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the name of the test."""
    return random.Random(hashlib.sha256(request.node.name.encode()).digest())


def make_generation(
    name: str = "r",
    prompt_len: int = 5,
    max_new: int = 4,
    *,
    attempt: int = 1,
    prompt: tuple[int, ...] = (),
    forced: tuple[int, ...] = (),
    sampling: Sampling | None = None,
    scope: bytes = b"",
    priority: str = "normal",
    tenant: str = "default",
) -> Generation:
    """A greedy generation whose end-of-sequence token is ignored."""
    sampling = sampling or Sampling(temperature=0, ignore_eos=True)
    prompt = prompt or tuple(2 + i % 50 for i in range(prompt_len))
    key = Key(name, attempt)
    return Generation(key, prompt, sampling, max_new, forced, scope, priority, tenant)


def make_request(generation: Generation, *, hold: bool = False) -> Request:
    positions = capacity(generation, BOUNDS, hold=hold)
    return Request(generation, hold, False, positions, list(generation.tokens))


def make_ledger(
    num_blocks: int = 64, num_slots: int = 8, grain: int = 8, max_batch_tokens: int = 32
) -> Ledger:
    limits = Limits(grain, max_batch_tokens)
    return Ledger(BOUNDS, limits, BlockPool(num_blocks), SlotPool(num_slots))


@dataclass
class FakeRunner:
    """Says `token` for every sample. It can be held in the middle of a step, or break."""

    token: int = 7
    outcome: Callable[[str], Outcome] | None = None  # by request id
    breaks: bool = False
    breaks_at: int | None = None  # a step
    poison: str = ""  # a request id: every step breaks that it is part of
    sampled: list[str] = field(default_factory=list)  # request ids
    paced: bool = False  # every step needs one of `permits`
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    plans: list[Plan] = field(default_factory=list)
    entered: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def begin(self, plan: Plan) -> Plan:
        return plan

    def forward(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.entered.set()
        assert self.may_go_on.wait(WAIT_S)
        assert not self.paced or self.permits.acquire(timeout=WAIT_S)
        is_poisoned = any(p.request.key.request_id == self.poison for p in plan.pieces)
        if self.breaks or is_poisoned or plan.step == self.breaks_at:
            raise RuntimeError("the fake runner broke")

    def sample(self, plan: Plan, chosen: Sequence[int]) -> list[Outcome]:
        names = [plan.pieces[i].request.key.request_id for i in chosen]
        self.sampled += names
        return [self.outcome(name) if self.outcome else self.token for name in names]

    async def between_steps(self, command: Coroutine[None, None, T]) -> T:
        """Let a command in behind the step under way; the next one waits for its permit."""
        asked = asyncio.create_task(command)
        await asyncio.sleep(0)
        self.permits.release()
        return await asked


class Pages:
    """Bytes of pages that nobody reads."""

    def block(self, page: int) -> memoryview:
        return memoryview(bytearray(8))

    slot = block


@dataclass
class Watched:
    """An engine and all that it said."""

    engine: Engine
    outputs: list[StepOutput]
    changed: asyncio.Event

    def rows(self, name: str) -> list[Row]:
        return [r for out in self.outputs for r in out.rows if r.key.request_id == name]

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(token for row in self.rows(name) for token in row.token_ids)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def finished(self, *names: str) -> None:
        await self.until(lambda: all(r and r[-1].finish for r in map(self.rows, names)))


def is_at_rest(counts: Counts) -> bool:
    """Whether nothing is left of any request."""
    owned = counts.running + counts.waiting + counts.held + counts.reserved
    pages = (counts.num_blocks - counts.free_blocks) + (counts.num_slots - counts.free_slots)
    return owned + pages == 0


@asynccontextmanager
async def watched(make: Callable[..., Engine]) -> AsyncIterator[Watched]:
    """Run an engine made by `make(on_step=, loop=)`; at the end all its pages must be free."""
    outputs: list[StepOutput] = []
    changed = asyncio.Event()

    def on_step(output: StepOutput) -> None:
        outputs.append(output)
        changed.set()

    engine = make(on_step=on_step, loop=asyncio.get_running_loop())
    try:
        it = Watched(engine, outputs, changed)
        yield it
        await it.until(lambda: is_at_rest(engine.counts()))  # a last row may still be under way
    finally:
        await engine.stop()


@asynccontextmanager
async def fake_engine(
    runner: FakeRunner, ledger: Ledger | None = None, device: Device | None = None
) -> AsyncIterator[Watched]:
    ledger = ledger or make_ledger()

    def make(**where: object) -> Engine:
        layout = make_layout([], grain=8, ring=8, numerics="none")
        stepper = Stepper(ledger, runner, device)
        engine = Engine(stepper, Pages(), layout=layout, namespace=b"n" * 16, **where)
        engine.start()
        return engine

    async with watched(make) as it:
        yield it
    ledger.check()


@asynccontextmanager
async def tiny_engine(numerics: str = "exact", **sizes: int) -> AsyncIterator[Watched]:
    def make(**where: object) -> Engine:
        sizes.setdefault("block_tokens", 8)
        options = Options(numerics=numerics, **sizes)
        return build_engine(TINY, model_name="tiny", options=options, **where)

    async with watched(make) as it:
        yield it
