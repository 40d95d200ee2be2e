"""Configurations: the schedule that follows from one, and what is refused."""

import copy
import json
from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.model.spec import ModelSpec

TINY = Path(__file__).parents[2] / "golden" / "tiny-quant" / "config.json"

RELEASED = {  # what differs from the tiny configuration
    "vocab_size": 129280,
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
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
    "engram_vocab_size": 16000000,
    "engram_compressed_vocab_size": 99092,
    "dspark_target_layer_ids": [37, 38, 39],
}


@pytest.fixture
def raw():
    return json.loads(TINY.read_bytes())


def test_the_released_schedule_has_its_published_modes(raw):
    raw["text_config"] |= RELEASED
    spec = ModelSpec.parse(raw)
    by_layer = {
        i.index: (i.ratio, i.kv_source, i.index_source, i.candidate_source) for i in spec.layers
    }
    assert by_layer[0] == by_layer[1] == (0, None, None, None)
    assert by_layer[2] == by_layer[7] == (2, 2, 2, None)
    assert by_layer[8] == (2, 8, 8, None)
    assert by_layer[19] == (2, 14, 14, None)
    assert by_layer[20] == by_layer[23] == (1, 20, 20, None)
    assert by_layer[24] == (1, 20, 24, 20)
    assert by_layer[25] == (1, 20, 24, None)
    assert by_layer[39] == (1, 20, 36, None)
    assert [i.index for i in spec.layers if i.owns_cache] == [2, 8, 14, 20]
    assert [i.index for i in spec.layers if i.selects] == [2, 8, 14, 20, 24, 28, 32, 36]
    assert [i.index for i in spec.layers if i.engram is not None] == [1, 14]
    assert spec.decoder_start == 20
    assert spec.draft_tokens == 5


def test_sections_that_are_not_there_are_parts_the_model_does_not_have(raw):
    del raw["quantization_config"], raw["vision_config"]
    text = raw["text_config"]
    text |= {"engram_layer_ids": [], "engram_num_embeddings": [], "num_nextn_predict_layers": 0}
    text["compress_ratios"] = text["compress_ratios"][:8]
    spec = ModelSpec.parse(raw)
    assert not spec.quantised
    assert spec.vision is spec.engram is spec.dspark is None
    assert spec.draft_tokens == 0


BAD = [
    ("", "model_type", "deepseek_v4", "'deepseek_v41'"),
    ("", "bos_token_id", None, "a whole number"),
    ("", "text_config", [], "an object"),
    ("quantization_config", "weight_block_size", [128, 128], r"\[32, 32\]"),
    ("quantization_config", "expert_dtype", "fp8", "'fp4'"),
    ("quantization_config", "scale_fmt", "f32", "'ue8m0'"),
    ("text_config", "num_key_value_heads", 2, "1"),
    ("text_config", "num_attention_heads", 5, "a multiple of o_groups = 2"),
    ("text_config", "n_shared_experts", 2, "1"),
    ("text_config", "index_source_layer_ids", [2, 5, 6], "every KV source"),
    ("text_config", "kv_source_layer_ids", [0, 2, 3, 5], "ratio above 0"),
    ("text_config", "index_source_layer_ids", [1, 2, 3, 5, 6], "ratio above 0"),
    ("text_config", "kv_source_layer_ids", [3, 5], "a source of ratio 2 at or before layer 2"),
    ("text_config", "kv_source_layer_ids", [2, 3, 5, 6], "none behind 5, the first of ratio 1"),
    ("text_config", "kv_source_layer_ids", "2", "a list of whole numbers"),
    ("text_config", "candidate_source_layer_id", 6, "-1 or one of"),
    ("text_config", "candidate_topk_blocks", 2, "index_topk"),
    ("text_config", "engram_num_embeddings", [3144], "one row count for each"),
    ("text_config", "engram_layer_ids", [1, 5], "encoder layers"),
    ("text_config", "engram_layer_ids", [3, 1], "ascending"),
    ("text_config", "dspark_target_layer_ids", [4, 6, 7], "decoder layers"),
    ("text_config", "compress_ratios", [0, 0, 2, 2, 2, 1, 1, 1], r"8 \+ 3 entries"),
    ("text_config", "compress_ratios", [0, 0, 4, 4, 4, 1, 1, 1, 0, 0, 0], "each of 0, 1, 2"),
    ("text_config", "compress_ratios", [0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 1], "every draft layer"),
    ("text_config", "hidden_size", 100, "a multiple of 32"),
    ("text_config", "hidden_size", 96.0, "a whole number"),
    ("text_config", "hidden_size", True, "a whole number"),
    ("text_config", "hidden_size", 0, "at least 1"),
    ("text_config", "head_dim", 48, "a multiple of 32"),
    ("text_config", "index_head_dim", 16, "a multiple of 32"),
    ("text_config", "q_lora_rank", 48, "a multiple of 32"),
    ("text_config", "moe_intermediate_size", 40, "a multiple of 32"),
    ("text_config", "engram_head_dim", 16, "a multiple of 32"),
    ("text_config", "o_lora_rank", 24, "a multiple of 32"),
    ("text_config", "qk_rope_head_dim", 15, "a multiple of 2"),
    ("text_config", "qk_rope_head_dim", 64, "at most head_dim and index_head_dim"),
    ("text_config", "num_experts_per_tok", 9, "at most n_routed_experts"),
    ("text_config", "rms_norm_eps", "tiny", "a number above 0"),
    ("text_config", "use_fp4_sparse_kv", 1, "true or false"),
    ("text_config", "hc_shifted", False, "True"),
    ("text_config", "scoring_func", "sigmoid", "'sqrtsoftplus'"),
    ("text_config", "tie_word_embeddings", True, "False"),
    ("text_config", "rope_scaling", None, "an object"),
    ("text_config", "rope_scaling", {"rope_type": "linear"}, "'yarn'"),
    ("vision_config", "num_hidden_layers", None, "a whole number"),
]


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"), BAD, ids=[f"{b[1]}={b[2]}" for b in BAD]
)
def test_a_configuration_outside_the_family_is_refused_by_name(raw, section, key, value, expected):
    changed = copy.deepcopy(raw)
    (changed[section] if section else changed)[key] = value
    with pytest.raises(Misconfigured, match=expected) as refused:
        ModelSpec.parse(changed, "some/config.json")
    assert "some/config.json" in refused.value.message
    if not isinstance(value, dict):
        assert key in refused.value.message


def test_a_missing_or_damaged_file_is_refused_by_name(tmp_path):
    with pytest.raises(Misconfigured, match=r"config\.json: not a readable JSON file"):
        ModelSpec.load(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(Misconfigured, match=r"config\.json: not a readable JSON file"):
        ModelSpec.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(Misconfigured, match="expected an object"):
        ModelSpec.load(tmp_path)
