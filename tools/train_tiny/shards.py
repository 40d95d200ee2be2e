"""Documents on disk, and bins of them in memory.

A shard is an .npz of three arrays: `ids` uint16 (all documents, end to end), `learn` uint8 (1 where
the assistant speaks), `lengths` int32. Its file name says what it holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from train_tiny.memory import ALIGNMENT

LENGTHS = (512, 2048)  # rows of a short and of a long bin
HELD_OUT = "held-out-"  # begins the name of a shard that is never trained on
PROMPT_WEIGHT = 0.1  # in the loss, of what the assistant does not say
Ids = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids [n], and where the assistant speaks [n]."""

    ids: Ids
    learn: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Batch:
    """Bins side by side, as a step takes them: everything [bins * length]."""

    length: int
    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]  # in the loss; 0 where nothing follows


def save(path: Path, documents: Sequence[Document]) -> None:
    """Write a shard."""
    np.savez(
        path,
        ids=np.concatenate([d.ids for d in documents]),
        learn=np.concatenate([d.learn for d in documents]),
        lengths=np.array([len(d.ids) for d in documents], np.int32),
    )


def load(path: Path) -> list[Document]:
    """Read a shard."""
    with np.load(path) as arrays:
        ends = np.cumsum(arrays["lengths"])[:-1]
        parts = zip(np.split(arrays["ids"], ends), np.split(arrays["learn"], ends), strict=True)
        return [Document(ids, learn) for ids, learn in parts]


def pack(documents: Sequence[Document], length: int) -> list[list[Document]]:
    """Documents in their order, as many to a bin as fit; longer ones are cut."""
    bins: list[list[Document]] = []
    room = 0
    for document in documents:
        cut = Document(document.ids[:length], document.learn[:length])
        size = -(-len(cut.ids) // ALIGNMENT) * ALIGNMENT
        if size > room:
            bins.append([])
            room = length
        bins[-1].append(cut)
        room -= size
    return bins


def batch(bins: Sequence[Sequence[Document]], length: int) -> Batch:
    """The arrays of a step. Rows between documents are documents of one token each."""
    shape = (len(bins), length)
    ids, targets = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    positions, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for row, documents in enumerate(bins):
        at = 0
        for document in documents:
            n = len(document.ids)
            ids[row, at : at + n] = document.ids
            positions[row, at : at + n] = np.arange(n)
            targets[row, at : at + n - 1] = document.ids[1:]
            weights[row, at : at + n - 1] = np.where(document.learn[1:], 1.0, PROMPT_WEIGHT)
            at += -(-n // ALIGNMENT) * ALIGNMENT
    return Batch(length, ids.ravel(), positions.ravel(), targets.ravel(), weights.ravel())


class Feed:
    """Batches of `rows` rows without end, every document once an epoch; the same from a seed."""

    def __init__(self, documents: Sequence[Document], rows: int, seed: int) -> None:
        self._by_length = {length: [] for length in LENGTHS}  # type: dict[int, list[Document]]
        for document in documents:
            fits = next((n for n in LENGTHS if len(document.ids) <= n), LENGTHS[-1])
            self._by_length[fits].append(document)
        self._rows = rows
        self._seed = seed

    def batches(self, skip: int = 0) -> Iterator[Batch]:
        """From batch number `skip` on."""
        number = 0
        for epoch in range(1_000_000):
            random = np.random.default_rng((self._seed, epoch))
            groups: list[tuple[int, list[list[Document]]]] = []
            for length, documents in self._by_length.items():
                order = random.permutation(len(documents))
                bins = pack([documents[i] for i in order], length)
                count = max(self._rows // length, 1)
                chunks = [bins[i : i + count] for i in range(0, len(bins) - count + 1, count)]
                groups += [(length, chunk) for chunk in chunks]
            assert groups, "too few documents for one batch"
            for i in random.permutation(len(groups)):
                if number >= skip:
                    yield batch(groups[i][1], groups[i][0])
                number += 1
