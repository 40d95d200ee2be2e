"""What attention reads and writes. The model owns none of it: a caller passes an implementation.

`engine/pages.py` keeps paged arenas; `model/dense.py` keeps one forward's tensors and can be
trained through.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diptych.model.layers import PADDING, ROW_GROUP

NEVER = torch.iinfo(torch.int64).max  # the floor of a row that does not go on


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows (tokens) of one forward, in any mix of sequences; T is a multiple of 32.

    Padding rows have position 0 and id 0; whatever they compute is never read.
    """

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64, absolute
    grams: Tensor  # [T, n] int64: compressed ids of the token and of its n-1 predecessors
    kept: Tensor | None = None  # [K] int64: rows that go on behind the border; None: all


def kept_rows(positions: Tensor, floors: Tensor) -> Tensor:
    """Rows at or above their floor [T], ascending, then PADDING up to a multiple of 32: [K]."""
    kept = torch.nonzero(positions >= floors).flatten()
    return torch.nn.functional.pad(kept, (0, -len(kept) % ROW_GROUP), value=PADDING)


class Memory(Protocol):
    """Per-layer state of the sequences behind one forward's rows.

    Every method takes the whole forward's tensors (first dimension T) and stores the unrounded
    value in the record format of the numerics: what comes back is the value as stored. Rows of one
    sequence appear in order of position. Within one forward a row sees rows of its own sequence
    that stand before it, itself, and what earlier forwards stored.

    A sequence may have floors: below them nothing is in its windows, whatever was stored there.
    One is for the encoder's layers, one for the layers from the border on (bounded replay).
    """

    def window(self, layer: int, key: Tensor) -> tuple[Tensor, Tensor]:
        """Store `key` [T, d]; return the window of each row: keys [T, W, d], present [T, W] bool.

        Slot w holds position p - W + 1 + w (oldest first, the row itself last); absent ones
        (before the start or below the sequence's floor for this layer) are zero.
        """
        ...

    def previous(self, layer: int, value: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Store a compressor's inputs [T, d]; return those of each row's predecessor (p - 1).

        Rows that begin a group have none (zeros), as groups do not overlap; nor has the first row
        above the encoder's floor.
        """
        ...

    def append(self, layer: int, entry: Tensor, index_key: Tensor) -> None:
        """Store entry [T, d] and index key [T, i] of the rows that complete a group."""
        ...

    def index_tiles(self, layer: int) -> Iterator[Tensor]:
        """Yield the index keys of each row's own sequence, tile after tile: [T, G / ratio, i].

        Entry e stands in tile e // (G / ratio); keys beyond what is stored are zero. There are as
        many tiles as the longest sequence of the forward needs.
        """
        ...

    def entries(self, layer: int, selected: Tensor) -> Tensor:
        """Gather entries: `selected` [T, k] int64, -1 = absent -> [T, k, d], absent ones zero."""
        ...

    def narrow(self, kept: Tensor) -> "Memory":
        """The same memory for a forward's `kept` rows [K] only, the others leaving nothing behind.

        For layers from the border on; entries that were appended for all rows stay.
        """
        ...
