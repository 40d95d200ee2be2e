"""Documents keep their tokens through shards, bins and batches."""

from pathlib import Path

import numpy as np
from train_tiny import shards
from train_tiny.memory import ALIGNMENT
from train_tiny.shards import Batch, Document, Feed


def test_a_shard_gives_back_what_was_saved(tmp_path: Path, documents: list[Document]) -> None:
    shards.save(tmp_path / "a.npz", documents)
    for ours, theirs in zip(documents, shards.load(tmp_path / "a.npz"), strict=True):
        assert np.array_equal(ours.ids, theirs.ids)
        assert np.array_equal(ours.learn, theirs.learn)


def test_targets_follow_within_a_document_and_never_across(bins: Batch) -> None:
    starts = np.flatnonzero(bins.positions == 0)
    assert not np.any(starts[bins.weights[starts] > 0] % ALIGNMENT)
    inside = np.flatnonzero(bins.weights > 0)
    assert np.array_equal(bins.targets[inside], bins.ids[inside + 1])
    assert np.array_equal(bins.positions[inside] + 1, bins.positions[inside + 1])


def test_a_feed_repeats_itself_from_its_seed_and_goes_on_where_it_is_told(
    documents: list[Document],
) -> None:
    many = documents * 40

    def first(count: int, seed: int, skip: int = 0) -> list[bytes]:
        batches = Feed(many, 1024, seed).batches(skip)
        return [next(batches).ids.tobytes() for _ in range(count)]

    assert first(6, seed=1) == first(6, seed=1) != first(6, seed=2)
    assert first(6, seed=1)[2:] == first(4, seed=1, skip=2)
