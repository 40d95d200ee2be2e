"""Virtual time: things happen in order, as fast as they can be computed."""

import heapq
from collections.abc import Callable


class Clock:
    """What is due, and what time it is."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        """Do something later; what is due at the same time happens in the order it was said."""
        self._count += 1
        heapq.heappush(self._due, (max(due_s, self.now_s), self._count, action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Until it is over, or nothing is left to happen."""
        while self._due and not is_over():
            self.now_s, _, action = heapq.heappop(self._due)
            action()
