"""Paged memory against dense memory: the same values, bit for bit, however rows are cut."""

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from diptych.core.layout import ring_size
from diptych.engine.arenas import Arenas
from diptych.engine.arrangement import arrange
from diptych.engine.batch import Batch
from diptych.engine.pages import PagedMemory
from diptych.engine.requests import Request, blocks_for
from diptych.engine.scheduler import Piece
from diptych.model.dense import DenseMemory
from diptych.model.layers import take
from diptych.model.memory import Memory
from diptych.model.numerics import NUMERICS
from diptych.model.records import Records
from diptych.model.spec import ModelSpec

from .conftest import TINY, make_generation

SPEC = ModelSpec.load(TINY)
GRAIN = 8
BORDER = SPEC.decoder_start


@dataclass
class Both:
    """A paged and a dense memory that are told the same."""

    numerics: str
    num_sequences: int
    floors: tuple[int, ...] = ()
    encoder_floors: tuple[int, ...] = ()
    compact: bool = False

    def __post_init__(self) -> None:
        self.mode = NUMERICS[self.numerics]
        self.arenas = Arenas(arrange(SPEC, self.mode, GRAIN), 60, self.num_sequences)
        self.dense = DenseMemory(
            SPEC, self.mode, self.num_sequences, GRAIN, self.floors, self.encoder_floors
        )
        pages = list(range(1, 61))
        random.Random(0).shuffle(pages)
        self.requests = []
        for i in range(self.num_sequences):
            mine = tuple(pages.pop() for _ in range(blocks_for(100, GRAIN)))
            generation = make_generation(f"s{i}", prompt_len=100)
            slot = self.num_sequences - i
            request = Request(generation, False, False, 100, [5] * 100, blocks=mine, slot=slot)
            request.floor = self.floors[i] if self.floors else 0
            request.encoder_floor = self.encoder_floors[i] if self.encoder_floors else 0
            self.requests.append(request)

    def begin(self, counts: list[int]) -> tuple[Batch, PagedMemory]:
        """The next `counts` positions of every sequence."""
        pieces = [
            Piece.of(request, request.written, count)
            for request, count in zip(self.requests, counts, strict=True)
            if count
        ]
        for piece in pieces:
            piece.request.written = piece.end
        batch = Batch(pieces, GRAIN, compact=self.compact)
        owners = torch.full((batch.padded,), -1)
        indices = [i for i, count in enumerate(counts) if count]
        owners[: batch.num_rows] = torch.tensor(indices)[batch.owners[: batch.num_rows]]
        self.dense.begin(owners, torch.from_numpy(batch.positions))
        return batch, PagedMemory(self.arenas, Records.of(SPEC, self.mode), SPEC.window, batch)


def attend(memory: Memory, inputs: dict[str, Tensor], visible: Tensor, rows: int) -> list[Tensor]:
    """All that the encoder's layers ask of a memory, for the rows that are not padding."""
    answers = [*memory.window(0, inputs["key"])]
    for layer in (2, 3):
        answers += memory.previous(layer, inputs["value"], inputs["score"])
        memory.append(layer, inputs["entry"] + layer, inputs["index_key"] + layer)
        answers += select(memory, layer, visible)
    memory.append(BORDER, inputs["entry"] + BORDER, inputs["index_key"] + BORDER)
    return [answer[:rows] for answer in answers]


def attend_behind(memory: Memory, key: Tensor, visible: Tensor, rows: int) -> list[Tensor]:
    """All that the layers from the border on ask of a memory."""
    answers = [*memory.window(BORDER, key), *memory.window(7, key * 2)]
    return [answer[:rows] for answer in (*answers, *select(memory, BORDER, visible))]


def select(memory: Memory, layer: int, visible: Tensor) -> list[Tensor]:
    """Some entries, and all index keys that a row may see."""
    nvis = visible // SPEC.layers[layer].ratio
    chosen = torch.arange(16) * 5 % 97
    chosen = torch.where(chosen < nvis.unsqueeze(1), chosen, -1)
    keys = torch.cat(list(memory.index_tiles(layer)), 1)
    assert keys.isfinite().all()
    known = torch.arange(keys.shape[1]) < nvis.unsqueeze(1)
    return [memory.entries(layer, chosen), keys.masked_fill(~known.unsqueeze(-1), 0.0)]


def random_inputs(generator: torch.Generator, rows: int, dtype: torch.dtype) -> dict[str, Tensor]:
    widths = {"index_key": SPEC.index_head_dim}
    names = ("key", "value", "score", "entry", "index_key")
    return {
        name: torch.randn(rows, widths.get(name, SPEC.head_dim), generator=generator, dtype=dtype)
        for name in names
    }


def compare(both: Both, counts: list[int], generator: torch.Generator) -> None:
    batch, paged = both.begin(counts)
    inputs = random_inputs(generator, batch.padded, both.mode.dtype)
    visible = torch.from_numpy(batch.positions + 1)
    answers = [attend(memory, inputs, visible, batch.num_rows) for memory in (paged, both.dense)]
    memories: list[Memory] = [paged, both.dense]
    key = inputs["key"]
    if batch.kept is not None:
        kept = torch.from_numpy(batch.kept)
        key, visible = take(key, kept), take(visible, kept)
        memories = [memory.narrow(kept) for memory in memories if len(kept)]
    for memory, answer in zip(memories, answers, strict=False):
        answer += attend_behind(memory, key, visible, batch.behind.num_rows)
    for mine, theirs in zip(*answers, strict=True):
        width = max(mine.shape[1], theirs.shape[1])  # there may be more or fewer tiles of zeros
        if mine.dim() == 3:
            mine = torch.nn.functional.pad(mine, (0, 0, 0, width - mine.shape[1]))
            theirs = torch.nn.functional.pad(theirs, (0, 0, 0, width - theirs.shape[1]))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("seed", range(4))
def test_pages_give_what_dense_tensors_give(numerics: str, seed: int) -> None:
    rng = random.Random(f"{numerics}{seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    both = Both(numerics, num_sequences=3)
    while any(request.written < 95 for request in both.requests):
        sizes = [rng.choice([0, 1, 1, 2, 7, 30, 60]) for _ in both.requests]
        counts = [min(n, 100 - r.written) for n, r in zip(sizes, both.requests, strict=True)]
        if any(counts):
            compare(both, counts, generator)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_floors_hide_in_pages_what_they_hide_in_dense_tensors(compact: bool, seed: int) -> None:
    rng = random.Random(f"{compact}{seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    floors = tuple(rng.choice([0, 1, 20, 50, 90]) for _ in range(3))
    both = Both("cache", 3, floors, tuple(rng.randint(0, floor) for floor in floors), compact)
    spoil(both)
    while any(request.written < 95 for request in both.requests):
        sizes = [rng.choice([0, 1, 1, 2, 7, 30, 60]) for _ in both.requests]
        counts = [min(n, 100 - r.written) for n, r in zip(sizes, both.requests, strict=True)]
        if any(counts):
            compare(both, counts, generator)


def test_a_chunk_longer_than_the_ring_leaves_its_newest_positions() -> None:
    ring = ring_size(SPEC.window, SPEC.draft_tokens)
    generator = torch.Generator().manual_seed(1)
    both = Both("exact", num_sequences=1)
    compare(both, [3], generator)
    compare(both, [ring * 3 + 5], generator)
    compare(both, [1], generator)


def test_padding_rows_write_nothing() -> None:
    both = Both("served", num_sequences=1)
    compare(both, [1], torch.Generator().manual_seed(2))
    assert not any(both.arenas.slot(0)) and not any(both.arenas.block(0))


def test_what_a_page_held_before_is_never_seen() -> None:
    both = Both("served", num_sequences=2)
    spoil(both)
    generator = torch.Generator().manual_seed(3)
    for counts in ([5, 1], [1, 0], [1, 40], [20, 1]):
        compare(both, counts, generator)


def spoil(both: Both) -> None:
    """Fill all pages with bytes that are NaN in every format."""
    for page in range(1, 61):
        both.arenas.block(page)[:] = b"\xff" * both.arenas.layout.block_bytes
    for slot in range(1, both.num_sequences + 1):
        both.arenas.slot(slot)[:] = b"\xff" * both.arenas.layout.slot_bytes
