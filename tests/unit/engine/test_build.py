import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from diptych.core.errors import Misconfigured
from diptych.engine.build import Parts, build_parts
from diptych.engine.options import Options

from .conftest import TINY, tiny_engine


def parts(folder: Path = TINY, model_name: str = "tiny", **choices: Any) -> Parts:
    return build_parts(folder, model_name=model_name, options=Options(**choices))


def test_a_folder_without_a_configuration_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"config\.json"):
        parts(tmp_path)


def test_the_namespace_tells_apart_what_must_not_share_bytes(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    spaces = [
        parts().namespace,
        parts(model_name="other").namespace,
        parts(numerics="cache").namespace,
        parts(block_tokens=16).namespace,
        parts(other).namespace,
    ]
    assert len(set(spaces)) == len(spaces)
    assert parts(num_blocks=40, replay="mask", async_stepping=True).namespace == spaces[0]


def test_the_memory_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "diptych.engine.build"):
        layout = parts(max_num_seqs=4, num_anchors=9).layout
    told = [record.getMessage() for record in caplog.records]
    assert "replay=compact deterministic=True async_stepping=" in told[0]
    assert len(told) == 6
    assert re.search(f"anchors +pages=9 +page_bytes={layout.anchor_bytes} ", told[3])


async def test_an_engine_says_what_it_is() -> None:
    async with tiny_engine(max_model_len=200, max_num_seqs=3) as it:
        engine = it.engine
        assert engine.max_model_len == 200 and engine.layout.grain == 8
        assert len(engine.namespace) == 16
        assert engine.counts().num_slots == 3 and engine.counts().num_blocks == 75
        assert len(engine.block(75)) == engine.layout.block_bytes
        assert len(engine.slot(3)) == engine.layout.slot_bytes


def test_the_choices_reach_the_ledger_and_the_device() -> None:
    off, mask = parts(replay="off", deterministic=False), parts(replay="mask", num_anchors=3)
    assert off.ledger.limits.floor(100) == 0 and not off.ledger.limits.deterministic
    assert mask.ledger.limits.floor(100) == 100 - 16 - 12 and mask.ledger.limits.deterministic
    assert mask.ledger.counts().num_anchors == 3
