"""What the prefix cache takes in and gives up, numbered, for those who must know who holds what.

Written by the engine's thread, read by the reports'. Bounded: who reads too late gets all blocks
that are there instead, and the number of the change that will follow.
"""

import threading
from collections import deque
from dataclasses import dataclass

from diptych.core.ids import BlockHash

CAPACITY = 16_384  # changes kept


@dataclass(frozen=True, slots=True)
class Changes:
    """Consecutive changes, or a snapshot of all that is held."""

    first_seq: int  # of a snapshot: of the change that will follow it
    names: tuple[BlockHash, ...]
    stored: tuple[bool, ...] = ()  # for each: taken in, or given up; a snapshot has none
    is_snapshot: bool = False

    @property
    def next_seq(self) -> int:
        return self.first_seq if self.is_snapshot else self.first_seq + len(self.names)


class BlockLog:
    """The newest changes, and what is held."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._lock = threading.Lock()
        self._newest: deque[tuple[BlockHash, bool]] = deque(maxlen=capacity)
        self._held: dict[BlockHash, None] = {}
        self._next_seq = 0

    def stored(self, name: BlockHash) -> None:
        with self._lock:
            self._held[name] = None
            self._add(name, True)

    def removed(self, name: BlockHash) -> None:
        with self._lock:
            self._held.pop(name, None)
            self._add(name, False)

    def since(self, seq: int | None, limit: int) -> Changes | None:
        """Up to `limit` changes from number `seq` on; a snapshot for None, or if some are gone.

        None if there is nothing new.
        """
        with self._lock:
            oldest = self._next_seq - len(self._newest)
            if seq is None or not oldest <= seq <= self._next_seq:
                return Changes(self._next_seq, tuple(self._held), is_snapshot=True)
            if seq == self._next_seq:
                return None
            at = range(seq - oldest, min(len(self._newest), seq - oldest + limit))
            chosen = [self._newest[i] for i in at]
        return Changes(seq, tuple(n for n, _ in chosen), tuple(s for _, s in chosen))

    def _add(self, name: BlockHash, is_stored: bool) -> None:
        self._newest.append((name, is_stored))
        self._next_seq += 1
