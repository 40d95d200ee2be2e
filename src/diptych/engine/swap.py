"""Sequences that wait in host memory for pages. Knows page numbers; knows no bytes."""

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
