"""Folders on disk: indexes, headers."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from diptych.core.errors import Misconfigured
from diptych.model.checkpoint import INDEX_FILE, Checkpoint

QUANTISED = Path(__file__).parents[2] / "golden" / "tiny-quant"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(QUANTISED, tmp_path / "copy"))


def test_a_tensor_is_read_from_the_shard_that_holds_it():
    checkpoint = Checkpoint.open(QUANTISED)
    assert checkpoint.tensors["norm.weight"].file.name == "model-00002-of-00002.safetensors"
    assert checkpoint.read("norm.weight").dtype == torch.bfloat16
    assert checkpoint.read("layers.0.attn.wkv.weight").dtype == torch.uint8
    assert checkpoint.read("layers.0.attn.wkv.scale").dtype == torch.uint8


def test_reading_maps_the_file_and_copies_nothing():
    first, second = (Checkpoint.open(QUANTISED).read("head.weight") for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "tiny-quant/model-00001-of-00002.safetensors" in maps.read_text()


def test_a_missing_shard_is_refused_by_name(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(Misconfigured, match=r"model-00002-of-00002\.safetensors: no such file"):
        Checkpoint.open(folder)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(Misconfigured, match=r"model\.safetensors: no such file"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x10" + b"\0" * 7 + b"{}", b"\2" + b"\0" * 7 + b"[]"]
)
def test_a_damaged_shard_is_refused_by_name(folder, content):
    (folder / "model-00001-of-00002.safetensors").write_bytes(content)
    with pytest.raises(
        Misconfigured, match=r"model-00001-of-00002\.safetensors: (not a whole|damaged)"
    ):
        Checkpoint.open(folder)


def test_a_truncated_shard_is_refused_when_it_is_read(folder):
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(Misconfigured, match=r"model-00001-of-00002\.safetensors"):
        Checkpoint.open(folder).read("layers.0.attn.wkv.weight")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m.update({"nothing.weight": "model-00001-of-00002.safetensors"}), "promises it"),
        (lambda m: m.pop("norm.weight"), "norm.weight: expected model-00002"),
        (lambda m: m.update({"norm.weight": "model-00001-of-00002.safetensors"}), "norm.weight"),
        (lambda m: m.update({"norm.weight": "../secret.safetensors"}), "a file of this folder"),
    ],
)
def test_an_index_that_disagrees_with_its_shards_is_refused(folder, change, expected):
    index = json.loads((folder / INDEX_FILE).read_bytes())
    change(index["weight_map"])
    (folder / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(Misconfigured, match=expected):
        Checkpoint.open(folder)


def test_a_damaged_index_is_refused_by_name(folder):
    (folder / INDEX_FILE).write_text('{"weight_map": 3}')
    with pytest.raises(Misconfigured, match=r"index\.json: expected an object `weight_map`"):
        Checkpoint.open(folder)
