"""What work costs, in milliseconds: the one currency of all decisions. Knows lengths; no workers.

C(u, N)    = step + token · u + pair · u · (N - u/2)     u of N prompt tokens not cached
F(x)       = 0 if x = 0, else fetch + fetch_token · x    x tokens from a peer
T(x, y)    = tier pace · (F(x) + disk_token · y)         x tokens from the cache tier, y on its disk
gap(n, kv) = step + row · n + context · kv               between tokens of n rows
"""

from dataclasses import dataclass

EXPECTED_NEW_LIMIT = 256  # of an output no more than this counts: the rest may move elsewhere


@dataclass(frozen=True, slots=True)
class Costs:
    """Coefficients of one worker. The defaults are the released model's on one node."""

    step_ms: float = 10.0  # what a step costs however little it does
    token_ms: float = 0.031  # a prompt token
    pair_ms: float = 1e-7  # a prompt token and a position it attends to
    row_ms: float = 0.05  # a row more in a decoding step
    context_ms: float = 1e-6  # a position that a decoding row attends to
    fetch_ms: float = 2.0  # asking for blocks at all
    fetch_token_ms: float = 0.0009  # 890 bytes at 1 GB/s
    disk_token_ms: float = 0.0009  # as long again where the tier has it on disk
    tier_pace: float = 1.0  # so many times as long as that is what the tier takes

    def prompt_ms(self, uncached: float, length: int) -> float:
        """Computing the last `uncached` tokens of a prompt."""
        pairs = uncached * (length - uncached / 2)
        return self.step_ms + self.token_ms * uncached + self.pair_ms * pairs

    def fetching_ms(self, tokens: float) -> float:
        """Bringing the KV of so many tokens from a peer."""
        return self.fetch_ms + self.fetch_token_ms * tokens if tokens > 0 else 0.0

    def loading_ms(self, tokens: float, on_disk: float = 0.0) -> float:
        """Bringing it from the cache tier, some of it from a disk."""
        return self.tier_pace * (self.fetching_ms(tokens) + self.disk_token_ms * on_disk)

    def gap_ms(self, rows: int, context: int) -> float:
        """Between two tokens of a row, when `rows` decode that attend to `context` in all."""
        return self.step_ms + self.row_ms * rows + self.context_ms * context

    def at_pace(self, pace: float) -> "Costs":
        """Of a worker that takes so many times as long for everything it computes."""
        return Costs(
            self.step_ms * pace,
            self.token_ms * pace,
            self.pair_ms * pace,
            self.row_ms * pace,
            self.context_ms * pace,
            self.fetch_ms,
            self.fetch_token_ms,
            self.disk_token_ms,
            self.tier_pace,
        )


DEFAULTS = Costs()
