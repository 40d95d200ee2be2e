"""How long a prompt will wait, for its first token too, and when a refused one may come back."""

from dataclasses import dataclass

from diptych.router.ledger import Pending
from diptych.router.messages import Want

EXPECTED_NEW = 128.0  # tokens of an output, before any has ended
NEW_WEIGHT = 0.05  # of the newest output in the mean of all
LONGEST_INTERVAL_S = 5.0  # between prompts leaving the queue, as far as predictions go
RETRY_AFTER_S = (1.0, 30.0)


@dataclass(frozen=True, slots=True)
class Room:
    """Of all decode workers, now. `gap_ms`: between tokens of their rows."""

    free_rows: int = 0
    used_rows: int = 0
    free_blocks: int = 0
    used_blocks: int = 0
    gap_ms: float = 0.0
    block_tokens: int = 1


class Forecast:
    """By how fast the queue empties while there is one, and by the work that is known."""

    def __init__(self) -> None:
        self._served_s: float | None = None
        self._interval_s = 0.0  # between prompts leaving a non-empty queue, smoothed
        self._new_tokens = EXPECTED_NEW

    def served(self, waiting: int, now_s: float) -> None:
        """A prompt left the queue; so many are left."""
        if waiting and self._served_s is not None:
            passed_s = min(LONGEST_INTERVAL_S, now_s - self._served_s)
            self._interval_s += 0.2 * (passed_s - self._interval_s)
        elif not waiting:
            self._interval_s *= 0.8
        self._served_s = now_s

    def wait_s(self, ahead: int, ahead_ms: float, given_ms: list[float]) -> float:
        """Behind so many prompts; `given_ms` is what each worker has to do."""
        if not given_ms:
            return 0.0  # nobody is there: another rule's business
        work_ms = ahead_ms + sum(given_ms)
        return max(work_ms / len(given_ms) / 1000, (ahead + 1) * self._interval_s)

    def ended(self, new_tokens: int) -> None:
        """An output is over."""
        self._new_tokens += NEW_WEIGHT * (new_tokens - self._new_tokens)

    def row_s(self, room: Room, pending: Pending, want: Want, ahead: int) -> float:
        """Until decode has a row and blocks for a prompt behind those at prefill and those `ahead`
        of it. Others are taken to be like it, and no longer than outputs usually are. Those that
        end till then count: what matters is whether decode is full when the prompt is done, not
        whether it is now."""
        rows = pending.rows + ahead + 1
        blocks = pending.blocks + (ahead + 1) * -(-want.capacity // room.block_tokens)
        lifetime_s = min(self._new_tokens, want.max_new) * room.gap_ms / 1000
        short = max(
            _share(rows - room.free_rows, room.used_rows),
            _share(blocks - room.free_blocks, room.used_blocks),
        )
        return lifetime_s * short

    def retry_after_s(self, waiting: int) -> float:
        least_s, most_s = RETRY_AFTER_S
        return min(most_s, max(least_s, waiting * self._interval_s))


def _share(short: int, used: int) -> float:
    """Of those in use, how many must end: they end evenly. If none is in use, none will."""
    return max(0, short) / used if used else 0.0
