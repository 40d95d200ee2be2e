"""A plan becomes tensors, the tensors become tokens. Inference mode begins and ends here."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from diptych.core.errors import Broken
from diptych.engine.arenas import Arenas
from diptych.engine.batch import Batch
from diptych.engine.ledger import Outcome
from diptych.engine.pages import PagedMemory
from diptych.engine.sampler import sample
from diptych.engine.scheduler import Piece, Plan
from diptych.model import decoder
from diptych.model.layers import ROW_GROUP
from diptych.model.numerics import Numerics
from diptych.model.records import Records
from diptych.model.spec import ModelSpec
from diptych.model.weights import Weights


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

    @torch.inference_mode()
    def run(self, plan: Plan) -> list[Outcome]:
        """The token, or the error, of each piece that samples."""
        sampling = [i for i, piece in enumerate(plan.pieces) if piece.samples]
        batch, hidden = self._forward(plan.pieces)
        if not sampling:
            return []
        logits = self._logits(hidden, batch.last_rows[sampling]).numpy()
        pieces = [plan.pieces[i] for i in sampling]
        return [outcome_of(row, piece) for row, piece in zip(logits, pieces, strict=True)]

    @torch.inference_mode()
    def logits(self, pieces: Sequence[Piece]) -> Tensor:
        """Logits of every row of the pieces [rows, V]."""
        batch, hidden = self._forward(pieces)
        return self._logits(hidden, np.arange(batch.num_rows))

    def _forward(self, pieces: Sequence[Piece]) -> tuple[Batch, Tensor]:
        batch = Batch(pieces, self._arenas.layout.grain)
        rows = batch.rows(self._weights.hashing)
        memory = PagedMemory(self._arenas, self._records, self._spec.window, batch)
        return batch, decoder.hidden(self._spec, self._weights, self._numerics, rows, memory)

    def _logits(self, hidden: Tensor, rows: np.ndarray) -> Tensor:
        """Logits of some rows, computed in whole row groups."""
        chosen = np.pad(rows, (0, -len(rows) % ROW_GROUP))
        picked = hidden.index_select(0, torch.from_numpy(chosen))
        return decoder.logits(self._weights, self._numerics, picked)[: len(rows)]


def outcome_of(logits: np.ndarray, piece: Piece) -> Outcome:
    """The token behind a piece, or why its row has none."""
    request = piece.request
    try:
        return sample(logits, request.generation.sampling, position=len(request.tokens))
    except Broken as error:
        return error
