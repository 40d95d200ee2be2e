"""A deadline that is moved at every step of a long stream, and costs next to nothing to move."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Rings once when its time has come.

    Moving it on only notes the new time: the timer that is set looks too early, and is set again.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._at_s: float | None = None

    def set(self, after_s: float) -> None:
        """Ring in `after_s` seconds, whatever was said before."""
        self._at_s = self._loop.time() + after_s
        if self._timer is None or self._at_s < self._timer_at_s:
            self._start()

    def clear(self) -> None:
        """Do not ring. The timer is left alone, as it will be needed again soon."""
        self._at_s = None

    def close(self) -> None:
        """Clear, for good."""
        self._at_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        assert self._at_s is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = self._at_s
        self._timer = self._loop.call_at(self._timer_at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._at_s is None:
            return
        if self._at_s > self._timer_at_s:
            self._start()
        else:
            self._at_s = None
            self._ring()
