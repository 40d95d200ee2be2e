"""Sparse attention with sink and the grouped output projection against the golden case."""

import dataclasses

import torch

from diptych.model.attention import project, sparse_attention
from diptych.model.numerics import NUMERICS
from diptych.model.rope import frequencies, turn

EXACT = NUMERICS["exact"]
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def window_of(g):
    """Each row's window keys [T, W, d] and which of them exist."""
    keys, width = g["window_kv"], int(g["window"])
    rows = torch.arange(len(keys)).unsqueeze(1) + torch.arange(1 - width, 1)
    return keys[rows.clamp_min(0)] * (rows >= 0).unsqueeze(-1), rows >= 0


def test_window_and_selected_entries_share_one_softmax_as_golden(golden):
    g = golden("ops/attention")
    keys, present = window_of(g)
    out = sparse_attention(EXACT, g["q"], keys, present, g["sink"])
    torch.testing.assert_close(out, g["out_window_only"], **NEAR)
    chosen = g["topk"].long()
    keys = torch.cat((keys, g["compressed_kv"][chosen.clamp_min(0)]), 1)
    present = torch.cat((present, chosen >= 0), 1)
    out = sparse_attention(EXACT, g["q"], keys, present, g["sink"])
    torch.testing.assert_close(out, g["out"], **NEAR)


def test_inverse_rotation_and_grouped_projection_match_golden(golden, model):
    g = golden("ops/attention")
    m = model("tiny-text", "exact")
    here = turn(frequencies(m.spec.rope, compressed=True), g["positions"], torch.float32)
    turned = here.unrotate(g["out"])
    torch.testing.assert_close(turned, g["out_inverse_rope"], **NEAR)
    weights = dataclasses.replace(m.weights.layers[0].attn, wo_a=g["wo_a"], wo_b=g["wo_b"])
    torch.testing.assert_close(project(weights, m.spec, m.numerics, turned), g["projected"], **NEAR)


def test_absent_keys_do_not_matter_whatever_they_hold(golden):
    g = golden("ops/attention")
    keys, present = window_of(g)
    out = sparse_attention(EXACT, g["q"], keys, present, g["sink"])
    junk = torch.where(present.unsqueeze(-1), keys, 1e9)
    assert torch.equal(sparse_attention(EXACT, g["q"], junk, present, g["sink"]), out)


def test_a_row_without_keys_gives_zeros():
    q, keys = torch.ones(32, 4, 64), torch.zeros(32, 16, 64)
    present = torch.zeros(32, 16, dtype=torch.bool)
    assert not sparse_attention(EXACT, q, keys, present, torch.zeros(4)).any()
