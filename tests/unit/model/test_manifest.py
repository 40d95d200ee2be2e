"""Weights are what their manifest says, and their values name them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.engine.build import build_parts
from diptych.model import manifest, noise

QUANTISED = Path(__file__).parents[2] / "golden" / "tiny-quant"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(QUANTISED, tmp_path / "copy"))


def flip(file: Path, at: int = -100) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def refused(folder: Path, match: str) -> None:
    with pytest.raises(Misconfigured, match=match):
        manifest.verify(folder)


def test_the_digest_names_the_bytes_and_not_the_place(folder: Path) -> None:
    assert len(manifest.verify(folder)) == 16
    assert manifest.verify(folder) == manifest.verify(QUANTISED)


@pytest.mark.parametrize("name", [SHARD, "config.json"])
def test_one_flipped_bit_is_another_digest(folder: Path, name: str) -> None:
    flip(folder / name)
    assert manifest.verify(folder) != manifest.verify(QUANTISED)


def test_the_digest_is_the_same_with_a_manifest_and_without(folder: Path) -> None:
    before = manifest.verify(folder)
    manifest.write_sums(folder)
    assert manifest.verify(folder) == before


def test_f26_altered_weights_are_refused_before_anything_is_served(tmp_path: Path) -> None:
    folder = noise.write(tmp_path / "checkpoint")
    flip(folder / SHARD)
    with pytest.raises(
        Misconfigured, match=rf"{SHARD}: altered or damaged: its SHA-256 is [0-9a-f]"
    ):
        build_parts(folder, model_name="m")


def test_f26_weights_of_equal_shapes_share_no_block(tmp_path: Path) -> None:
    one, other = (noise.write(tmp_path / str(seed), seed) for seed in (0, 1))
    namespaces = {build_parts(folder, model_name="m").namespace for folder in (one, other)}
    assert len(namespaces) == 2


def test_the_manifest_is_that_of_sha256sum(folder: Path) -> None:
    manifest.write_sums(folder)
    names = sorted(p.name for p in folder.iterdir() if p.suffix in manifest.SUMMED)
    said = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, text=True)
    assert (folder / manifest.SUMS_FILE).read_text() == said.stdout


def test_a_manifest_that_leaves_a_shard_out_is_refused(folder: Path) -> None:
    manifest.write_sums(folder)
    sums = folder / manifest.SUMS_FILE
    sums.write_text("".join(x for x in sums.read_text().splitlines(True) if SHARD not in x))
    refused(folder, f"{SHARD}: SHA256SUMS does not name it")


def test_a_file_that_is_promised_and_missing_is_named(folder: Path) -> None:
    manifest.write_sums(folder)
    with (folder / manifest.SUMS_FILE).open("a") as sums:
        sums.write(f"{'0' * 64}  extra.json\n")
    refused(folder, r"extra\.json: No such file or directory, although SHA256SUMS names it")


@pytest.mark.parametrize("line", ["abc  config.json", "0" * 64, f"{'0' * 64}  ../config.json"])
def test_a_manifest_that_is_none_is_refused_by_line(folder: Path, line: str) -> None:
    (folder / manifest.SUMS_FILE).write_text(f"{'0' * 64}  config.json\n{line}\n")
    refused(folder, "SHA256SUMS: line 2: expected 64 hex digits")


def test_an_empty_manifest_is_refused(folder: Path) -> None:
    (folder / manifest.SUMS_FILE).write_text("")
    refused(folder, "it names no file")


def test_large_checkpoints_say_how_far_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manifest, "SLOW_S", 0.0)
    with caplog.at_level("INFO"):
        manifest.verify(folder)
    assert re.search(r"verifying weights read_gb=0\.\d of_gb=0\.\d", caplog.text)


def test_the_bundled_model_is_as_it_was_made() -> None:
    tiny = Path(manifest.__file__).parents[1] / "assets" / "tiny"
    assert set(manifest.read_sums(tiny)) > {"model.safetensors", "config.json", "tokenizer.json"}
    manifest.verify(tiny)
