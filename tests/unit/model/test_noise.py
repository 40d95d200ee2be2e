"""The noise checkpoint: whole, repeatable, loadable."""

import filecmp
import os

import pytest
import torch

from diptych.model import manifest, noise, weights
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return noise.write(tmp_path_factory.mktemp("noise") / "checkpoint")


def test_the_same_seed_writes_the_same_bytes(folder, tmp_path):
    again = noise.write(tmp_path / "again")
    names = sorted(os.listdir(folder))
    assert sorted(os.listdir(again)) == names
    assert filecmp.cmpfiles(folder, again, names, shallow=False) == (names, [], [])
    assert manifest.verify(again) == manifest.verify(folder)


def test_another_seed_draws_other_weights(folder):
    spec = ModelSpec.load(folder)
    first, second = noise.draw(spec, 0), noise.draw(spec, 1)
    assert first.keys() == second.keys()
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_it_is_in_the_released_format_and_computes(folder):
    spec = ModelSpec.load(folder)
    assert spec.quantised
    loaded = weights.load(folder, spec, NUMERICS["served"])
    assert loaded.head.std() == pytest.approx(2.5 * spec.hidden_size**-0.5, rel=0.05)
    assert loaded.norm.mean() == pytest.approx(1.0, abs=0.1)
    assert loaded.layers[0].attn.wo_b.std() == pytest.approx(0.3 / 8, rel=0.1)


def test_a_folder_that_is_there_is_kept_and_no_draft_is_left(folder):
    before = (folder / "config.json").stat().st_mtime_ns
    assert noise.write(folder, seed=5) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before
    assert os.listdir(folder.parent) == [folder.name]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OSError, match="taken"):
        noise.write(tmp_path / "taken")
    assert os.listdir(tmp_path) == ["taken"]
