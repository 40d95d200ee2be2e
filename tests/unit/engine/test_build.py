import shutil
from pathlib import Path

import pytest

from diptych.core.errors import Misconfigured
from diptych.engine.build import build_parts

from .conftest import TINY, tiny_engine


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"numerics": "half"}, "--numerics is 'half'; expected one of exact, "),
        ({"block_tokens": 12}, "--block-tokens is 12; expected a multiple of 8"),
        ({"max_model_len": 5000}, "--max-model-len is 5000; expected 2 to 4096"),
        ({"max_model_len": 1}, "--max-model-len is 1; expected 2 to 4096"),
        ({"num_blocks": 31}, "--num-blocks is 31; expected at least 32"),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        ({"max_num_seqs": 600}, "--max-batch-tokens is 512; expected at least .* 600"),
    ],
    ids=str,
)
def test_a_size_that_cannot_work_is_refused_by_its_flag(
    sizes: dict[str, object], message: str
) -> None:
    with pytest.raises(Misconfigured, match=message):
        build_parts(TINY, model_name="tiny", **sizes)  # type: ignore[arg-type]


def test_a_folder_without_a_configuration_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"config\.json"):
        build_parts(tmp_path, model_name="tiny")


def test_default_pools_hold_the_longest_sequence_and_many_of_usual_length() -> None:
    counts = build_parts(TINY, model_name="tiny").ledger.counts()
    assert (counts.num_blocks, counts.num_slots) == (64 * 8, 64)
    few = build_parts(TINY, model_name="tiny", max_num_seqs=2).ledger.counts()
    assert few.num_blocks == 4096 // 128
    short = build_parts(TINY, model_name="tiny", max_model_len=100, block_tokens=16).ledger
    assert short.counts().num_blocks == 64 * 7


def test_the_namespace_tells_apart_what_must_not_share_bytes(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    spaces = [
        build_parts(TINY, model_name="tiny").namespace,
        build_parts(TINY, model_name="other").namespace,
        build_parts(TINY, model_name="tiny", numerics="cache").namespace,
        build_parts(TINY, model_name="tiny", block_tokens=16).namespace,
        build_parts(other, model_name="tiny").namespace,
    ]
    assert len(set(spaces)) == len(spaces)
    assert build_parts(TINY, model_name="tiny", num_blocks=40).namespace == spaces[0]


async def test_an_engine_says_what_it_is() -> None:
    async with tiny_engine(max_model_len=200, max_num_seqs=3) as it:
        engine = it.engine
        assert engine.max_model_len == 200 and engine.layout.grain == 8
        assert len(engine.namespace) == 16
        assert engine.counts().num_slots == 3 and engine.counts().num_blocks == 75
        assert len(engine.block(75)) == engine.layout.block_bytes
        assert len(engine.slot(3)) == engine.layout.slot_bytes
