"""The layout table: places do not overlap, and its hash notices every change."""

import itertools
from dataclasses import replace

import pytest

from diptych.core.layout import Kind, Layout, Pool, Section, make_layout, ring_size

SECTIONS = (
    Section(Pool.SLOT, 0, Kind.WINDOW, 528, 136),
    Section(Pool.SLOT, 1, Kind.WINDOW, 528, 136, dropped=True),
    Section(Pool.BLOCK, 2, Kind.ENTRY, 288, 64, ratio=2),
    Section(Pool.BLOCK, 2, Kind.INDEX, 64, 64, ratio=2),
    Section(Pool.BLOCK, 2, Kind.INDEX_SCALE, 4, 64, ratio=2),
    Section(Pool.SLOT, 2, Kind.CARRY, 4096, 7, ratio=2),
)


def make(sections: tuple[Section, ...] = SECTIONS) -> Layout:
    return make_layout(sections, grain=128, ring=136, numerics="served", window=128)


@pytest.mark.parametrize("pool", list(Pool))
def test_sections_of_a_pool_follow_each_other_without_overlap(pool: Pool) -> None:
    layout = make()
    entries = [e for e in layout.entries if e.pool is pool]
    for before, after in itertools.pairwise(entries):
        assert before.offset + before.size_bytes <= after.offset
        assert after.offset % 32 == 0
    end = entries[-1].offset + entries[-1].size_bytes
    total = {
        Pool.BLOCK: layout.block_bytes,
        Pool.SLOT: layout.slot_bytes,
        Pool.ANCHOR: layout.anchor_bytes,
    }[pool]
    assert end <= total < end + 128


def test_released_block_is_as_large_as_published() -> None:
    sections = []
    for layer, ratio in ((2, 2), (8, 2), (14, 2), (20, 1)):
        for kind, size in ((Kind.ENTRY, 288), (Kind.INDEX, 64), (Kind.INDEX_SCALE, 4)):
            sections.append(Section(Pool.BLOCK, layer, kind, size, 128 // ratio, ratio=ratio))
    assert make(tuple(sections)).block_bytes == 113_920  # 890 B a token


def test_a_section_is_found_by_layer_and_kind() -> None:
    assert make().find(2, Kind.INDEX_SCALE).bytes_per_entry == 4
    with pytest.raises(KeyError, match="layer 9"):
        make().find(9, Kind.WINDOW)


@pytest.mark.parametrize("index", range(len(SECTIONS)))
def test_the_digest_notices_a_change_of_any_section(index: int) -> None:
    changed = list(SECTIONS)
    changed[index] = replace(SECTIONS[index], bytes_per_entry=SECTIONS[index].bytes_per_entry + 4)
    assert make(tuple(changed)).digest != make().digest
    flipped = list(SECTIONS)
    flipped[index] = replace(SECTIONS[index], dropped=not SECTIONS[index].dropped)
    assert make(tuple(flipped)).digest != make().digest


def test_the_digest_notices_grain_ring_numerics_and_window() -> None:
    digests = {
        make_layout(SECTIONS, grain=g, ring=r, numerics=n, window=w).digest
        for g, r, n, w in (
            (128, 136, "served", 128),
            (64, 136, "served", 128),
            (128, 144, "served", 128),
            (128, 136, "cache", 128),
            (128, 136, "served", 127),
        )
    }
    assert len(digests) == 5


def test_an_anchor_has_the_window_of_each_layer_that_the_tier_keeps() -> None:
    anchors = [e for e in make().entries if e.pool is Pool.ANCHOR]
    assert [(e.layer, e.kind, e.entries, e.bytes_per_entry) for e in anchors] == [
        (0, Kind.ANCHOR, 128, 528)
    ]
    assert make().anchor_bytes == 128 * 528
    assert make_layout(SECTIONS, grain=128, ring=136, numerics="served").anchor_bytes == 0


def test_a_ring_holds_window_and_drafts_rounded_up_to_eight() -> None:
    assert ring_size(128, 5) == 136
    assert ring_size(16, 5) == 24
