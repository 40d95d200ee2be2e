"""What was asked of the fleet in the last minute and how it kept up: what pools are sized by.

Arrivals and waits are this router's own; work is what all workers report, whoever placed it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from diptych.core.ids import Incarnation, WorkerId
from diptych.core.phases import Role
from diptych.router.costs import Costs
from diptych.router.messages import Load
from diptych.router.windows import Level, Samples, Window

COUNTED = (
    "query_tokens", "hit_tokens", "prompt_rows", "prompt_pairs", "busy_us", "tokens",
    "decode_rows", "decode_context",
)  # fmt: skip


@dataclass(slots=True)
class _Promise:
    """When a lease came, and how soon its first token was expected."""

    came_s: float
    expected_s: float


class Demand:
    """Pure but for its own state; the time is an argument."""

    def __init__(self) -> None:
        self._arrived = Window()
        self._worked: dict[Role, dict[str, Window]] = {}
        self._loads: dict[WorkerId, tuple[Incarnation, Load]] = {}
        self._rate: float | None = None
        self._promises: dict[int, _Promise] = {}
        self._first_tokens = Samples()  # of their targets
        self.export_blocked = Level()  # 1 while prompts are held back for want of a decode row
        self.slot_wait = Level()  # prompts whose KV waits at prefill for one

    def arrived(self, prompt_len: int, now_s: float) -> None:
        """A prompt came in, placed before or not."""
        self._arrived.add(prompt_len, now_s)

    def reported(
        self, worker: WorkerId, role: Role, life: Incarnation, load: Load, now_s: float
    ) -> None:
        """A worker's totals, of which the changes count."""
        before = self._loads.get(worker)
        self._loads[worker] = (life, load)
        if before is None or before[0] != life:
            return
        windows = self._worked.setdefault(role, {name: Window() for name in COUNTED})
        for name, window in windows.items():
            total = f"{name}_total"
            more = getattr(load, total) - getattr(before[1], total)
            if more > 0:
                window.add(more, now_s)

    def forget(self, worker: WorkerId) -> None:
        self._loads.pop(worker, None)

    def waits(self, *, is_blocked: bool, handoffs: int, now_s: float) -> None:
        """What a round of decisions left waiting for decode rows."""
        self.export_blocked.set(float(is_blocked), now_s)
        self.slot_wait.set(float(handoffs), now_s)

    # First tokens

    def promised(self, lease: int, came_s: float, expected_s: float) -> None:
        """How soon after its arrival a first token is expected; the first word counts."""
        self._promises.setdefault(lease, _Promise(came_s, expected_s))

    def first_token(self, lease: int, target_s: float, now_s: float) -> float | None:
        """It is out: what it took, of what was expected. None if that was told before."""
        promise = self._promises.pop(lease, None)
        if promise is None:
            return None
        took_s = now_s - promise.came_s
        self._first_tokens.add(took_s / target_s, now_s)
        return took_s / max(0.001, promise.expected_s)

    def closed(self, lease: int) -> None:
        """Nothing more will come of a lease, or what comes is another attempt's."""
        self._promises.pop(lease, None)

    def lateness(self, now_s: float) -> float:
        """P90 of first tokens, of their targets; 0 without any."""
        return self._first_tokens.p90(now_s) or 0.0

    # The last minute

    def total(self, roles: Iterable[Role], name: str, now_s: float) -> float:
        return sum(self._worked[r][name].total(now_s) for r in roles if r in self._worked)

    def per_s(self, roles: Iterable[Role], name: str, now_s: float) -> float:
        return sum(self._worked[r][name].rate(now_s) for r in roles if r in self._worked)

    def arriving(self, roles: Iterable[Role], now_s: float) -> float:
        """Prompt tokens a second: ours, or what workers admitted where other routers gave more."""
        return max(self._arrived.rate(now_s), self.per_s(roles, "query_tokens", now_s))

    def hit_share(self, roles: Iterable[Role], now_s: float) -> float | None:
        """Of prompt tokens, those that were found cached; None without prompts."""
        asked = self.total(roles, "query_tokens", now_s)
        return min(1.0, self.total(roles, "hit_tokens", now_s) / asked) if asked else None

    def prompt_rate(self, now_s: float) -> float | None:
        """Tokens a second that a prefill worker computes while it computes; the last known when
        it is idle. Time without work, also while KV waits for a decode row, is no busy time."""
        busy_us = self.total((Role.PREFILL,), "busy_us", now_s)
        rows = self.total((Role.PREFILL,), "prompt_rows", now_s)
        if busy_us and rows:
            self._rate = 1e6 * rows / busy_us
        return self._rate

    def prompt_rate_of(self, costs: Costs, now_s: float) -> float:
        """The same of a worker that decodes, too: by its fitted costs."""
        rows = self.total((Role.HYBRID,), "prompt_rows", now_s)
        pairs = self.total((Role.HYBRID,), "prompt_pairs", now_s)
        return 1000.0 / (costs.token_ms + costs.pair_ms * (pairs / rows if rows else 0.0))

    def context(self, roles: Iterable[Role], now_s: float) -> float:
        """Positions that a row attends to; 0 without rows."""
        rows = self.total(roles, "decode_rows", now_s)
        return self.total(roles, "decode_context", now_s) / rows if rows else 0.0
