"""A plan becomes tensors, the tensors become tokens. Inference mode begins and ends here."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diptych.core.errors import Broken
from diptych.engine.arenas import Arenas
from diptych.engine.batch import Batch
from diptych.engine.futures import TokenFutures
from diptych.engine.ledger import Outcome
from diptych.engine.pages import PagedMemory
from diptych.engine.sampler import sample
from diptych.engine.scheduler import Piece, Plan
from diptych.model import decoder
from diptych.model.layers import ROW_GROUP
from diptych.model.memory import Rows
from diptych.model.numerics import Numerics
from diptych.model.records import Records
from diptych.model.spec import ModelSpec
from diptych.model.weights import Weights


@dataclass(slots=True)
class Step:
    """A plan on its way through the device: where its rows read and write is fixed."""

    plan: Plan
    batch: Batch
    rows: Rows
    memory: PagedMemory
    hidden: Tensor | None = None  # [T, D], once the forward has run


class Runner:
    """Computes pieces of sequences whose pages lie in its arenas."""

    def __init__(
        self, spec: ModelSpec, weights: Weights, numerics: Numerics, arenas: Arenas
    ) -> None:
        torch.set_num_threads(1)  # the order of sums, hence the bits, may depend on the number
        self._spec = spec
        self._weights = weights
        self._numerics = numerics
        self._records = Records.of(spec, numerics)
        self._arenas = arenas
        self._futures = TokenFutures(arenas.num_slots)

    def begin(self, plan: Plan) -> Step:
        """Index arrays and known tokens of a plan."""
        batch = Batch(plan.pieces, self._arenas.layout.grain)
        memory = PagedMemory(self._arenas, self._records, self._spec.window, batch)
        return Step(plan, batch, batch.rows(self._weights.hashing), memory)

    @torch.inference_mode()
    def forward(self, step: Step) -> None:
        """Compute all rows of a step."""
        self._fill_in(step)
        step.hidden = decoder.hidden(
            self._spec, self._weights, self._numerics, step.rows, step.memory
        )

    @torch.inference_mode()
    def sample(self, step: Step, chosen: Sequence[int]) -> list[Outcome]:
        """The token, or the error, behind each of some pieces of the step."""
        pieces = [step.plan.pieces[i] for i in chosen]
        logits = self._logits(step, step.batch.last_rows[chosen]).numpy()
        outcomes = [outcome_of(row, piece) for row, piece in zip(logits, pieces, strict=True)]
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if not isinstance(outcome, Broken):
                self._futures.write(step.plan.step, piece.slot, outcome)
        return outcomes

    @torch.inference_mode()
    def logits(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits of every row of the pieces [rows, V]; none of their tokens is unknown."""
        step = self.begin(Plan(tuple(pieces)))
        self.forward(step)
        return self._logits(step, np.arange(step.batch.num_rows))

    def _fill_in(self, step: Step) -> None:
        """Put the tokens that the step before has sampled where rows wait for them.

        The tokens before them in an n-gram are known: a step samples one token a sequence.
        """
        waiting = [i for i, piece in enumerate(step.plan.pieces) if piece.unknown]
        if not waiting:
            return
        at = torch.from_numpy(step.batch.last_rows[waiting])
        read = self._futures.read(step.plan.step - 1, step.batch.slots[waiting])
        tokens = torch.from_numpy(read)
        step.rows.token_ids[at] = tokens
        if self._weights.hashing:
            step.rows.grams[at, 0] = self._weights.hashing.token_map[tokens]

    def _logits(self, step: Step, rows: np.ndarray) -> Tensor:
        """Logits of some rows, computed in whole row groups."""
        assert step.hidden is not None, "a forward comes before its samples"
        chosen = np.pad(rows, (0, -len(rows) % ROW_GROUP))
        picked = step.hidden.index_select(0, torch.from_numpy(chosen))
        return decoder.logits(self._weights, self._numerics, picked)[: len(rows)]


def outcome_of(logits: np.ndarray, piece: Piece) -> Outcome:
    """The token behind a piece, or why its row has none."""
    request = piece.request
    try:
        return sample(logits, request.generation.sampling, position=len(request.tokens))
    except Broken as error:
        return error
