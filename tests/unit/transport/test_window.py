"""Memory shared by two processes of one host."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.core.errors import Refused
from diptych.core.ids import BlockHash
from diptych.testing.platform import environment
from diptych.transport.frames import BadFrame, Fault, Part, PartKind, checksum
from diptych.transport.window import NONCE_BYTES, Filled, Window, parts_in


def part(index: int, size: int) -> Part:
    data = bytes([index]) * size
    return Part(PartKind.BLOCK, BlockHash(data[:1] * 16), checksum(data), memoryview(data))


def attached(window: Window, **changes: object) -> Window:
    offer = {
        "pid": os.getpid(),
        "file": window.file,
        "num_slots": window.num_slots,
        "slot_bytes": window.slot_bytes,
        "nonce": window.nonce,
    }
    return Window.attach(**(offer | changes))  # type: ignore[arg-type]


def test_what_one_side_fills_the_other_reads() -> None:
    ours = Window.create(num_slots=2, slot_bytes=10_000)
    theirs = attached(ours)
    parts = [part(1, 100), part(2, 3000), part(3, 1)]
    filled = theirs.fill(1, parts, PartKind.BLOCK, is_last=True)
    found = parts_in(ours.slot(1), filled)
    assert [(p.name, p.crc32c, bytes(p.payload)) for p in found] == [
        (p.name, p.crc32c, bytes(p.payload)) for p in parts
    ]
    assert not any(ours.slot(0))
    del found
    theirs.close()
    ours.close()
    ours.close()  # twice is once


def test_another_process_can_attach_and_leaves_nothing() -> None:
    window = Window.create(num_slots=1, slot_bytes=4096)
    code = (
        "import sys; from diptych.transport.window import Window\n"
        "pid, file, nonce = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])\n"
        "Window.attach(pid, file, 1, 4096, nonce).slot(0)[:5] = b'hello'\n"
    )
    arguments = [str(os.getpid()), str(window.file), window.nonce.hex()]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, env=environment())
    assert bytes(window.slot(0)[:5]) == b"hello"
    window.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": bytes(NONCE_BYTES)},
        {"nonce": b""},
        {"num_slots": 3},
        {"slot_bytes": 4095},
        {"slot_bytes": 1 << 40},
        {"num_slots": 0},
        {"pid": 2**22 - 1},
        {"file": 10_000},
    ],
)
def test_what_is_not_the_window_that_was_offered_is_refused(changes: dict[str, object]) -> None:
    window = Window.create(num_slots=2, slot_bytes=4096)
    with pytest.raises(Refused) as caught:
        attached(window, **changes)
    assert caught.value.code == "no_shared_memory"
    window.close()


def test_a_peer_cannot_make_us_open_another_file(tmp_path: Path) -> None:
    window = Window.create(num_slots=1, slot_bytes=4096)
    path = tmp_path / "memfd:diptych-window"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, pytest.raises(Refused, match="not a window"):
        attached(window, file=file.fileno(), nonce=bytes(NONCE_BYTES))
    window.close()


def test_slots_that_do_not_exist_are_refused() -> None:
    window = Window.create(num_slots=2, slot_bytes=4096)
    for number in (-1, 2):
        with pytest.raises(Refused):
            window.slot(number)
    window.close()


@pytest.mark.parametrize(
    "filled",
    [
        Filled(0, PartKind.BLOCK, (BlockHash(bytes(16)),), (1,), (4097,), True),
        Filled(0, PartKind.BLOCK, (BlockHash(bytes(16)),), (), (10,), True),
        Filled(0, PartKind.BLOCK, (), (1,), (10,), True),
    ],
)
def test_a_table_that_does_not_fit_its_slot_is_refused(filled: Filled) -> None:
    with pytest.raises(BadFrame) as caught:
        parts_in(memoryview(bytes(4096)), filled)
    assert caught.value.code == Fault.LENGTH
