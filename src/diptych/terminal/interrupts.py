"""Ctrl-C where it does no harm: a half-written line would leave the terminal's writer confused."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[None]:
    """An interrupt waits until the block is over. For the main thread."""
    has_come = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if has_come:
        raise KeyboardInterrupt
