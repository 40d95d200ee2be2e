from dataclasses import replace

import pytest

from diptych.core.errors import Misconfigured
from diptych.core.layout import Kind, Layout, Pool
from diptych.engine.arrangement import arrange
from diptych.model.numerics import NUMERICS
from diptych.model.spec import DsparkSpec, LayerSpec, ModelSpec

from .conftest import TINY

SPEC = ModelSpec.load(TINY)


def released() -> ModelSpec:
    """The sizes of the release that a layout depends on."""
    ratios = [0] * 2 + [2] * 18 + [1] * 20
    sources = {2, 8, 14, 20}

    def layer(index: int) -> LayerSpec:
        source = max((s for s in sources if s <= index), default=None)
        return LayerSpec(index, ratios[index], source, source, None, None)

    return replace(
        SPEC,
        head_dim=512,
        index_head_dim=128,
        window=128,
        fp4_entries=True,
        candidate_block_size=8,
        layers=tuple(layer(i) for i in range(40)),
        dspark=DsparkSpec(3, 5, 0, (), 0, 0, 0),
    )


def sizes(layout: Layout, pool: Pool) -> dict[Kind, int]:
    total: dict[Kind, int] = {}
    for entry in layout.entries:
        if entry.pool is pool:
            total[entry.kind] = total.get(entry.kind, 0) + entry.size_bytes
    return total


def test_the_release_keeps_890_bytes_a_token() -> None:
    layout = arrange(released(), NUMERICS["served"], 128)
    assert layout.block_bytes == 113_920 == 890 * 128
    assert sizes(layout, Pool.BLOCK) == {
        Kind.ENTRY: 288 * 320,
        Kind.INDEX: 64 * 320,
        Kind.INDEX_SCALE: 4 * 320,
    }


def test_a_slot_of_the_release_holds_43_windows_and_the_carry_of_three_compressors() -> None:
    layout = arrange(released(), NUMERICS["served"], 128)
    assert layout.ring == 136
    assert sizes(layout, Pool.SLOT) == {Kind.WINDOW: 43 * 136 * 528, Kind.CARRY: 3 * 7 * 4096}
    assert layout.slot_bytes == 43 * 136 * 528 + 3 * 7 * 4096


def test_an_anchor_of_the_release_is_the_windows_of_its_encoder() -> None:
    layout = arrange(released(), NUMERICS["served"], 128)
    assert layout.anchor_bytes == 20 * 128 * 528 == 1_351_680
    assert sizes(layout, Pool.ANCHOR) == {Kind.ANCHOR: 1_351_680}


def test_only_encoder_windows_are_kept_by_the_tier_and_they_come_first() -> None:
    layout = arrange(SPEC, NUMERICS["served"], 16)
    kept = [e for e in layout.entries if e.pool is Pool.SLOT and not e.dropped]
    assert [e.layer for e in kept] == list(range(SPEC.decoder_start))
    dropped = [e for e in layout.entries if e.pool is Pool.SLOT and e.dropped]
    assert max(e.offset for e in kept) < min(e.offset for e in dropped)


def test_unrounded_records_have_no_scales() -> None:
    layout = arrange(SPEC, NUMERICS["exact"], 16)
    assert Kind.INDEX_SCALE not in sizes(layout, Pool.BLOCK)
    assert layout.find(5, Kind.ENTRY).bytes_per_entry == 4 * SPEC.head_dim
    wide = arrange(SPEC, NUMERICS["exact64"], 16)
    assert wide.find(3, Kind.CARRY).bytes_per_entry == 2 * 8 * SPEC.head_dim


def test_a_block_holds_its_tokens_over_the_ratio() -> None:
    layout = arrange(SPEC, NUMERICS["served"], 16)
    assert layout.find(3, Kind.ENTRY).entries == 8
    assert layout.find(5, Kind.ENTRY).entries == 16


def test_each_numerics_and_grain_has_a_digest_of_its_own() -> None:
    digests = {arrange(SPEC, n, g).digest for n in NUMERICS.values() for g in (8, 16)}
    assert len(digests) == 2 * len(NUMERICS)


@pytest.mark.parametrize("grain", [0, -8, 12, 7])
def test_a_grain_that_would_split_a_group_is_refused(grain: int) -> None:
    with pytest.raises(Misconfigured, match=f"--block-tokens is {grain}; expected a multiple of 8"):
        arrange(SPEC, NUMERICS["served"], grain)
