"""One step of the engine: choose, compute, record."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from diptych.core.errors import Broken
from diptych.core.step import Chunk, StepOutput
from diptych.engine.ledger import Ledger, Outcome
from diptych.engine.scheduler import Plan

logger = logging.getLogger(__name__)


class Runs(Protocol):
    """What computes a plan."""

    def run(self, plan: Plan) -> Sequence[Outcome]:
        """The outcome of each piece that samples, in order."""
        ...


class Stepper:
    """Steps over one ledger. Owns no thread: the engine's loop and the offline LLM drive it."""

    def __init__(self, ledger: Ledger, runner: Runs) -> None:
        self.ledger = ledger
        self._runner = runner
        self._step = 0

    def step(self, announce: Callable[[StepOutput], None]) -> StepOutput | None:
        """Run one step; None if there is nothing to compute now.

        `announce` is called before the computation if a prompt's last chunk is part of it.
        """
        plan = self.ledger.next_plan()
        if not plan.pieces:
            return None
        starting = tuple(
            Chunk(piece.request.key, piece.start, last_chunk_started=True)
            for piece in plan.pieces
            if piece.ends_prompt
        )
        if starting:
            announce(StepOutput(self._step, chunks=starting))
        output = self._computed(plan)
        self._step += 1
        return output

    def _computed(self, plan: Plan) -> StepOutput:
        try:
            outcomes = self._runner.run(plan)
        except Exception as error:  # a supervisor of steps: one that breaks ends its rows, no more
            broken = Broken(f"the step failed: {type(error).__name__}: {error}")
            logger.exception("step failed step=%d rows=%d", self._step, len(plan.pieces))
            return StepOutput(self._step, tuple(self.ledger.fail(plan, broken.message)))
        rows, chunks = self.ledger.commit(plan, outcomes)
        return StepOutput(self._step, tuple(rows), tuple(chunks))
