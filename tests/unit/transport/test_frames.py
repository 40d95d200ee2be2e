"""The bytes of block frames, and what a receiver accepts."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.core.errors import Lost
from diptych.core.ids import BlockHash
from diptych.transport.frames import (
    BadFrame,
    Credit,
    Fault,
    Part,
    PartKind,
    Place,
    Receiver,
    checksum,
    decode,
    encode,
)

SIZE = 24


def part(index: int, kind: PartKind = PartKind.BLOCK, size: int = SIZE) -> Part:
    data = bytes((index * 31 + i) % 256 for i in range(size))
    return Part(kind, BlockHash(bytes([index]) * 16), checksum(data), memoryview(data))


class Shelf:
    """Places for parts, by name."""

    def __init__(self, *parts: Part) -> None:
        self.rooms = {p.name: (p.kind, bytearray(len(p.payload))) for p in parts}

    def place(self, name: BlockHash) -> Place:
        kind, room = self.rooms[name]
        return Place(kind, memoryview(room))


def receiver(*parts: Part) -> tuple[Receiver, Shelf]:
    shelf = Shelf(*parts)
    return Receiver([p.name for p in parts], shelf), shelf


def faults(data: bytes, *wanted: Part) -> Fault:
    taker, _ = receiver(*wanted)
    with pytest.raises(BadFrame) as caught:
        taker.accept(data)
    assert isinstance(caught.value, Lost)
    return Fault(caught.value.code)


def test_golden_bytes_of_a_frame() -> None:
    parts = [
        Part(
            PartKind.TAIL,
            BlockHash(bytes(range(16))),
            checksum(b"123456789"),
            memoryview(b"123456789"),
        ),
        Part(PartKind.TAIL, BlockHash(b"\xff" * 16), checksum(b""), memoryview(b"")),
    ]
    assert encode(3, parts, is_last=True).hex() == (
        "44505442"  # magic "DPTB"
        "0100"  # version 1
        "0100"  # flags: last
        "03000000"  # seq 3
        "0200"  # two parts
        "0200"  # of kind tail
        "000102030405060708090a0b0c0d0e0f"
        "839206e3"  # the check value of CRC-32C
        "09000000"
        "ffffffffffffffffffffffffffffffff"
        "00000000"
        "00000000"
        "313233343536373839"
    )


def test_a_frame_reads_back_as_it_was_written() -> None:
    parts = [part(i) for i in range(8)]
    frame = decode(encode(7, parts, is_last=False))
    assert (frame.seq, frame.is_last, list(frame.parts)) == (7, False, parts)


def test_parts_land_in_their_places() -> None:
    blocks, slot = [part(i) for i in range(10)], part(99, PartKind.SLOT, 100)
    taker, shelf = receiver(*blocks, slot)
    for seq, group in enumerate((blocks[:8], blocks[8:], [slot])):
        data = encode(seq, group, is_last=seq == 2)
        assert taker.accept(data) == len(data)
    taker.finish()
    for sent in (*blocks, slot):
        assert shelf.rooms[sent.name][1] == sent.payload


@pytest.mark.parametrize(
    ("offset", "code", "value", "fault"),
    [
        (0, "<I", 0x42545045, Fault.MAGIC),
        (4, "<H", 2, Fault.VERSION),
        (6, "<H", 2, Fault.FLAGS),
        (8, "<I", 1, Fault.SEQUENCE),
        (12, "<H", 0, Fault.LENGTH),
        (12, "<H", 9, Fault.LENGTH),
        (12, "<H", 3, Fault.LENGTH),
        (14, "<H", 0, Fault.KIND),
        (14, "<H", 5, Fault.KIND),
        (14, "<H", 3, Fault.KIND),
        (16, "<B", 200, Fault.UNKNOWN),
        (32, "<I", 7, Fault.CHECKSUM),
        (36, "<I", SIZE + 1, Fault.LENGTH),
        (-1, "<B", 0, Fault.CHECKSUM),
    ],
)
def test_each_wrong_field_has_its_own_error(
    offset: int, code: str, value: int, fault: Fault
) -> None:
    parts = [part(1), part(2)]
    data = bytearray(encode(0, parts, is_last=True))
    struct.pack_into(code, data, offset % len(data), value)
    assert faults(bytes(data), *parts) is fault


def test_a_part_of_the_wrong_size_is_refused() -> None:
    wanted = Part(PartKind.BLOCK, part(1).name, 0, memoryview(bytes(SIZE - 1)))
    assert faults(encode(0, [part(1)], is_last=True), wanted) is Fault.SIZE


def test_a_part_that_comes_twice_is_refused() -> None:
    assert faults(encode(0, [part(1), part(1)], is_last=True), part(1)) is Fault.DUPLICATE


def test_a_frame_that_is_repeated_or_skipped_is_refused() -> None:
    taker, _ = receiver(part(1), part(2))
    taker.accept(encode(0, [part(1)], is_last=False))
    for seq in (0, 2):
        with pytest.raises(BadFrame) as caught:
            taker.accept(encode(seq, [part(2)], is_last=True))
        assert caught.value.code == Fault.SEQUENCE


def test_nothing_is_accepted_after_the_last_frame() -> None:
    taker, _ = receiver(part(1), part(2))
    taker.accept(encode(0, [part(1)], is_last=True))
    with pytest.raises(BadFrame):
        taker.accept(encode(1, [part(2)], is_last=True))


@pytest.mark.parametrize("is_last", [True, False])
def test_a_transfer_that_ends_early_is_incomplete(is_last: bool) -> None:
    taker, _ = receiver(part(1), part(2))
    taker.accept(encode(0, [part(1)], is_last=is_last))
    with pytest.raises(BadFrame) as caught:
        taker.finish()
    assert caught.value.code == Fault.INCOMPLETE
    assert taker.done == {part(1).name}


def test_a_transfer_without_its_last_flag_is_incomplete() -> None:
    taker, _ = receiver(part(1))
    taker.accept(encode(0, [part(1)], is_last=False))
    with pytest.raises(BadFrame):
        taker.finish()


@given(cut=st.integers(0, 16 + 3 * 24 + 3 * SIZE - 1))
def test_a_truncated_frame_is_never_accepted(cut: int) -> None:
    parts = [part(i) for i in range(3)]
    assert faults(encode(0, parts, is_last=True)[:cut], *parts) is Fault.LENGTH


@settings(max_examples=300)
@given(bit=st.integers(0, 8 * (16 + 3 * 24 + 3 * SIZE) - 1))
def test_a_flipped_bit_is_never_loaded(bit: int) -> None:
    parts = [part(i) for i in range(3)]
    data = bytearray(encode(0, parts, is_last=True))
    data[bit // 8] ^= 1 << bit % 8
    taker, _ = receiver(*parts)
    with pytest.raises(BadFrame):
        taker.accept(bytes(data))
        taker.finish()  # the flag "last" itself was flipped


@given(st.binary(max_size=200))
def test_noise_is_a_named_error(data: bytes) -> None:
    assert faults(data, part(1)) in Fault


def test_a_frame_goes_while_credit_is_positive_and_overdraws_once() -> None:
    credit = Credit(100)
    credit.spend(99)
    assert credit.is_open
    credit.spend(500)
    assert not credit.is_open
    credit.give(499)
    assert not credit.is_open
    credit.give(1)
    assert credit.is_open
