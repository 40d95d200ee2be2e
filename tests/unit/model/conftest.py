"""Golden tensors, the tiny checkpoints, and a way to run sequences through a model in pieces."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diptych.model import decoder, weights
from diptych.model.attention import Trace
from diptych.model.dense import DenseMemory, rows_of
from diptych.model.layers import PADDING
from diptych.model.numerics import NUMERICS, Numerics
from diptych.model.spec import ModelSpec
from diptych.model.weights import Weights

GOLDEN = Path(__file__).parents[2] / "golden"
GRAIN = 32  # tokens a block: short prompts shall cross from one index tile to the next


@dataclass(frozen=True)
class Model:
    """A loaded model under some numerics."""

    spec: ModelSpec
    weights: Weights
    numerics: Numerics

    def logits(
        self,
        sequences: Sequence[Sequence[int]],
        chunk: int | Sequence[int] | None = None,
        trace: Trace | None = None,
        floors: Sequence[int] | None = None,
        compact: bool = False,
    ) -> list[Tensor]:
        """Logits of each sequence, all of them together, `chunk` tokens of each in a forward.

        Decoder layers see nothing below `floors`; `compact` rows below them stop at the border.
        """
        count = len(sequences)
        memory = DenseMemory(self.spec, self.numerics, count, grain=GRAIN, floors=floors)
        parts: list[list[Tensor]] = [[] for _ in sequences]
        start = 0
        for size in chunk_sizes(chunk, max(map(len, sequences))):
            heads = [s[: start + size] for s in sequences]
            starts = [min(start, len(s)) for s in sequences]
            start += size
            kept_from = floors if compact else None
            rows, owners = rows_of(self.weights.hashing, heads, starts, kept_from)
            memory.begin(owners, rows.positions)
            if rows.kept is not None:
                owners = owners[rows.kept].masked_fill(rows.kept == PADDING, PADDING)
            out = decoder.hidden(self.spec, self.weights, self.numerics, rows, memory, trace)
            out = decoder.logits(self.weights, self.numerics, out)
            for i, part in enumerate(parts):
                part.append(out[owners == i])
        return [torch.cat(part) for part in parts]


def chunk_sizes(chunk: int | Sequence[int] | None, length: int) -> Sequence[int]:
    if chunk is None:
        return [length]
    return [chunk] * -(-length // chunk) if isinstance(chunk, int) else chunk


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """Random numbers seeded by the test's own name."""
    digest = hashlib.blake2b(request.node.name.encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, Tensor]]:
    """`golden("ops/rope")`: the tensors of a golden file."""
    return functools.cache(lambda name: load_file(GOLDEN / f"{name}.safetensors"))


@pytest.fixture(scope="session")
def make_model() -> type[Model]:
    """`make_model(spec, weights, numerics)`: anything that can run sequences."""
    return Model


@pytest.fixture(scope="session")
def model() -> Callable[[str, str], Model]:
    """`model("tiny-text", "exact")`: a golden checkpoint, loaded once."""

    @functools.cache
    def load(name: str, numerics: str) -> Model:
        spec = ModelSpec.load(GOLDEN / name)
        loaded = weights.load(GOLDEN / name, spec, NUMERICS[numerics])
        return Model(spec, loaded, NUMERICS[numerics])

    return load
