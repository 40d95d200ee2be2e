"""A clock that stands still until it is told to move."""


class FakeClock:
    """Call it for the time in seconds."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
