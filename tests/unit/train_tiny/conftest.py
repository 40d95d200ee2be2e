import random
from pathlib import Path

import numpy as np
import pytest
import torch
from train_tiny import train
from train_tiny.shards import Batch, Document, batch, pack
from train_tiny.step import Model

from diptych.model.spec import ModelSpec
from diptych.supervisor.checkpoint import embedded_folder
from diptych.text import tokenizer as tokenizers
from diptych.text.tokenizer import Tokenizer

LENGTH = 256  # rows a bin


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.node.name)


@pytest.fixture(scope="session")
def folder() -> Path:
    return embedded_folder()


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return tokenizers.load(folder)


@pytest.fixture(scope="session")
def spec(folder: Path) -> ModelSpec:
    return ModelSpec.load(folder)


@pytest.fixture
def model(folder: Path) -> Model:
    return train.build(folder, "cpu", seed=0)


@pytest.fixture
def documents(spec: ModelSpec) -> list[Document]:
    """Of several lengths, some longer than a selection; not all fill whole groups of rows."""
    values = np.random.default_rng(0)
    return [
        Document(
            values.integers(3, spec.vocab_size, n).astype(np.uint16),
            (values.random(n) < 0.5).astype(np.uint8),
        )
        for n in (70, 45, 200, 33, 150, 61)
    ]


@pytest.fixture
def bins(documents: list[Document]) -> Batch:
    return batch(pack(documents, LENGTH), LENGTH)
