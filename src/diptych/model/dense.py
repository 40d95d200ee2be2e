"""Memory as plain tensors: whole sequences in one forward, or a few forwards one after another.

Everything a forward stores is appended, functionally, to one history a layer; a map from
(sequence, position) to history rows is all the bookkeeping there is. Gradients flow through it.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diptych.model.layers import PADDING, ROW_GROUP, take
from diptych.model.memory import NEVER, Rows, kept_rows
from diptych.model.ngrams import Hashing
from diptych.model.numerics import Numerics
from diptych.model.records import Records
from diptych.model.spec import ModelSpec

DEFAULT_GRAIN = 128  # tokens of a block, as in the engine
_ABSENT = -1


class DenseMemory:
    """Implements `Memory`. Call `begin` before each forward."""

    def __init__(
        self,
        spec: ModelSpec,
        numerics: Numerics,
        num_sequences: int,
        grain: int = DEFAULT_GRAIN,
        floors: Sequence[int] | None = None,
        encoder_floors: Sequence[int] | None = None,
    ) -> None:
        """`floors` of each sequence's windows: of the decoder's layers, and of the encoder's."""
        none = [0] * num_sequences
        self._spec = spec
        self._records = Records.of(spec, numerics)
        self._grain = grain
        self._floors = torch.tensor(floors or none)
        self._encoder_floors = torch.tensor(encoder_floors or none)
        self._where = torch.full((num_sequences, 0), _ABSENT)  # history row of each position
        self._num_rows = 0  # of the history, with this forward
        self._rows = torch.empty(0, dtype=torch.int64)  # of the history that the forward adds
        self._sequences = torch.empty(0, dtype=torch.int64)
        self._positions = torch.empty(0, dtype=torch.int64)
        self._windows: dict[int, Tensor] = {}
        self._carries: dict[int, tuple[Tensor, Tensor]] = {}
        self._entries: dict[int, Tensor] = {}
        self._index_keys: dict[int, Tensor] = {}

    def begin(self, sequences: Tensor, positions: Tensor) -> None:
        """Say which sequence (-1: padding) and position each row of the next forward has [T]."""
        rows = torch.arange(len(positions)) + self._num_rows
        real = sequences >= 0
        needed = int(positions[real].max()) + 1 - self._where.shape[1] if real.any() else 0
        where = torch.nn.functional.pad(self._where, (0, max(needed, 0)), value=_ABSENT)
        where[sequences[real], positions[real]] = rows[real]
        self._where = where
        self._num_rows += len(positions)
        self._rows = rows
        self._sequences, self._positions = sequences, positions

    def window(self, layer: int, key: Tensor) -> tuple[Tensor, Tensor]:
        history = self._store(self._windows, layer, self._records.window.round(key))
        positions = self._positions.unsqueeze(1) + torch.arange(1 - self._spec.window, 1)
        found = self._find(self._above_floor(layer, positions))
        return _gather(history, found), found != _ABSENT

    def previous(self, layer: int, value: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        begins = self._positions % self._spec.layers[layer].ratio == 0
        before = torch.where(begins, _ABSENT, self._positions - 1).unsqueeze(1)
        found = self._find(self._above_floor(layer, before)).squeeze(1)
        values, scores = self._carries.get(layer, (value[:0], score[:0]))
        values, scores = torch.cat((values, value)), torch.cat((scores, score))
        self._carries[layer] = values, scores
        return _gather(values, found), _gather(scores, found)

    def append(self, layer: int, entry: Tensor, index_key: Tensor) -> None:
        self._store(self._entries, layer, self._records.entry.round(entry))
        self._store(self._index_keys, layer, self._records.index_key.round(index_key))

    def index_tiles(self, layer: int) -> Iterator[Tensor]:
        ratio = self._spec.layers[layer].ratio
        size = self._grain // ratio
        for start in range(0, -(-self._where.shape[1] // ratio), size):
            entries = torch.arange(start, start + size).expand(len(self._positions), -1)
            yield _gather(self._index_keys[layer], self._find_entries(entries, ratio))

    def entries(self, layer: int, selected: Tensor) -> Tensor:
        ratio = self._spec.layers[layer].ratio
        return _gather(self._entries[layer], self._find_entries(selected, ratio))

    def narrow(self, kept: Tensor) -> "DenseMemory":
        narrowed = copy.copy(self)  # with the same histories
        narrowed._rows = take(self._rows, kept).masked_fill(kept == PADDING, PADDING)
        narrowed._sequences = take(self._sequences, kept).masked_fill(kept == PADDING, PADDING)
        narrowed._positions = take(self._positions, kept)
        return narrowed

    def _store(self, histories: dict[int, Tensor], layer: int, new: Tensor) -> Tensor:
        """Put a forward's values behind the layer's history, zeros where a row was not kept."""
        history = histories.get(layer, new[:0])
        known = self._rows != PADDING
        added = new.new_zeros(self._num_rows - len(history), new.shape[1])
        added = added.index_copy(0, self._rows[known] - len(history), new[known])
        histories[layer] = torch.cat((history, added))
        return histories[layer]

    def _above_floor(self, layer: int, positions: Tensor) -> Tensor:
        """Positions [T, k] that are not below the floor of a layer; others become absent."""
        is_decoder = layer >= self._spec.decoder_start
        floors = (self._floors if is_decoder else self._encoder_floors)[self._sequences]
        return torch.where(positions < floors.unsqueeze(1), _ABSENT, positions)

    def _find(self, positions: Tensor) -> Tensor:
        """History rows of positions [T, k] of each row's own sequence; absent ones are -1."""
        length = self._where.shape[1]
        known = (positions >= 0) & (positions < length) & (self._sequences >= 0).unsqueeze(1)
        mine = self._where[self._sequences.clamp_min(0)]
        found = mine.gather(1, positions.clamp(0, max(length - 1, 0)))
        return torch.where(known, found, _ABSENT)

    def _find_entries(self, entries: Tensor, ratio: int) -> Tensor:
        """History rows of entries [T, k]: each lies with the last token of its group."""
        return self._find(torch.where(entries < 0, _ABSENT, (entries + 1) * ratio - 1))


def _gather(history: Tensor, rows: Tensor) -> Tensor:
    """history [N, d] at rows [...] -> [..., d]; zeros where absent."""
    found = history.index_select(0, rows.clamp_min(0).flatten()).view(*rows.shape, -1)
    return found.masked_fill((rows == _ABSENT).unsqueeze(-1), 0.0)


def rows_of(
    hashing: Hashing | None,
    sequences: Sequence[Sequence[int]],
    starts: Sequence[int],
    floors: Sequence[int] | None = None,
) -> tuple[Rows, Tensor]:
    """The rows of several sequences from `starts` to their ends, one after the other, padded.

    Returns them with the sequence of each row, -1 for padding: what `DenseMemory.begin` wants.
    With `floors`, only rows at or above their sequence's go on behind the border.
    """
    ids, positions, grams, owners = [], [], [], []
    for owner, (tokens, start) in enumerate(zip(sequences, starts, strict=True)):
        count = len(tokens) - start
        all_ids = torch.tensor(tokens, dtype=torch.int64)
        ids.append(all_ids[start:])
        positions.append(torch.arange(start, len(tokens)))
        owners.append(torch.full((count,), owner))
        if hashing:
            grams.append(hashing.grams(hashing.token_map[all_ids], start, len(tokens)))
    padding = -sum(map(len, ids)) % ROW_GROUP

    def joined(parts: list[Tensor], fill: int) -> Tensor:
        flat = torch.cat(parts)
        pad = (0, 0, 0, padding) if flat.dim() == 2 else (0, padding)
        return torch.nn.functional.pad(flat, pad, value=fill)

    if not grams:
        grams = [torch.zeros(sum(map(len, ids)), 1, dtype=torch.int64)]
    rows = Rows(joined(ids, 0), joined(positions, 0), joined(grams, 0))
    sequences_of = joined(owners, PADDING)
    if floors is not None:
        floor = torch.tensor(floors)[sequences_of].masked_fill(sequences_of == PADDING, NEVER)
        rows = replace(rows, kept=kept_rows(rows.positions, floor))
    return rows, sequences_of
