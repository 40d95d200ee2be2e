"""Sequences that wait in host memory for pages. Knows page numbers; knows no bytes."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwapCopy:
    """Pages of a sequence and the host pages that are, or will be, their copy.

    `blocks[i]` goes with `host_blocks[i]`, `slot` with `host_slot`; whole pages are copied. Host
    pages are numbered from 0, blocks and slots apart.
    """

    blocks: tuple[int, ...]
    slot: int
    host_blocks: tuple[int, ...]
    host_slot: int


class SwapSpace:
    """Host pages: so many of blocks, so many of slots. With none, nothing can be swapped."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.num_blocks = num_blocks
        self.num_slots = num_slots
        self._blocks = deque(range(num_blocks))
        self._slots = deque(range(num_slots))

    def fits(self, num_blocks: int) -> bool:
        """Whether a sequence of so many blocks can be taken in."""
        return bool(self._slots) and num_blocks <= len(self._blocks)

    def take(self, blocks: tuple[int, ...], slot: int) -> SwapCopy:
        """Host pages for a sequence that fits."""
        host_blocks = tuple(self._blocks.popleft() for _ in blocks)
        return SwapCopy(blocks, slot, host_blocks, self._slots.popleft())

    def free(self, copy: SwapCopy) -> None:
        self._blocks.extend(copy.host_blocks)
        self._slots.append(copy.host_slot)

    def check(self, copies: Sequence[SwapCopy]) -> None:
        """Assert that exactly the host pages of `copies` are taken, each once."""
        blocks = [*self._blocks, *(page for copy in copies for page in copy.host_blocks)]
        slots = [*self._slots, *(copy.host_slot for copy in copies)]
        assert sorted(blocks) == list(range(self.num_blocks)), "a host block is lost or doubled"
        assert sorted(slots) == list(range(self.num_slots)), "a host slot is lost or doubled"


def host_pages(
    swap_bytes: int, block_bytes: int, slot_bytes: int, num_blocks: int, num_slots: int
) -> tuple[int, int]:
    """Blocks and slots that `swap_bytes` hold, in the proportion that the pools have."""
    whole = block_bytes * num_blocks + slot_bytes * num_slots
    share = min(1.0, swap_bytes / whole)
    return int(num_blocks * share), int(num_slots * share)
