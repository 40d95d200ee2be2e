import pytest
import torch

from diptych.core.layout import Kind, Pool, Section, make_layout
from diptych.engine.arenas import Arenas

LAYOUT = make_layout(
    [
        Section(Pool.SLOT, 0, Kind.WINDOW, 5, 3),
        Section(Pool.BLOCK, 0, Kind.ENTRY, 4, 2),
        Section(Pool.BLOCK, 0, Kind.INDEX, 3, 2),
    ],
    grain=8,
    ring=3,
    numerics="none",
)


def test_views_and_bytes_of_a_page_are_the_same_memory() -> None:
    arenas = Arenas(LAYOUT, num_blocks=3, num_slots=2)
    arenas.section(0, Kind.INDEX)[2] = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)
    offset = LAYOUT.find(0, Kind.INDEX).offset
    assert bytes(arenas.block(2)[offset : offset + 6]) == bytes([1, 2, 3, 4, 5, 6])
    arenas.slot(1)[5:10] = b"abcde"
    assert bytes(arenas.section(0, Kind.WINDOW)[1, 1].tolist()) == b"abcde"


def test_pages_are_whole_zero_and_do_not_overlap() -> None:
    arenas = Arenas(LAYOUT, num_blocks=3, num_slots=2)
    assert [len(arenas.block(p)) for p in range(4)] == [LAYOUT.block_bytes] * 4
    arenas.block(1)[:] = b"\xff" * LAYOUT.block_bytes
    for page in (0, 2, 3):
        assert not any(arenas.block(page))
    assert not any(arenas.slot(1))


def test_a_page_that_does_not_exist_is_caught() -> None:
    with pytest.raises(AssertionError, match="page 4 of 4"):
        Arenas(LAYOUT, num_blocks=3, num_slots=2).block(4)


def test_a_layer_is_asked_for_the_sections_that_it_has() -> None:
    arenas = Arenas(LAYOUT, num_blocks=1, num_slots=1)
    found = arenas.sections(0, Kind.ENTRY, Kind.INDEX, Kind.INDEX_SCALE)
    assert [section.shape for section in found] == [(2, 2, 4), (2, 2, 3)]
