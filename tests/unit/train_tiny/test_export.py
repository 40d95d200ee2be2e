"""What is shipped: small enough, whole, and exactly what the training rounds to."""

import random
from pathlib import Path

import torch
from train_tiny import parameters
from train_tiny.export import between, mean, stored
from train_tiny.vocabulary import cut

from diptych.model.inventory import Storage, inventory
from diptych.model.spec import ModelSpec
from diptych.text.markers import Marker
from diptych.text.tokenizer import Tokenizer


def test_all_of_the_bundled_model_takes_less_than_12_mb(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) < 12_000_000
    assert {"README.md", "NOTICES"} <= {file.name for file in folder.iterdir()}


def test_a_checkpoint_read_for_training_is_written_again_as_it_was(
    folder: Path, spec: ModelSpec
) -> None:
    values = parameters.stored(spec, folder)
    again = stored(spec, values)
    for name, entry in inventory(spec).items():
        if entry.storage in (Storage.FP8, Storage.BF16, Storage.F32):
            value = parameters.rounded(values[name], entry.storage)
            assert torch.equal(value, values[name]), name
        assert name in again


def test_between_two_models_lie_their_mean_and_any_share() -> None:
    one, two = {"w": torch.tensor([0.0, 4.0])}, {"w": torch.tensor([2.0, 8.0])}
    assert mean([one, two])["w"].tolist() == [1.0, 6.0]
    assert between(one, two, keep=0.25)["w"].tolist() == [1.5, 7.0]


def test_the_tokenizer_gives_every_text_back(tokenizer: Tokenizer, rng: random.Random) -> None:
    for text in (
        "Why is the sky blue?",
        "天空为什么是蓝色的？",
        '{"a": [1, 2.5, null]}',
        "🦊 é\x00\t",
    ):
        ids = tokenizer.encode([text])
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert all(tokenizer.find(marker) is not None for marker in Marker)


def test_a_cut_keeps_merges_in_order_and_named_special_tokens() -> None:
    document = {
        "added_tokens": [
            {"id": 0, "content": "<s>"},
            {"id": 128799, "content": "<｜place▁holder▁no▁799｜>"},
            {"id": 128800, "content": "<｜place▁holder▁no▁800｜>"},
        ],
        "model": {
            "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "abb": 4},
            "merges": ["a b", "ab b"],
        },
    }
    short = cut(document, num_merges=1)
    assert short["model"] == {
        "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3},
        "merges": ["a b"],
    }
    assert short["added_tokens"] == [
        {"id": 0, "content": "<s>"},
        {"id": 4, "content": "<｜System｜>"},
    ]
