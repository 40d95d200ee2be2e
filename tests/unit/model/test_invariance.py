"""A row's bits do not depend on its neighbours, on padding, or on how a prompt is cut."""

import random

import pytest
import torch

from diptych.model import decoder
from diptych.model.dense import DenseMemory, rows_of
from diptych.model.memory import Rows

MODES = ["exact", "cache", "served"]
CHUNKS = [1, 2, 7, 16, 64]


def prompts(golden):
    tensors = golden("tiny-text/golden")
    return [tensors[f"{name}.input_ids"].tolist() for name in ("n150", "mid_eos_bos", "n17", "n1")]


@pytest.fixture(scope="module")
def alone(model, golden):
    """Logits of each prompt by itself in one pass."""
    return {
        mode: [model("tiny-text", mode).logits([p])[0] for p in prompts(golden)]
        for mode in (*MODES, "exact64")
    }


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("mode", MODES)
def test_chunked_sequences_together_equal_each_alone_in_one_pass(model, golden, alone, mode, chunk):
    for got, want in zip(
        model("tiny-text", mode).logits(prompts(golden), chunk), alone[mode], strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_change_nothing_beyond_rounding_in_float64(model, golden, alone, chunk):
    for got, want in zip(
        model("tiny-text", "exact64").logits(prompts(golden), chunk), alone["exact64"], strict=True
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("padding", [0, 32, 96, 1024])
@pytest.mark.parametrize("mode", MODES)
def test_rows_shuffled_among_others_and_padding_keep_their_bits(
    model, golden, alone, mode, padding, generator
):
    m = model("tiny-text", mode)
    sequences = prompts(golden)
    rows, owners = rows_of(m.weights.hashing, sequences, [0] * len(sequences))
    spare = torch.zeros(padding, dtype=torch.int64)
    rows = Rows(
        torch.cat((rows.token_ids, spare)),
        torch.cat((rows.positions, spare)),
        torch.cat((rows.grams, spare.unsqueeze(1).expand(-1, rows.grams.shape[1]))),
    )
    owners = torch.cat((owners, spare - 1))
    order = interleave(owners.tolist(), random.Random(generator.initial_seed()))
    rows = Rows(rows.token_ids[order], rows.positions[order], rows.grams[order])
    memory = DenseMemory(m.spec, m.numerics, len(sequences))
    memory.begin(owners[order], rows.positions)
    out = decoder.hidden(m.spec, m.weights, m.numerics, rows, memory)
    out = decoder.logits(m.weights, m.numerics, out)
    for i, want in enumerate(alone[mode]):
        assert torch.equal(out[owners[order] == i], want)


def interleave(owners: list[int], rng: random.Random) -> list[int]:
    """A random order of rows in which those of one owner keep theirs."""
    queues = {o: [i for i, x in enumerate(owners) if x == o] for o in set(owners)}
    slots = owners[:]
    rng.shuffle(slots)
    return [queues[o].pop(0) for o in slots]
