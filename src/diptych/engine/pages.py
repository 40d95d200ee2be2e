"""Paged memory: the `Memory` of a forward whose sequences lie in blocks and slots.

A row reads its own sequence only: rows of this forward from the tensors at hand, as they would
come back from memory, and older positions from the pages. Rings are read before they are written,
because a long chunk overwrites what its first rows still see.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from diptych.core.layout import Kind
from diptych.engine.arenas import Arenas
from diptych.engine.batch import Batch, Groups, Ints, Ring, groups, ring
from diptych.engine.block_pool import PADDING_PAGE
from diptych.model.records import RecordFormat, Records


class PagedMemory:
    """Implements `Memory` over arenas, for the rows of one batch."""

    def __init__(self, arenas: Arenas, records: Records, window: int, batch: Batch) -> None:
        self._arenas = arenas
        self._records = records
        self._batch = batch
        self._reach = window - 1
        self._owners = torch.from_numpy(batch.owners)
        self._table = torch.from_numpy(batch.table)
        self._row_table = self._table[self._owners]  # [T, blocks]
        self._windows: dict[bool, Ring] = {}  # by whether the layer is behind the border
        self._carries: dict[tuple[int, int], Ring] = {}  # by size and ratio
        self._groups: dict[int, Groups] = {}  # by ratio

    def window(self, layer: int, key: Tensor) -> tuple[Tensor, Tensor]:
        section = self._arenas.section(layer, Kind.WINDOW)
        at = self._window_of(layer)
        return _through_ring(section, at, self._records.window, key), at.present

    def previous(self, layer: int, value: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        section = self._arenas.section(layer, Kind.CARRY)
        size, ratio = section.shape[1], self._ratio(layer)
        if (size, ratio) not in self._carries:
            floors = self._batch.encoder_floors
            self._carries[size, ratio] = ring(self._batch, size, 1, floors, ratio=ratio)
        inputs = torch.cat((value, score), 1)
        found = _through_ring(section, self._carries[size, ratio], self._records.carry, inputs)
        earlier_value, earlier_score = found.squeeze(1).chunk(2, 1)
        return earlier_value, earlier_score

    def append(self, layer: int, entry: Tensor, index_key: Tensor) -> None:
        sections = self._arenas.sections(layer, Kind.ENTRY, Kind.INDEX, Kind.INDEX_SCALE)
        at = self._groups_of(layer)
        if not len(at.rows):
            return
        complete = entry.index_select(0, at.rows), index_key.index_select(0, at.rows)
        encoded = self._records.entry.encode(complete[0])
        encoded += self._records.index_key.encode(complete[1])
        for section, new in zip(sections, encoded, strict=True):
            section[at.pages, at.records] = new

    def index_tiles(self, layer: int) -> Iterator[Tensor]:
        sections = self._arenas.sections(layer, Kind.INDEX, Kind.INDEX_SCALE)
        entries = torch.arange(sections[0].shape[1])
        stored = torch.from_numpy(self._batch.ends // self._ratio(layer))[:, None]  # [S + 1, 1]
        for tile in range(self._table.shape[1]):
            pages = self._table[:, tile]
            keys = self._records.index_key.decode(*(section[pages] for section in sections))
            absent = entries + tile * len(entries) >= stored
            keys = keys.masked_fill(absent.unsqueeze(-1), 0.0)  # a page may hold older bytes
            yield keys.index_select(0, self._owners)

    def entries(self, layer: int, selected: Tensor) -> Tensor:
        section = self._arenas.section(layer, Kind.ENTRY)
        known = selected.clamp_min(0)
        per_page = section.shape[1]
        pages = self._row_table.gather(1, torch.div(known, per_page, rounding_mode="floor"))
        pages = pages.masked_fill(selected < 0, PADDING_PAGE)  # which is zero
        return self._records.entry.decode(section[pages, known % per_page])

    def narrow(self, kept: Tensor) -> "PagedMemory":
        behind = self._batch.behind
        assert len(kept) == behind.padded, "a forward keeps the rows that its batch keeps"
        return PagedMemory(self._arenas, self._records, self._reach + 1, behind)

    def _window_of(self, layer: int) -> Ring:
        """Of the encoder's layers or of the decoder's: their floors differ, their rings do not.

        Most batches only decode, far above both floors, and need it once.
        """
        layout = self._arenas.layout
        is_behind = layout.find(layer, Kind.WINDOW).dropped
        if is_behind not in self._windows:
            floors = self._reachable(self._batch.floors)
            other = self._reachable(self._batch.encoder_floors)
            if not is_behind:
                floors, other = other, floors
            same = self._windows.get(not is_behind) if (floors == other).all() else None
            self._windows[is_behind] = same or ring(self._batch, layout.ring, self._reach, floors)
        return self._windows[is_behind]

    def _reachable(self, floors: Ints) -> Ints:
        """The floors, or 0 where no window of the batch reaches below one."""
        return np.where(self._batch.starts - self._reach >= floors, 0, floors)

    def _ratio(self, layer: int) -> int:
        return self._arenas.layout.find(layer, Kind.ENTRY).ratio

    def _groups_of(self, layer: int) -> Groups:
        ratio = self._ratio(layer)
        if ratio not in self._groups:
            self._groups[ratio] = groups(self._batch, ratio, self._arenas.layout.grain // ratio)
        return self._groups[ratio]


def _through_ring(section: Tensor, at: Ring, record: RecordFormat, new: Tensor) -> Tensor:
    """Read what lies behind each row [T, reach, n], then write the rows `new` [T, n]."""
    (encoded,) = record.encode(new)
    own = record.decode(encoded)
    parts = [own, own.new_zeros(1, own.shape[1])]
    if len(at.read_slots):
        parts.append(record.decode(section[at.read_slots, at.read_records]).flatten(0, 1))
    section[at.write_slots, at.write_records] = encoded.index_select(0, at.write_rows)
    found = torch.cat(parts).index_select(0, at.source.flatten())
    return found.view(*at.source.shape, -1)
