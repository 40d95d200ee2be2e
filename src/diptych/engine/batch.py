"""The rows of one forward, and where each reads and writes: computed once, used by all layers.

Index arrays are built with numpy: at decode sizes a torch operation costs more than its work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diptych.engine.block_pool import PADDING_PAGE
from diptych.engine.requests import blocks_for
from diptych.engine.scheduler import Piece
from diptych.engine.slots import PADDING_SLOT
from diptych.model.layers import PADDING, ROW_GROUP
from diptych.model.memory import Rows
from diptych.model.ngrams import DEAD, Hashing

Ints = NDArray[np.int64]


class Batch:
    """Rows of several sequences, one after the other, padded to whole row groups.

    Padding rows belong to one more sequence, which has no history, no blocks and slot 0.
    """

    def __init__(self, pieces: Sequence[Piece], grain: int, *, compact: bool = False) -> None:
        """With `compact`, rows below their sequence's floor stop at the border."""
        counts = np.array([piece.count for piece in pieces])
        self.num_rows = int(counts.sum())
        self.padded = -(-self.num_rows // ROW_GROUP) * ROW_GROUP
        padding = self.padded - self.num_rows
        self.pieces = pieces
        self._grain = grain
        self._compact = compact
        self.starts = np.array([*(piece.start for piece in pieces), 0])  # [S + 1]
        self.ends = np.array([*(piece.end for piece in pieces), 0])
        self.floors = np.array([*(piece.floor for piece in pieces), 0])
        self.encoder_floors = np.array([*(piece.encoder_floor for piece in pieces), 0])
        self.slots = np.array([*(piece.slot for piece in pieces), PADDING_SLOT])
        self.table = _block_table(pieces, grain)  # [S + 1, blocks]
        self.owners = np.repeat(np.arange(len(pieces) + 1), [*counts, padding])  # [T]
        first_rows = np.cumsum([0, *counts])
        self.positions = np.arange(self.padded) - first_rows[self.owners] + self.starts[self.owners]
        self.positions[self.num_rows :] = 0

    @cached_property
    def last_rows(self) -> Ints:
        """The last row of each piece; meaningless for a piece without rows."""
        return np.cumsum([piece.count for piece in self.pieces]) - 1

    @cached_property
    def behind(self) -> "Batch":
        """The rows that go on behind the border, which hidden states are of: all, or the kept ones.

        It has the same pieces, cut at their floors; a piece that samples keeps its last row.
        """
        if not self._compact or (self.floors <= self.starts).all():
            return self
        return Batch([_above_floor(piece) for piece in self.pieces], self._grain)

    @cached_property
    def kept(self) -> Ints | None:
        """Rows of this batch that are the rows of `behind`, PADDING for its padding; None: all."""
        if self.behind is self:
            return None
        real = np.flatnonzero(self.positions >= self.floors[self.owners])[: self.behind.num_rows]
        return np.pad(real, (0, self.behind.padded - len(real)), constant_values=PADDING)

    def newest(self, count: int, floors: Ints) -> Ints:
        """Rows whose position is among the last `count` of their sequence, and above its floor."""
        owners = self.owners[: self.num_rows]
        lowest = np.maximum(self.ends - count, floors)
        return np.flatnonzero(self.positions[: self.num_rows] >= lowest[owners])

    def complete(self, ratio: int) -> Ints:
        """Rows that complete a group of `ratio` tokens which is not written yet."""
        positions = self.positions[: self.num_rows]
        written = np.array([piece.start + piece.replayed for piece in self.pieces])
        fresh = positions >= written[self.owners[: self.num_rows]]
        return np.flatnonzero(((positions + 1) % ratio == 0) & fresh)

    def rows(self, hashing: Hashing | None) -> Rows:
        """What the model sees."""
        look_back = hashing.multipliers.shape[1] if hashing else 1
        known: list[int] = []  # the tokens of each piece, behind the look_back - 1 before them
        for piece in self.pieces:
            first = piece.start - look_back + 1
            known += [DEAD] * -first
            known += piece.request.tokens[max(first, 0) : piece.end]
            known += [DEAD] * piece.unknown  # the runner fills it in on the device
        rows = np.arange(self.num_rows)[:, None]
        newest = rows + (self.owners[: self.num_rows, None] + 1) * (look_back - 1)
        ids = np.full((self.padded, look_back), DEAD)
        ids[: self.num_rows] = np.array(known)[newest - np.arange(look_back)]
        ids[self.num_rows :, 0] = 0
        grams = torch.from_numpy(ids)
        if hashing:
            compressed = hashing.token_map[grams.clamp_min(0)]
            grams = torch.where(grams == DEAD, hashing.pad, compressed)
        return Rows(
            torch.from_numpy(ids[:, 0].copy()),
            torch.from_numpy(self.positions),
            grams,
            kept=None if self.kept is None else torch.from_numpy(self.kept),
        )


@dataclass(frozen=True, slots=True)
class Ring:
    """How the rows of a batch read the `reach` positions behind them, and write themselves.

    What can be read lies, one after the other: the batch's own rows, one row of zeros, and the
    `reach` newest records of every sequence that has some. Absent positions read the zeros.
    """

    source: Tensor  # [T, reach + 1] or [T, reach]: where each position behind lies; the row last
    present: Tensor  # likewise, bool
    read_slots: Tensor  # [H, 1]
    read_records: Tensor  # [H, reach]
    write_rows: Tensor  # [N]
    write_slots: Tensor  # [N]
    write_records: Tensor  # [N]


def ring(batch: Batch, size: int, reach: int, floors: Ints, *, ratio: int = 0) -> Ring:
    """Index arrays for rings of `size` records that hold nothing below `floors` [S + 1].

    With a ratio a ring holds a compressor's inputs: a row reads those before it in its own group,
    not itself. Otherwise it holds window keys: a row reads itself, too.
    """
    rows = np.arange(batch.padded)
    offsets = np.arange(-reach, 0 if ratio else 1)
    positions = batch.positions[:, None] + offsets
    starts = batch.starts[batch.owners][:, None]
    lowest, has_older = floors[batch.owners], batch.starts > floors
    if ratio:
        lowest = np.maximum(lowest, batch.positions - batch.positions % ratio)
        has_older &= batch.starts % ratio > 0
    present = positions >= lowest[:, None]
    older = np.flatnonzero(has_older)
    rank = np.zeros(len(batch.starts), np.int64)
    rank[older] = np.arange(len(older))
    behind = batch.padded + 1 + rank[batch.owners][:, None] * reach + positions - starts + reach
    source = np.where(positions >= starts, rows[:, None] + offsets, behind)
    source[~present] = batch.padded
    read = (batch.starts[older][:, None] + np.arange(-reach, 0)) % size
    written = batch.newest(size, floors)
    return Ring(
        source=torch.from_numpy(source),
        present=torch.from_numpy(present),
        read_slots=torch.from_numpy(batch.slots[older][:, None]),
        read_records=torch.from_numpy(read),
        write_rows=torch.from_numpy(written),
        write_slots=torch.from_numpy(batch.slots[batch.owners[written]]),
        write_records=torch.from_numpy(batch.positions[written] % size),
    )


@dataclass(frozen=True, slots=True)
class Groups:
    """Where the entries that rows of a batch complete are written."""

    rows: Tensor  # [N]
    pages: Tensor  # [N]
    records: Tensor  # [N]


def groups(batch: Batch, ratio: int, per_page: int) -> Groups:
    """Index arrays for entries of `ratio` tokens, `per_page` of them a page."""
    rows = batch.complete(ratio)
    entries = (batch.positions[rows] + 1) // ratio - 1
    pages = batch.table[batch.owners[rows], entries // per_page]
    return Groups(
        torch.from_numpy(rows), torch.from_numpy(pages), torch.from_numpy(entries % per_page)
    )


def _above_floor(piece: Piece) -> Piece:
    """The part of a piece that is not below its floor; it may have no rows."""
    start = min(max(piece.start, piece.floor), piece.end)
    return replace(piece, start=start, count=piece.end - start)


def _block_table(pieces: Sequence[Piece], grain: int) -> Ints:
    """Pages of each sequence as far as it is written after this forward; the rest is padding."""
    needs = [blocks_for(piece.end, grain) for piece in pieces]
    table = np.full((len(pieces) + 1, max(needs)), PADDING_PAGE)
    for row, (piece, need) in enumerate(zip(pieces, needs, strict=True)):
        table[row, :need] = piece.blocks[:need]
    return table
