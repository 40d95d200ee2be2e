"""A plan becomes tensors, the tensors become tokens. Inference mode begins and ends here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diptych.engine.arenas import Arenas
from diptych.engine.batch import Batch
from diptych.engine.futures import TokenFutures
from diptych.engine.outcome import Failure, Outcome, Scored
from diptych.engine.pages import PagedMemory
from diptych.engine.sampler import Sampler
from diptych.engine.scheduler import Piece, Plan
from diptych.model import decoder
from diptych.model.layers import ROW_GROUP
from diptych.model.memory import Rows
from diptych.model.numerics import Numerics
from diptych.model.records import Records
from diptych.model.spec import ModelSpec
from diptych.model.weights import Weights

SCORED_ROWS = 2 * ROW_GROUP  # of a prompt, whose logits lie in memory at once


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of a forward, and where they read and write."""

    batch: Batch
    rows: Rows
    memory: PagedMemory


@dataclass(slots=True)
class Step:
    """A plan on its way through the device."""

    plan: Plan
    inputs: Inputs | None  # None: there are only pages to copy
    hidden: Tensor | None = None  # [K, D], once the forward has run


class Runner:
    """Executes plans on sequences whose pages lie in its arenas."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        numerics: Numerics,
        arenas: Arenas,
        sampler: Sampler,
        *,
        compact: bool = True,
    ) -> None:
        """With `compact`, decoder layers run on rows at or above their floor only; else on all."""
        torch.set_num_threads(1)  # the order of sums, hence the bits, may depend on the number
        self._spec = spec
        self._weights = weights
        self._numerics = numerics
        self._records = Records.of(spec, numerics)
        self._arenas = arenas
        self._compact = compact
        self._sampler = sampler
        self._futures = TokenFutures(arenas.num_slots)

    def begin(self, plan: Plan) -> Step:
        """Index arrays and known tokens of a plan."""
        return Step(plan, self._inputs(plan.pieces) if plan.pieces else None)

    @torch.inference_mode()
    def forward(self, step: Step) -> None:
        """Compute all rows of a step, between the copies that bring pages in and take them out."""
        plan, arenas = step.plan, self._arenas
        for swap in plan.swap_ins:
            arenas.swap_in(swap)
        for anchor in plan.loads:
            arenas.load_anchor(anchor)
        for fill in plan.fills:
            arenas.slot(fill.slot)[:] = fill.payload
        if step.inputs:
            self._fill_in(plan, step.inputs)
            step.hidden = self._hidden(step.inputs)
            self._score_prompts(step.inputs.batch, step.hidden)
        for anchor in plan.saves:
            arenas.save_anchor(anchor)
        for snapshot in plan.snapshots:
            snapshot.payload = bytes(arenas.slot(snapshot.slot))
        for swap in plan.swap_outs:
            arenas.swap_out(swap)

    @torch.inference_mode()
    def sample(self, step: Step, chosen: Sequence[int]) -> list[Outcome]:
        """The token, or the error, behind each of some pieces of the step."""
        assert step.inputs and step.hidden is not None, "a forward comes before its samples"
        pieces = [step.plan.pieces[i] for i in chosen]
        rows = step.inputs.batch.behind.last_rows[chosen]
        logits = self._logits(step.hidden, rows).numpy()
        outcomes = [
            self._sampler.outcome(row, piece.request)
            for row, piece in zip(logits, pieces, strict=True)
        ]
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if not isinstance(outcome, Failure):
                token = outcome.token if isinstance(outcome, Scored) else outcome
                self._futures.write(step.plan.step, piece.slot, token)
        return outcomes

    @torch.inference_mode()
    def logits(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits of every row of the pieces [rows, V]; their tokens are known, their floors 0."""
        inputs = self._inputs(pieces)
        return self._logits(self._hidden(inputs), np.arange(inputs.batch.num_rows))

    def _inputs(self, pieces: Sequence[Piece]) -> Inputs:
        batch = Batch(pieces, self._arenas.layout.grain, compact=self._compact)
        memory = PagedMemory(self._arenas, self._records, self._spec.window, batch)
        return Inputs(batch, batch.rows(self._weights.hashing), memory)

    def _fill_in(self, plan: Plan, inputs: Inputs) -> None:
        """Put the tokens that the step before has sampled where rows wait for them.

        The tokens before them in an n-gram are known: a step samples one token a sequence.
        """
        waiting = [i for i, piece in enumerate(plan.pieces) if piece.unknown]
        if not waiting:
            return
        found = self._futures.read(plan.step - 1, inputs.batch.slots[waiting])
        at, tokens = torch.from_numpy(inputs.batch.last_rows[waiting]), torch.from_numpy(found)
        inputs.rows.token_ids[at] = tokens
        if self._weights.hashing:
            inputs.rows.grams[at, 0] = self._weights.hashing.token_map[tokens]

    def _score_prompts(self, batch: Batch, hidden: Tensor) -> None:
        """The log-probabilities of prompt tokens behind rows, where somebody waits for them.

        What was scored before pages were taken away is passed over when it is computed again.
        """
        for index, piece in enumerate(batch.pieces):
            scored = piece.request.prompt_logprobs
            if scored is None:
                continue
            assert piece.floor == 0, "rows are left out that somebody waits for"
            first = max(piece.start, len(scored))
            last = min(piece.end, len(piece.request.generation.prompt) - 1)
            offset = batch.behind.last_rows[index] + 1 - piece.end  # of a row from its position
            for start in range(first, last, SCORED_ROWS):
                rows = np.arange(start, min(start + SCORED_ROWS, last)) + offset
                self._sampler.score(self._logits(hidden, rows).numpy(), piece.request)

    def _hidden(self, inputs: Inputs) -> Tensor:
        return decoder.hidden(self._spec, self._weights, self._numerics, inputs.rows, inputs.memory)

    def _logits(self, hidden: Tensor, rows: np.ndarray) -> Tensor:
        """Logits of some rows, computed in whole row groups."""
        chosen = np.pad(rows, (0, -len(rows) % ROW_GROUP))
        picked = hidden.index_select(0, torch.from_numpy(chosen))
        return decoder.logits(self._weights, self._numerics, picked)[: len(rows)]
