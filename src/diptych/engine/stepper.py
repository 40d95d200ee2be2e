"""Steps of the engine: choose, launch, retire.

    plan N+1, launch its forward │ retire N: tokens, stops, pages │ launch the samples of N+1

With a device that works on its own, the forward of N+1 runs behind N while N is retired; its rows
find the tokens that N samples on the device. Its samples are launched when all tokens through N are
known, so masks, penalties and stops never guess. A row of a sequence that N has ended computes for
nothing: it gets no sample, and the ledger forgets it. At most two steps are launched and unretired.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from diptych.core.step import Chunk, StepOutput
from diptych.engine.device import Device, Inline, Pending
from diptych.engine.ledger import Ledger
from diptych.engine.outcome import Outcome
from diptych.engine.scheduler import Plan
from diptych.engine.trace import Observer, Part

_NOBODYS = 0  # in place of a token that nobody waits for

logger = logging.getLogger(__name__)

Step = TypeVar("Step")
T = TypeVar("T")
Tell = Callable[[StepOutput], None]


class Runs(Protocol[Step]):
    """What computes a plan. `begin` runs with the scheduler, the rest on the device."""

    def begin(self, plan: Plan) -> Step:
        """Read from requests what the forward needs: they change while it runs."""
        ...

    def forward(self, step: Step) -> None:
        """Compute all rows, and carry out the copies that the plan orders."""
        ...

    def sample(self, step: Step, chosen: Sequence[int]) -> list[Outcome]:
        """The token behind each of these pieces of the plan, or why there is none."""
        ...


@dataclass(slots=True)
class Flight(Generic[Step]):
    """A step that is launched and not retired."""

    plan: Plan
    begun: Pending[Step]
    computed: Pending[None]
    chosen: list[int] = field(default_factory=list)  # the pieces that get a sample
    sampled: Pending[list[Outcome]] | None = None


class Stepper(Generic[Step]):
    """Steps over one ledger. Its caller's thread is the scheduler's: the engine's, or offline."""

    def __init__(
        self,
        ledger: Ledger,
        runner: Runs[Step],
        device: Device | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Without a device every step is retired before the next one is planned."""
        self.ledger = ledger
        self._runner = runner
        self._here = Inline()
        self._device = device or self._here
        self._overlaps = device is not None
        self._observer = observer
        self._flight: Flight[Step] | None = None

    @property
    def is_flying(self) -> bool:
        """Whether a step is launched and not retired: it still touches its sequences' pages."""
        return self._flight is not None

    def step(self, tell: Tell) -> bool:
        """Launch a step, retire one, or both; False if there is neither.

        `tell` hears of a prompt's last chunk before it is computed, and of every retired step.
        """
        plan = self._plan()
        launched = None if plan.idle else self._launch(plan, tell)
        retired = self.settle(tell)
        if launched is not None:
            self._launch_samples(launched)
            self._flight = launched
            if not self._overlaps:
                self.settle(tell)
        return retired or launched is not None

    def settle(self, tell: Tell) -> bool:
        """Retire what is launched, so that no step touches a page; False if nothing is."""
        flight, self._flight = self._flight, None
        if flight is None:
            return False
        plan = flight.plan
        try:
            outcomes = self._timed(Part.WAIT, plan, lambda: self._outcomes(flight))()
        except Exception as error:  # a supervisor of steps: one that breaks ends one row at most
            logger.exception("step failed step=%d rows=%d", plan.step, len(plan.pieces))
            message = f"the step failed: {type(error).__name__}: {error}"
            tell(StepOutput(plan.step, tuple(self.ledger.fail(plan, message))))
            return True
        self._timed(Part.RETIRE, plan, lambda: self._retire(plan, outcomes, tell))()
        return True

    def close(self) -> None:
        """Wait for the device and let it go."""
        self._device.close()

    def _plan(self) -> Plan:
        began_s = time.perf_counter()
        plan = self.ledger.next_plan(time.monotonic())
        if self._observer is not None and not plan.idle:
            self._observer.planned(plan)
            self._observer.took(Part.PLAN, plan.step, began_s, time.perf_counter())
        return plan

    def _launch(self, plan: Plan, tell: Tell) -> Flight[Step]:
        starting = tuple(
            Chunk(piece.request.key, piece.start, last_chunk_started=True)
            for piece in plan.pieces
            if piece.ends_prompt
        )
        if starting:
            tell(StepOutput(plan.step, chunks=starting))
        runner, timed = self._runner, self._timed
        begun = self._here.launch(timed(Part.PREPARE, plan, lambda: runner.begin(plan)))
        computed = self._device.launch(
            timed(Part.FORWARD, plan, lambda: runner.forward(begun.result()))
        )
        return Flight(plan, begun, computed)

    def _launch_samples(self, flight: Flight[Step]) -> None:
        """For the rows whose sequences are still there."""
        flight.chosen = [i for i, p in enumerate(flight.plan.pieces) if p.samples and not p.lapsed]
        runner, chosen = self._runner, flight.chosen

        def sample() -> list[Outcome]:
            flight.computed.result()  # it is done; if it broke, so is this
            return runner.sample(flight.begun.result(), chosen)

        if chosen:
            flight.sampled = self._device.launch(self._timed(Part.SAMPLE, flight.plan, sample))

    def _outcomes(self, flight: Flight[Step]) -> list[Outcome]:
        """Wait for one for each piece that samples, as the ledger wants it."""
        outcomes: list[Outcome] = []
        if flight.sampled is None:
            flight.computed.result()
        else:
            outcomes = flight.sampled.result()
        sampled = dict(zip(flight.chosen, outcomes, strict=True))
        pieces = enumerate(flight.plan.pieces)
        return [sampled.get(i, _NOBODYS) for i, piece in pieces if piece.samples]

    def _retire(self, plan: Plan, outcomes: Sequence[Outcome], tell: Tell) -> None:
        rows, chunks = self.ledger.commit(plan, outcomes)
        tell(StepOutput(plan.step, tuple(rows), tuple(chunks)))

    def _timed(self, part: Part, plan: Plan, work: Callable[[], T]) -> Callable[[], T]:
        """`work`, of which the observer hears how long it took."""
        observer = self._observer
        if observer is None:
            return work

        def timed() -> T:
            began_s = time.perf_counter()
            try:
                return work()
            finally:
                observer.took(part, plan.step, began_s, time.perf_counter())

        return timed
