import random
from collections.abc import Sequence

import pytest
import torch

from diptych.core.layout import Kind, Pool, Section, make_layout
from diptych.engine.anchors import AnchorCopy
from diptych.engine.arenas import Arenas
from diptych.engine.swap import SwapCopy

WINDOW, RING = 4, 8
LAYOUT = make_layout(
    [
        Section(Pool.SLOT, 0, Kind.WINDOW, 5, RING),
        Section(Pool.SLOT, 1, Kind.WINDOW, 5, RING),
        Section(Pool.SLOT, 2, Kind.WINDOW, 5, RING, dropped=True),
        Section(Pool.BLOCK, 0, Kind.ENTRY, 4, 2),
        Section(Pool.BLOCK, 0, Kind.INDEX, 3, 2),
    ],
    grain=8,
    ring=RING,
    numerics="none",
    window=WINDOW,
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


def written(arenas: Arenas, slot: int, end: int) -> None:
    """Let the newest records of a slot say which layer and position they are of."""
    arenas.slot(slot)[:] = b"\xff" * LAYOUT.slot_bytes
    for layer in range(3):
        for position in range(max(end - RING, 0), end):
            record = torch.tensor([layer, position, 7, 7, 7], dtype=torch.uint8)
            arenas.section(layer, Kind.WINDOW)[slot, position % RING] = record


@pytest.mark.parametrize("position", [1, 3, 4, 5, 8, 9, 30])
def test_an_anchor_has_the_kept_windows_in_order_of_position(position: int) -> None:
    arenas = Arenas(LAYOUT, num_blocks=1, num_slots=2, num_anchors=2)
    written(arenas, 2, position)
    arenas.anchor(1)[:] = b"\xff" * LAYOUT.anchor_bytes
    arenas.save_anchor(AnchorCopy(slot=2, page=1, position=position))
    for layer in (0, 1):
        for place, at in enumerate(range(position - WINDOW, position)):
            record = arenas.section(layer, Kind.ANCHOR)[1, place].tolist()
            assert record == ([layer, at, 7, 7, 7] if at >= 0 else [0] * 5)
    assert not any(arenas.anchor(0))


@pytest.mark.parametrize("position", [1, 3, 4, 5, 8, 9, 30])
def test_a_loaded_anchor_fills_the_window_and_nothing_else(position: int) -> None:
    arenas = Arenas(LAYOUT, num_blocks=1, num_slots=2, num_anchors=1)
    written(arenas, 1, position)
    arenas.save_anchor(AnchorCopy(slot=1, page=0, position=position))
    arenas.slot(2)[:] = b"\xee" * LAYOUT.slot_bytes
    arenas.load_anchor(AnchorCopy(slot=2, page=0, position=position))
    loaded = {at % RING: at for at in range(max(position - WINDOW, 0), position)}
    for layer in range(3):
        for place, record in enumerate(arenas.section(layer, Kind.WINDOW)[2].tolist()):
            known = layer < 2 and place in loaded
            assert record == ([layer, loaded[place], 7, 7, 7] if known else [0xEE] * 5)


def test_swapped_pages_come_back_byte_for_byte_into_other_pages() -> None:
    arenas = Arenas(LAYOUT, 6, 3, num_host_blocks=4, num_host_slots=2)

    def contents(blocks: Sequence[int], slot: int) -> list[bytes]:
        return [*(bytes(arenas.block(page)) for page in blocks), bytes(arenas.slot(slot))]

    rng = random.Random(5)
    for page in (5, 2, 3):
        arenas.block(page)[:] = rng.randbytes(LAYOUT.block_bytes)
    arenas.slot(3)[:] = rng.randbytes(LAYOUT.slot_bytes)
    before = contents((5, 2, 3), 3)
    arenas.swap_out(SwapCopy((5, 2, 3), 3, host_blocks=(3, 0, 1), host_slot=1))
    for page in (5, 2, 3):
        arenas.block(page)[:] = b"\xff" * LAYOUT.block_bytes
    untouched = contents((4,), 2)
    arenas.swap_in(SwapCopy((1, 3, 6), 1, host_blocks=(3, 0, 1), host_slot=1))
    assert contents((1, 3, 6), 1) == before
    assert contents((4,), 2) == untouched and not any(arenas.block(0))
