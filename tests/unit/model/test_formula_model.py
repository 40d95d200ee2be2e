"""A second tiny model, whose weights follow from a formula, against published figures.

Other sizes than the golden checkpoints: three n-grams, two experts of eight, a window of 8, an
Engram on a KV source, candidate blocks of 2. Weight i of tensor N is a hash of N's name and i.
"""

import math

import numpy as np
import pytest
import torch

from diptych.model.engram import Table
from diptych.model.inventory import Storage, inventory
from diptych.model.ngrams import Hashing
from diptych.model.noise import store
from diptych.model.numerics import NUMERICS
from diptych.model.quant import MXFP4_G32, decode_fp8_blocks
from diptych.model.spec import ModelSpec
from diptych.model.weights import assemble, scale_name

PROMPT = [0, 12, 31, 62, 105, 40, 107, 66, 37, 20, 15, 22, 41]
PROMPT += [72, 115, 50, 117, 76, 47, 30, 25, 32, 51, 82, 5, 60]

CONFIG = {
    "model_type": "deepseek_v41",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 127,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text",
        "vocab_size": 128,
        "hidden_size": 64,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 64,
        "o_groups": 2,
        "o_lora_rank": 32,
        "attention_bias": False,
        "sliding_window": 8,
        "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 0, 0],
        "kv_source_layer_ids": [2, 4, 5],
        "index_source_layer_ids": [2, 4, 5, 7],
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 4,
        "candidate_source_layer_id": 5,
        "candidate_topk_blocks": 3,
        "candidate_block_size": 2,
        "rope_theta": 100,
        "compress_rope_theta": 1000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 32,
        },
        "max_position_embeddings": 128,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 1.0,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-20,
        "engram_layer_ids": [1, 4],
        "engram_num_embeddings": [240, 306],
        "engram_max_ngram_size": 3,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_vocab_size": 50,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 96,
        "num_nextn_predict_layers": 2,
        "dspark_block_size": 3,
        "dspark_noise_token_id": 126,
        "dspark_target_layer_ids": [6, 7],
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    },
}


def uniform(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The pseudo-random values of a tensor, in [-1, 1)."""
    with np.errstate(over="ignore"):
        z = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(fnv(name))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return torch.from_numpy((z >> np.uint64(40)) / 2.0**23 - 1).float().view(shape)


def fnv(name: str) -> int:
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def formula(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor before it is stored."""
    r = uniform(name, shape)
    if "norm" in name or name.endswith(("q_weight", "k_weight")) or "_scale" in name:
        return 1 + r / 4
    if name.endswith(("embed.weight", "attn_sink")):
        return r
    if name.endswith(("_base", ".bias", ".bias_vl")):
        return r / 4
    if name.endswith("_fn"):
        return r / 16
    return r * (2 * 2.0 ** -math.ceil(math.log2(shape[-1]) / 2))


@pytest.fixture(scope="module")
def formula_model():
    """`formula_model("exact")`: the model with the values that its stored tensors decode to."""
    spec = ModelSpec.parse(CONFIG)
    entries = inventory(spec)
    stored: dict[str, torch.Tensor] = {}
    for name, entry in entries.items():
        stored |= store(name, entry, formula(name, entry.shape))

    def build(mode: str):
        def dense(name):
            data, storage = stored[name], entries[name].storage
            if storage in (Storage.BF16, Storage.F32):
                return data.to(NUMERICS[mode].dtype)
            scales = stored[scale_name(name)].view(torch.uint8)
            decode = decode_fp8_blocks if storage is Storage.FP8 else MXFP4_G32.decode
            return decode(data.view(torch.uint8), scales).to(NUMERICS[mode].dtype)

        def table(name):
            scales = stored[scale_name(name)].view(torch.uint8)
            return Table(stored[name].view(torch.uint8), scales, NUMERICS[mode].dtype)

        hashing = Hashing.of(spec.engram, torch.arange(128) % 96)
        return spec, assemble(spec, dense, table, hashing), NUMERICS[mode]

    return build


@pytest.fixture(scope="module")
def seen(formula_model, make_model):
    """Logits and the trace of the prompt, in `exact64`."""
    trace = {}
    m = make_model(*formula_model("exact64"))
    (logits,) = m.logits([PROMPT], trace=lambda name, layer, v: trace.update({(name, layer): v}))
    return logits, trace


def near(tensor, expected, tolerance):
    torch.testing.assert_close(
        tensor.float(), torch.tensor(expected, dtype=torch.float32), rtol=0, atol=tolerance
    )


def test_weights_follow_the_formula(formula_model):
    assert fnv("embed.weight") == 0x9AC37BCAC2DC8A00
    assert fnv("layers.0.attn.wq_a.weight") == 0x643E5B463444EEEA
    r = uniform("embed.weight", (4,))
    near(r, [0.0350399017, 0.8896987438, 0.6592632532, 0.5222264528], 1e-9)
    _, weights, _ = formula_model("exact")
    first = weights.layers[0].attn.wq_a[0, :6]
    assert first.tolist() == [0.140625, 0.0703125, -0.09375, -0.09375, -0.09375, 0.0234375]
    expert = weights.layers[0].moe.w2[3, 0, :6]
    assert expert.tolist() == [-0.03125, -0.25, -0.25, 0.25, 0.25, 0.1875]
    row = weights.layers[1].engram.table.gather(torch.tensor([[0]]))[0, :4]
    assert row.tolist() == [0.9375, 0.0390625, 0.75, 0.21875]


def test_logits_have_their_published_values(seen):
    logits, _ = seen
    expected = {
        0: [0.830409, -0.565453, 0.661469, -1.738125, -0.358026, -0.597964],
        1: [2.235695, -1.752747, 0.493660, -0.635319, -0.069651, -0.144650],
        7: [0.241257, -0.338571, 1.051053, -0.086446, 0.676806, 1.160986],
        8: [-0.326790, -1.791330, 2.550849, -0.324404, 1.268934, -0.481470],
        15: [1.120205, -1.239095, 1.015309, -0.333044, -0.346814, 0.262878],
        25: [1.260309, 0.905333, 0.019906, 0.763304, 0.802595, 1.076948],
    }
    for position, values in expected.items():
        near(logits[position, :6], values, 2e-6)
    best = {0: 121, 1: 0, 7: 21, 8: 108, 15: 35, 25: 125}
    assert {p: int(logits[p].argmax()) for p in best} == best
    assert logits.abs().mean().item() == pytest.approx(0.861164, abs=2e-6)
    assert torch.logsumexp(logits[25], 0).item() == pytest.approx(5.446269, abs=2e-6)


def test_every_layer_has_its_published_streams_lists_and_experts(seen):
    _, trace = seen
    means = [0.688048, 0.923443, 1.045444, 1.151501, 1.301826, 1.393270, 1.489200, 1.559412]
    streams = {0: [0.04618, -0.35547, -1.35036], 4: [1.39088, -0.43219, -1.32293]}
    streams |= {7: [0.10542, -0.37847, -1.31889]}
    lists = {2: [1, 2, 4, 6], 4: [0, 4, 7, 12], 5: [1, 13, 15, 21], 7: [12, 20, 24, 25]}
    experts = {0: (6, 4), 2: (5, 4), 4: (0, 1), 7: (3, 4)}
    for layer, mean in enumerate(means):
        value = trace["streams", layer][:26]
        assert value.abs().mean().item() == pytest.approx(mean, abs=2e-6)
    for layer, values in streams.items():
        near(trace["streams", layer][25, 0, :3], values, 1e-5)
    for layer, entries in lists.items():
        assert trace["selected", layer][25].tolist() == entries
    for layer, chosen in experts.items():
        assert set(trace["experts", layer][25].tolist()) == set(chosen)
    assert trace["engram_rows", 1][1].tolist() == [14, 63, 155, 178]
    assert trace["engram_rows", 4][25].tolist() == [47, 115, 171, 258]


@pytest.mark.parametrize("chunks", [(5, 1, 7, 1, 1, 11), (1,) * 26, (8, 8, 8, 2)])
def test_uneven_chunks_give_the_same_logits(formula_model, make_model, seen, chunks):
    m = make_model(*formula_model("exact64"))
    (logits,) = m.logits([PROMPT], chunk=chunks)
    torch.testing.assert_close(logits, seen[0], rtol=0, atol=1e-12)


def test_float32_agrees_with_float64(formula_model, make_model, seen):
    (logits,) = make_model(*formula_model("exact")).logits([PROMPT])
    torch.testing.assert_close(logits.double(), seen[0], rtol=0, atol=1e-4)


def test_served_arithmetic_has_its_published_values(formula_model, make_model):
    trace = {}
    m = make_model(*formula_model("served"))
    (logits,) = m.logits([PROMPT], trace=lambda name, layer, v: trace.update({(name, layer): v}))
    near(logits[0, :6], [0.720359, -0.470767, 0.402718, -1.839614, -0.343882, -0.579764], 1e-5)
    near(logits[1, :3], [2.356991, -1.168593, 0.039593], 1e-5)
    expected = torch.tensor([1.685342, 0.544549, 0.015712, 0.654739, 0.417192, 1.124022])
    assert (logits[25, :6] - expected).abs().mean() < 0.1
    assert int(logits[25].argmax()) == 37
    assert logits.abs().mean().item() == pytest.approx(0.860720, abs=1e-3)
    lists = {2: [0, 2, 4, 6], 4: [4, 5, 7, 12], 5: [1, 15, 20, 21], 7: [0, 1, 14, 15]}
    assert {layer: trace["selected", layer][25].tolist() for layer in lists} == lists


@pytest.mark.parametrize("chunks", [None, (16, 10), (9, 1, 7, 8, 1), (1,) * 26])
@pytest.mark.parametrize("compact", [False, True])
def test_bounded_replay_has_its_published_values(formula_model, make_model, seen, compact, chunks):
    m = make_model(*formula_model("exact64"))
    (logits,) = m.logits([PROMPT], chunk=chunks, floors=[16], compact=compact)
    expected = [1.242545, 0.948332, 0.060256, 0.768400, 0.867890, 1.072636]
    near(logits[-1, :6], expected, 2e-6)
    assert int(logits[-1].argmax()) == 125
    assert (logits[-1] - seen[0][-1]).abs().max().item() == pytest.approx(0.127239, abs=2e-6)
    assert len(logits) == (10 if compact else 26)
