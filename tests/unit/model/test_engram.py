"""Engram look-up, gate and write against the golden case."""

import dataclasses

import torch

from diptych.model.engram import Table, gate, look_up, write

NEAR = {"rtol": 1e-5, "atol": 1e-5}


def golden_weights(golden, model):
    g = golden("ops/engram")
    weights = model("tiny-text", "exact").weights.layers[1].engram
    return g, dataclasses.replace(weights, q_weight=g["gate.q_weight"], k_weight=g["gate.k_weight"])


def test_gates_and_written_streams_match_golden(golden, model):
    g, weights = golden_weights(golden, model)
    looked_up = g["gate.kv"].view(8, 5, -1)
    got = gate(weights, g["gate.streams"], looked_up[:, :4])
    torch.testing.assert_close(got.squeeze(-1), g["gate.gate"], **NEAR)
    exact = model("tiny-text", "exact").numerics
    out, gates = write(weights, exact, g["gate.streams"], looked_up)
    torch.testing.assert_close(out, g["gate.out"], **NEAR)
    torch.testing.assert_close(gates, g["gate.gate"], **NEAR)


def test_image_rows_keep_their_streams_bit_for_bit(golden, model):
    g, weights = golden_weights(golden, model)
    text = g["gate.token_mask"].bool()
    exact = model("tiny-text", "exact").numerics
    looked_up = g["gate.kv"].view(8, 5, -1)
    out, gates = write(weights, exact, g["gate.streams"], looked_up, image=~text)
    torch.testing.assert_close(out, g["gate.out_masked"], **NEAR)
    assert torch.equal(out[~text], g["gate.streams"][~text])
    assert not gates[~text].any()


def test_stored_rows_are_dequantised_when_they_are_gathered(golden):
    g = golden("ops/quant")
    table = Table(g["table_fp8.bytes"], g["table_fp8.scale_ue8m0"], torch.float32)
    ids = torch.tensor([[3, 69], [0, 3]])
    expected = g["table_fp8.dequant"][ids].flatten(1)
    assert torch.equal(table.gather(ids), expected)


def test_a_token_gets_a_key_for_each_stream_and_one_value(model):
    m = model("tiny-quant", "exact")
    weights = m.weights.layers[1].engram
    ids = torch.zeros(32, m.spec.engram.rows_per_token, dtype=torch.int64)
    assert look_up(weights, m.numerics, ids).shape == (32, m.spec.streams + 1, m.spec.hidden_size)
