"""Copies of the encoder layers' windows at some positions. Knows page numbers; knows no bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnchorCopy:
    """The encoder windows of a sequence at `position`: records of [position - W, position).

    In the slot they lie in rings (position mod ring), in the anchor page in order of position;
    where position < W, the page has zeros in front. Anchor pages are numbered from 0.
    """

    slot: int
    page: int
    position: int
