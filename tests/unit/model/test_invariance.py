"""A row's bits do not depend on its neighbours, on padding, or on how a prompt is cut."""

import random

import pytest
import torch

from diptych.model import attention, compressor, decoder, engram, indexer, layers, mhc, moe
from diptych.model.dense import DenseMemory, rows_of
from diptych.model.memory import Rows
from diptych.model.numerics import NUMERICS
from diptych.model.quant import FP8_G32, MXFP4_G32, NVFP4_G16
from diptych.model.rope import frequencies, turn

MODES = ["exact", "cache", "served"]
CHUNKS = [1, 2, 7, 16, 64]


def prompts(golden):
    tensors = golden("tiny-text/golden")
    names = ("n150", "n64", "mid_eos_bos", "n17", "n1")
    return [tensors[f"{name}.input_ids"].tolist() for name in names]


@pytest.fixture(scope="module")
def alone(model, golden):
    """Logits of each prompt by itself in one pass."""
    return {
        mode: [model("tiny-text", mode).logits([p])[0] for p in prompts(golden)]
        for mode in (*MODES, "exact64")
    }


def pieces(golden, alone, chunk):
    """Prompts and their logits; the longest only where it takes few forwards."""
    first = 1 if chunk < 7 else 0
    return prompts(golden)[first:], alone[first:]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("mode", MODES)
def test_chunked_sequences_together_equal_each_alone_in_one_pass(model, golden, alone, mode, chunk):
    sequences, wanted = pieces(golden, alone[mode], chunk)
    got = model("tiny-text", mode).logits(sequences, chunk)
    for ours, want in zip(got, wanted, strict=True):
        assert torch.equal(ours, want)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_change_nothing_beyond_rounding_in_float64(model, golden, alone, chunk):
    sequences, wanted = pieces(golden, alone["exact64"], chunk)
    got = model("tiny-text", "exact64").logits(sequences, chunk)
    for ours, want in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, want, rtol=0, atol=1e-9)


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
    memory = DenseMemory(m.spec, m.numerics, len(sequences), grain=32)
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


def mixed(m, x, layer=2):
    mix = mhc.mix(m.weights.layers[layer].hc_attn, m.spec, x)
    return torch.cat((mix.pre, mix.post, mix.comb.flatten(0, 1).t()), 1)


def expanded(m, y, x):
    return mhc.expand(y, x, mhc.mix(m.weights.layers[0].hc_ffn, m.spec, x))


def routed(m, x):
    chosen, picked = moe.route(m.weights.layers[0].moe, m.spec, x)
    return torch.cat((chosen, picked), 1)


def experts(m, x):
    w = m.weights.layers[0].moe
    return moe.mixture(w, m.spec, m.numerics, x, *moe.route(w, m.spec, x))


def attended(m, q, keys, present):
    return attention.sparse_attention(
        m.numerics, q, keys, present > 0, m.weights.layers[0].attn.sink
    )


def projected(m, out):
    return attention.project(m.weights.layers[0].attn, m.spec, m.numerics, out)


def scored(m, q, w, keys):
    visible = torch.full((len(q),), 150)
    return indexer.score(q, w, keys.transpose(0, 1), visible)[:, :150]


def chosen(m, scores):
    visible = torch.full((len(scores),), scores.shape[1])
    kept = indexer.candidates(scores, visible, 8, 4)
    return torch.cat((kept, indexer.select(scores, 16)), 1)


def queried(m, x, latent, positions):
    here = turned(m, positions)
    query, weights = indexer.index_query(
        m.weights.layers[2].attn.indexer, m.spec, m.numerics, x, latent, here
    )
    return torch.cat((query.flatten(1), weights), 1)


def turned(m, positions):
    frequency = frequencies(m.spec.rope, compressed=True)
    return turn(frequency, (positions[:, 0].abs() * 1e4).long(), m.numerics.dtype)


def looked_up(m, x):
    ids = (x.abs() * 1000).long() % 3144
    return engram.look_up(m.weights.layers[1].engram, m.numerics, ids)


def remembered(m, streams, kv):
    return engram.write(m.weights.layers[1].engram, m.numerics, streams, kv)[0]


# Each operation with the shapes of what it takes for one row.
OPERATIONS = {
    "linear_narrow": (lambda m, x: layers.linear(x, m.weights.layers[0].moe.gate), (96,)),
    "linear_wide": (lambda m, x: layers.linear(x, m.weights.layers[0].attn.wq_b), (64,)),
    "linear_odd": (lambda m, x: layers.linear(x, m.weights.embed[:13, :64]), (64,)),
    "linear_deep": (lambda m, x: layers.linear(x, m.weights.embed.view(60, 1536)), (1536,)),
    "head": (lambda m, x: decoder.logits(m.weights, m.numerics, x), (96,)),
    "rms_norm": (lambda m, x: layers.rms_norm(x, m.weights.norm, 1e-20), (96,)),
    "sigmoid": (lambda m, x: layers.sigmoid(x), (33,)),
    "silu": (lambda m, x: layers.silu(x), (33,)),
    "softplus": (lambda m, x: layers.softplus(x), (33,)),
    "fp8": (lambda m, x: FP8_G32.round(x), (64,)),
    "mxfp4": (lambda m, x: MXFP4_G32.round(x), (64,)),
    "nvfp4": (lambda m, x: NVFP4_G16.round(x), (64,)),
    "rotate": (lambda m, x, p: turned(m, p).rotate(x), (4, 64), (1,)),
    "unrotate": (lambda m, x, p: turned(m, p).unrotate(x), (64,), (1,)),
    "mix": (mixed, (4, 96)),
    "collapse": (lambda m, x, pre: mhc.collapse(x, pre), (4, 96), (4,)),
    "expand": (expanded, (96,), (4, 96)),
    "pool": (lambda m, *x: compressor.pool(*x), (64,), (64,), (64,), (64,)),
    "index_query": (queried, (96,), (64,), (1,)),
    "index_score": (scored, (8, 32), (8,), (3, 64, 32)),
    "select": (chosen, (160,)),
    "sparse_attention": (attended, (4, 64), (40, 64), (40,)),
    "project": (projected, (4, 64)),
    "route": (routed, (96,)),
    "mixture": (experts, (96,)),
    "engram_look_up": (looked_up, (6,)),
    "engram_write": (remembered, (4, 96), (5, 96)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_a_row_the_same_bits_anywhere(model, name, mode, generator):
    operation, *shapes = OPERATIONS[name]
    m = model("tiny-quant", mode)
    inputs = [
        NUMERICS[mode].bf16(torch.randn(1024, *shape, generator=generator)) for shape in shapes
    ]
    whole = operation(m, *inputs)
    for count in (32, 64, 160, 512):
        rows = torch.randperm(1024, generator=generator)[:count]
        part = operation(m, *(x[rows] for x in inputs))
        assert torch.equal(part, whole[rows]), f"{count} rows"
    for row in (0, 31, 32, 500, 1023):  # among 31 copies of another row
        rows = torch.full((32,), (row + 7) % 1024)
        rows[row % 32] = row
        assert torch.equal(operation(m, *(x[rows] for x in inputs))[row % 32], whole[row])
