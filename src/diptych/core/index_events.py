"""What a holder of blocks tells those who keep an index: what came and went, in which tier.

Batches count up from 1 within one life of the holder. Who missed some asks from its last number
on; if those are forgotten, or the holder lives anew, it gets a snapshot whose number is the real
last one. The index is a hint: the holder's own answer is the truth. Pure.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diptych.core.ids import BlockHash, Incarnation

KEPT_BATCHES = 4096


@dataclass(frozen=True, slots=True)
class IndexBatch:
    """Blocks that came to a tier, or went from it."""

    seq: int
    came: bool
    tier: str
    names: tuple[BlockHash, ...]


class IndexLog:
    """The newest batches of one life, and who wants to know of new ones."""

    def __init__(self, incarnation: Incarnation, keep: int = KEPT_BATCHES) -> None:
        self.incarnation = incarnation
        self.last_seq = 0
        self._batches: deque[IndexBatch] = deque(maxlen=keep)
        self._listeners: list[Callable[[IndexBatch], None]] = []

    def publish(self, came: bool, tier: str, names: Sequence[BlockHash]) -> None:
        """Number a change and tell everybody; no names are no change."""
        if not names:
            return
        self.last_seq += 1
        batch = IndexBatch(self.last_seq, came, tier, tuple(names))
        self._batches.append(batch)
        for listen in list(self._listeners):
            listen(batch)

    def since(self, seq: int) -> list[IndexBatch] | None:
        """The batches behind number `seq`; None if some are forgotten or it is not ours."""
        if not 0 <= seq <= self.last_seq or self.last_seq - seq > len(self._batches):
            return None
        return list(self._batches)[len(self._batches) - (self.last_seq - seq) :]

    def listen(self, listener: Callable[[IndexBatch], None]) -> Callable[[], None]:
        """Hear every batch from now on; call the result to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
