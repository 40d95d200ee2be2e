"""Pooling, norm and rotation of compressed entries against the golden cases."""

import dataclasses

import pytest
import torch

from diptych.model.compressor import CompressorWeights, latent, pool
from diptych.model.dense import DenseMemory
from diptych.model.layers import linear
from diptych.model.rope import frequencies, turn

CASES = [f"ratio{r}.len{n}" for r in (1, 2) for n in (1, 2, 9)]


@pytest.mark.parametrize("case", CASES)
def test_latents_and_rotated_entries_match_golden(golden, model, case):
    m = model("tiny-text", "exact")
    g = {k.removeprefix(f"{case}."): v for k, v in golden("ops/compressor").items() if case in k}
    ratio = int(case[5])
    layer = next(layer for layer in m.spec.kv_sources if layer.ratio == ratio)
    weights = CompressorWeights(
        g["wkv"], g.get("wgate"), g["norm"], wk=torch.empty(0), k_norm=torch.empty(0)
    )
    positions = torch.arange(len(g["x"]))
    memory = DenseMemory(m.spec, m.numerics, 1)
    memory.begin(torch.zeros_like(positions), positions)
    got = latent(weights, m.spec, m.numerics, layer, g["x"], memory)
    ends = slice(ratio - 1, None, ratio)
    near = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(got[ends], g["latent"], **near)
    frequency = frequencies(m.spec.rope, compressed=True)
    rotated = turn(frequency, positions - positions % ratio, torch.float32).rotate(got)
    torch.testing.assert_close(rotated[ends], g["rotated"], **near)
    if "pending_kv" in g:
        torch.testing.assert_close(linear(g["x"], weights.wkv)[-1:], g["pending_kv"], **near)
        torch.testing.assert_close(linear(g["x"], weights.wgate)[-1:], g["pending_score"], **near)


def test_scores_far_apart_pick_one_token(generator):
    now, earlier = torch.randn(2, 4, 8, generator=generator)
    high, low = torch.full((4, 8), 500.0), torch.full((4, 8), -500.0)
    assert torch.equal(pool(now, high, earlier, low), now)
    assert torch.equal(pool(now, low, earlier, high), earlier)


def test_the_predecessor_of_an_earlier_forward_is_found(golden, model):
    m = model("tiny-text", "exact")
    g = golden("ops/compressor")
    layer = next(layer for layer in m.spec.kv_sources if layer.ratio == 2)
    weights = CompressorWeights(
        *(g[f"ratio2.len9.{n}"] for n in ("wkv", "wgate", "norm")), torch.empty(0), torch.empty(0)
    )
    memory = DenseMemory(dataclasses.replace(m.spec), m.numerics, 1)
    out = []
    for start, stop in ((0, 1), (1, 4), (4, 9)):
        positions = torch.arange(start, stop)
        memory.begin(torch.zeros_like(positions), positions)
        x = g["ratio2.len9.x"][start:stop]
        out.append(latent(weights, m.spec, m.numerics, layer, x, memory))
    torch.testing.assert_close(torch.cat(out)[1::2], g["ratio2.len9.latent"], rtol=1e-5, atol=1e-5)
