import pytest

from diptych.config import WorkerSettings
from diptych.core.errors import Misconfigured
from diptych.core.layout import Layout
from diptych.engine.arrangement import arrange
from diptych.engine.options import Options, Sizes
from diptych.model.numerics import NUMERICS
from diptych.model.spec import ModelSpec

from .conftest import TINY

SPEC = ModelSpec.load(TINY)


def layout_of(options: Options) -> Layout:
    return arrange(SPEC, NUMERICS[options.numerics], options.block_tokens)


def sizes(**choices: object) -> Sizes:
    options = Options(**choices)  # type: ignore[arg-type]
    options.check()
    return Sizes.of(options, SPEC, layout_of(options))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"numerics": "half"}, "--numerics is 'half'; expected one of exact, "),
        ({"replay": "on"}, "--replay is 'on'; expected one of off, mask, compact"),
        ({"block_tokens": 12}, "--block-tokens is 12; expected a multiple of 8"),
        ({"max_model_len": 5000}, "--max-model-len is 5000; expected 2 to 4096"),
        ({"max_model_len": 1}, "--max-model-len is 1; expected 2 to 4096"),
        ({"num_blocks": 31}, "--num-blocks is 31; expected at least 32"),
        ({"num_anchors": -1}, "--num-anchors is -1; expected at least 0"),
        ({"swap_bytes": -1}, "--swap-bytes is -1; expected at least 0"),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        ({"max_num_seqs": 600}, "--max-batch-tokens is 512; expected at least .* 600"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_work_is_refused_by_its_flag(
    choices: dict[str, object], message: str
) -> None:
    with pytest.raises(Misconfigured, match=message):
        sizes(**choices)


def test_default_pools_hold_the_longest_sequence_and_many_of_usual_length() -> None:
    usual = sizes()
    assert (usual.num_blocks, usual.num_slots, usual.num_anchors) == (64 * 8, 64, 128)
    assert sizes(max_num_seqs=2).num_blocks == 4096 // 128
    assert sizes(max_model_len=100, block_tokens=16).num_blocks == 64 * 7


def test_host_pages_hold_what_swap_bytes_allow_and_no_more_than_there_are_pages() -> None:
    layout = layout_of(Options())
    roomy = sizes(swap_bytes=2**40)
    assert (roomy.num_host_blocks, roomy.num_host_slots) == (roomy.num_blocks, roomy.num_slots)
    whole = roomy.num_blocks * layout.block_bytes + roomy.num_slots * layout.slot_bytes
    half = sizes(swap_bytes=whole // 2)
    assert (half.num_host_blocks, half.num_host_slots) == (64 * 4, 32)
    none = sizes(swap_bytes=0)
    assert (none.num_host_blocks, none.num_host_slots) == (0, 0)


def test_the_default_memory_suits_a_laptop() -> None:
    options = Options()
    budget = list(sizes().budget(layout_of(options)))
    assert [line.name for line in budget][:3] == ["blocks", "slots", "anchors"]
    assert sum(line.mib for line in budget) < 1024


def test_a_worker_without_flags_runs_the_default_options() -> None:
    assert Options.of(WorkerSettings(checkpoint=TINY)) == Options()
