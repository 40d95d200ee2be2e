"""Loading a checkpoint: exact values, and the refusal of everything that does not belong."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from diptych.core.errors import Misconfigured
from diptych.model import weights
from diptych.model.checkpoint import Checkpoint
from diptych.model.inventory import Storage, inventory
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def stored():
    """All tensors of the quantised golden checkpoint."""
    shards = sorted((GOLDEN / "tiny-quant").glob("*.safetensors"))
    tensors = {}
    for shard in shards:
        if shard.name.startswith("model-"):
            tensors |= load_file(shard)
    return tensors


def write(folder, tensors, source="tiny-quant"):
    """A single-file checkpoint of these tensors."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(GOLDEN / source / name, folder / name)
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "model.safetensors")
    return folder


def load(folder, mode="exact"):
    return weights.load(folder, ModelSpec.load(folder), NUMERICS[mode])


def test_quantised_tensors_have_exactly_the_golden_values(golden):
    folder = GOLDEN / "tiny-quant"
    checkpoint, entries = Checkpoint.open(folder), inventory(ModelSpec.load(folder))
    names = [n.removeprefix("deq.") for n in golden("tiny-quant/golden") if n.startswith("deq.")]
    assert len(names) == 11
    for name in names:
        got = weights.dequantise(checkpoint, name, entries[name], quantised=True)
        want = golden("tiny-quant/golden")[f"deq.{name}"]
        assert torch.equal(got[: len(want)], want), name


def test_loaded_weights_are_the_golden_values_in_their_places(golden, model):
    g = golden("tiny-quant/golden")
    layers = model("tiny-quant", "exact").weights.layers
    got = {
        "layers.0.attn.wq_a.weight": layers[0].attn.wq_a,
        "layers.0.ffn.experts.0.w1.weight": layers[0].moe.w1[0],
        "layers.2.attn.compressor.wgate.weight": layers[2].attn.compressor.wgate,
        "layers.2.attn.indexer.wq_b.weight": layers[2].attn.indexer.wq_b,
        "layers.2.attn.wo_a.weight": layers[2].attn.wo_a,
        "layers.3.engram.wkv.weight": layers[3].engram.wkv,
        "layers.3.ffn.shared_experts.w2.weight": layers[3].moe.shared_w2,
        "layers.7.ffn.experts.7.w2.weight": layers[7].moe.w2[7],
    }
    for name, tensor in got.items():
        assert torch.equal(tensor[:64], g[f"deq.{name}"]), name
    ids = torch.arange(64).unsqueeze(1)
    rows = layers[1].engram.table.gather(ids)
    assert torch.equal(rows, g["deq.layers.1.engram.embed.weight"])


def test_weights_are_aligned_and_contiguous(model):
    layer = model("tiny-quant", "exact").weights.layers[2]
    for tensor in (layer.attn.wq_a, layer.attn.wo_a, layer.moe.w1, layer.hc_attn.fn):
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0


def test_engram_tables_stay_as_they_are_stored(model):
    quantised = model("tiny-quant", "exact").weights.layers[1].engram.table
    assert quantised.rows.dtype == torch.uint8
    assert quantised.scales is not None
    plain = model("tiny-text", "exact64").weights.layers[1].engram.table
    assert plain.rows.dtype == torch.float32
    assert plain.gather(torch.zeros(1, 1, dtype=torch.int64)).dtype == torch.float64


def test_served_weights_of_a_wide_checkpoint_are_bf16_but_for_what_the_release_keeps_wide(model):
    layer = model("tiny-text", "served").weights.layers[0]
    assert torch.equal(layer.attn.wq_a, layer.attn.wq_a.to(torch.bfloat16).float())
    assert not torch.equal(layer.hc_attn.fn, layer.hc_attn.fn.to(torch.bfloat16).float())


def test_a_folder_with_one_file_and_no_index_loads_alike(stored, tmp_path, model):
    loaded = load(write(tmp_path, stored))
    assert torch.equal(loaded.head, model("tiny-quant", "exact").weights.head)


def test_plain_checkpoints_may_be_bf16(tmp_path, model):
    tensors = load_file(GOLDEN / "tiny-text" / "model.safetensors")
    narrow = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    loaded = load(write(tmp_path, narrow, "tiny-text"))
    assert torch.equal(loaded.embed, narrow["embed.weight"].float())


@pytest.mark.parametrize(
    "name",
    [
        "head.weight",
        "layers.2.attn.wq_b.scale",
        "layers.5.ffn.experts.7.w2.weight",
        "mtp.2.markov_head.head.weight",
        "vision.blocks.1.mlp.w2.weight",
        "aligner.w2.bias",
        "image_newline",
    ],
)
def test_a_missing_tensor_is_refused_by_name(stored, tmp_path, name):
    rest = {k: t for k, t in stored.items() if k != name}
    with pytest.raises(Misconfigured, match=f"tensor {name}: missing"):
        load(write(tmp_path, rest))


@pytest.mark.parametrize("name", ["layers.0.attn.compressor.wkv.weight", "model.head.weight"])
def test_an_extra_tensor_is_refused_by_name(stored, tmp_path, name):
    with pytest.raises(Misconfigured, match=f"tensor {name}: not part of this model"):
        load(write(tmp_path, {**stored, name: torch.zeros(2)}))


def test_spare_draft_embeddings_are_ignored(stored, tmp_path):
    load(write(tmp_path, {**stored, "mtp.1.embed.weight": torch.zeros(2)}))


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [
        ("norm.weight", torch.zeros(95, dtype=torch.bfloat16), r"shape \(96,\), found \(95,\)"),
        ("norm.weight", torch.zeros(96), "expected BF16, found F32"),
        ("layers.0.hc_ffn_base", torch.zeros(24, dtype=torch.bfloat16), "expected F32, found BF16"),
        (
            "layers.0.ffn.experts.1.w1.weight",
            torch.zeros(32, 48, dtype=torch.uint8),
            "expected I8, found U8",
        ),
        (
            "layers.0.attn.wkv.scale",
            torch.zeros(2, 3, dtype=torch.uint8),
            "expected F8_E8M0, found U8",
        ),
        (
            "mtp.0.main_proj.weight",
            torch.zeros(96, 96).to(torch.float8_e4m3fn),
            r"shape \(96, 288\), found \(96, 96\)",
        ),
    ],
)
def test_a_wrong_shape_or_type_is_refused_by_name(stored, tmp_path, name, tensor, expected):
    with pytest.raises(Misconfigured, match=f"tensor {name}: expected.*") as refused:
        load(write(tmp_path, {**stored, name: tensor}))
    refused.match(expected)


def test_an_unquantised_checkpoint_under_a_quantised_configuration_is_refused(tmp_path):
    tensors = load_file(GOLDEN / "tiny-text" / "model.safetensors")
    with pytest.raises(Misconfigured, match="expected BF16, found F32"):
        load(write(tmp_path, tensors, "tiny-quant"))


def test_the_inventory_of_the_release_adds_up(model):
    """96,085 tensors and 510,286,023,000 bytes are the published totals."""
    raw = json.loads((GOLDEN / "tiny-quant" / "config.json").read_bytes())
    raw["text_config"] |= {
        "vocab_size": 129280,
        "hidden_size": 5120,
        "moe_intermediate_size": 2304,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "n_routed_experts": 384,
        "num_experts_per_tok": 6,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 0],
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048,
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": [384006168, 384016682],
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "dspark_target_layer_ids": [37, 38, 39],
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128,
    }
    raw["vision_config"] |= {"num_hidden_layers": 32, "hidden_size": 1024}
    raw["vision_config"] |= {"num_attention_heads": 16, "intermediate_size": 2816}
    sizes = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}
    count = total = 0
    for name, entry in inventory(ModelSpec.parse(raw)).items():
        for shape, dtypes in weights.stored_as(name, entry, quantised=True).values():
            count += 1
            total += torch.Size(shape).numel() * sizes[dtypes[0]]
    assert count == 96085
    assert total == 510_286_023_000


def test_every_storage_class_is_used(model):
    spec = model("tiny-quant", "exact").spec
    assert {entry.storage for entry in inventory(spec).values()} == set(Storage)
    assert dataclasses.replace(spec, quantised=False).vocab_size == spec.vocab_size
