"""The bytes of a segment: what is written is read, what was altered is not."""

import random

import pytest

from diptych.core.ids import BlockHash
from diptych.kvcache_store import format as f
from diptych.kvcache_store.retention import Kept, Retention
from diptych.transport.frames import PartKind

SEGMENT = f.SegmentHead(
    segment_id=0x0123456789ABCDEF,
    kept=Kept(Retention.CHAT, 20_000),
    created_s=1_728_000_000,
    group=b"g" * 16,
    namespace=b"n" * 16,
    layout_hash=b"l" * 16,
    is_encrypted=True,
)
EXTENT = f.ExtentHead(
    kind=PartKind.BLOCK,
    segment_id=SEGMENT.segment_id,
    scope=b"s" * 16,
    parent=b"p" * 16,
    first_index=48,
    parts=(
        f.PartEntry(BlockHash(b"a" * 16), 0xDEADBEEF, 113_920, True),
        f.PartEntry(BlockHash(b"b" * 16), 7, 1, False),
    ),
)


def test_heads_come_back_as_they_were() -> None:
    assert f.decode_segment_head(f.encode_segment_head(SEGMENT)) == SEGMENT
    data = f.encode_extent_head(EXTENT)
    assert len(data) == f.extent_head_bytes(2)
    assert f.decode_extent_head(data + b"payload", SEGMENT.segment_id) == EXTENT


def test_the_format_is_the_documented_one() -> None:
    assert f.encode_segment_head(SEGMENT).hex() == (
        "44505453 0100 0100 efcdab8967452301 02 204e0000 0030ff6600000000".replace(" ", "")
        + "67" * 16
        + "6e" * 16
        + "6c" * 16
        + f.encode_segment_head(SEGMENT)[-4:].hex()
    )
    head = f.encode_extent_head(EXTENT)
    assert head[:14] == b"DPTX\x01\x02" + SEGMENT.segment_id.to_bytes(8, "little")
    assert head[14:46] == b"s" * 16 + b"p" * 16
    assert head[46:75] == (
        (48).to_bytes(4, "little")
        + b"a" * 16
        + 0xDEADBEEF.to_bytes(4, "little")
        + (113_920).to_bytes(4, "little")
        + b"\x01"
    )


def test_no_flipped_bit_of_a_head_is_accepted() -> None:
    segment, extent = f.encode_segment_head(SEGMENT), f.encode_extent_head(EXTENT)
    for at in range(8 * len(segment)):
        assert f.decode_segment_head(_flipped(segment, at)) is None
    for at in range(8 * len(extent)):
        assert f.decode_extent_head(_flipped(extent, at), SEGMENT.segment_id) is None


def test_no_cut_head_is_accepted() -> None:
    segment, extent = f.encode_segment_head(SEGMENT), f.encode_extent_head(EXTENT)
    assert not any(f.decode_segment_head(segment[:n]) for n in range(len(segment)))
    assert not any(f.decode_extent_head(extent[:n], SEGMENT.segment_id) for n in range(len(extent)))


def test_k15_an_extent_of_another_segment_is_not_accepted() -> None:
    assert f.decode_extent_head(f.encode_extent_head(EXTENT), SEGMENT.segment_id + 1) is None


def test_a_footer_comes_back_or_not_at_all(rng: random.Random) -> None:
    extents = [(512, EXTENT), (120_320, EXTENT)]
    data = f.encode_footer(extents, 130_000)
    assert f.footer_offset(data[-f.TRAILER_BYTES :]) == 130_000
    assert f.decode_footer(data, SEGMENT.segment_id) == extents
    for at in rng.sample(range(8 * len(data)), 400):
        assert f.decode_footer(_flipped(data, at), SEGMENT.segment_id) is None
    assert f.decode_footer(data[:-1], SEGMENT.segment_id) is None
    assert f.decode_footer(data, 1) is None


@pytest.mark.parametrize(("size", "aligned"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_extents_begin_at_multiples_of_512(size: int, aligned: int) -> None:
    assert f.align(size) == aligned


def _flipped(data: bytes, bit: int) -> bytes:
    altered = bytearray(data)
    altered[bit // 8] ^= 1 << bit % 8
    return bytes(altered)
