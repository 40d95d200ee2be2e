"""How long a prompt will wait in the queue, and when a refused one may come back."""

LONGEST_INTERVAL_S = 5.0  # between prompts leaving the queue, as far as predictions go
RETRY_AFTER_S = (1.0, 30.0)


class Forecast:
    """By how fast the queue empties while there is one, and by the work that is known."""

    def __init__(self) -> None:
        self._served_s: float | None = None
        self._interval_s = 0.0  # between prompts leaving a non-empty queue, smoothed

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

    def retry_after_s(self, waiting: int) -> float:
        least_s, most_s = RETRY_AFTER_S
        return min(most_s, max(least_s, waiting * self._interval_s))
