"""Attention memory for training: many documents side by side in bins of equal length.

Rows are numbered through all bins. A document lies in one bin, its first row at a multiple of
`ALIGNMENT`, so groups of a compressor and candidate blocks never span two. Entries are counted from
the bin's start; the rows' `first` and `visible` entries keep documents apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from diptych.model.indexer import NOTHING
from diptych.model.memory import Memory
from diptych.model.numerics import Numerics
from diptych.model.records import Records
from diptych.model.spec import ModelSpec

ALIGNMENT = 16  # rows; a multiple of every ratio and of a candidate block


@dataclass(frozen=True, slots=True)
class Bins:
    """Where rows stand: bins of `length` rows, one after the other."""

    length: int
    positions: Tensor  # [T] in the row's document

    @property
    def starts(self) -> Tensor:
        """The bin's row at which each row's document begins [T]."""
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return rows % self.length - self.positions

    @property
    def bases(self) -> Tensor:
        """The number of the first row of each row's bin [T]."""
        rows = torch.arange(len(self.positions), device=self.positions.device)
        return rows - rows % self.length


@dataclass(frozen=True, slots=True)
class Tiles:
    """Index keys [B, n, i] of whole bins; iterating gives what `Memory.index_tiles` promises."""

    keys: Tensor
    first: Tensor  # [T] entry at which the row's document begins
    length: int  # rows a bin

    def __iter__(self) -> Iterator[Tensor]:
        yield self.keys.repeat_interleave(self.length, 0)


class BinMemory:
    """Implements `Memory` for one forward over whole documents. Gradients flow through it."""

    def __init__(self, spec: ModelSpec, numerics: Numerics, bins: Bins) -> None:
        self.spec = spec
        self.layer = 0  # the one that asked last
        self._records = Records.of(spec, numerics)
        self._bins = bins
        self._starts, self._bases = bins.starts, bins.bases
        self._entries: dict[int, Tensor] = {}
        self._index_keys: dict[int, Tensor] = {}

    def window(self, layer: int, key: Tensor) -> tuple[Tensor, Tensor]:
        self.layer = layer
        width = self.spec.window
        rows = F.pad(self._records.window.round(key), (0, 0, width - 1, 0))
        back = torch.arange(width - 1, -1, -1, device=key.device)
        present = self._bins.positions.unsqueeze(1) >= back
        return rows.unfold(0, width, 1).transpose(1, 2), present

    def previous(self, layer: int, value: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        begins = (self._bins.positions % self.spec.layers[layer].ratio == 0).unsqueeze(1)
        values, scores = (F.pad(x, (0, 0, 1, 0))[:-1] for x in (value, score))
        return values.masked_fill(begins, 0.0), scores.masked_fill(begins, 0.0)

    def append(self, layer: int, entry: Tensor, index_key: Tensor) -> None:
        ratio = self.spec.layers[layer].ratio
        self._entries[layer] = self._records.entry.round(entry[ratio - 1 :: ratio])
        self._index_keys[layer] = self._records.index_key.round(index_key[ratio - 1 :: ratio])

    def index_tiles(self, layer: int) -> Iterator[Tensor]:
        ratio, length = self.spec.layers[layer].ratio, self._bins.length
        stored = self._index_keys[layer]
        keys = stored.view(-1, length // ratio, stored.shape[1])
        return Tiles(keys, self._starts // ratio, length)  # type: ignore[return-value]

    def entries(self, layer: int, selected: Tensor) -> Tensor:
        base = (self._bases // self.spec.layers[layer].ratio).unsqueeze(1)
        rows = (selected.clamp_min(0) + base).flatten()
        found = self._entries[layer].index_select(0, rows).view(*selected.shape, -1)
        return found.masked_fill((selected == NOTHING).unsqueeze(-1), 0.0)

    def narrow(self, kept: Tensor) -> Memory:
        raise NotImplementedError("training computes every row in every layer")
