"""What was decided lately and why: counts for metrics, the newest for people. No text of users."""

from collections import Counter, deque

from diptych.core.phases import Phase, Role
from diptych.router.messages import Decided
from diptych.router.policy import Choice

KEPT = 50


class Explained:
    """Placements of this router."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # by phase and reason
        self._newest: deque[tuple[float, Decided]] = deque(maxlen=KEPT)

    def placed(self, request_id: str, choice: Choice, *, is_handoff: bool, now_s: float) -> None:
        phase = Phase.DECODE if is_handoff else Phase.PREFILL
        is_skip = choice.role is Role.DECODE and not is_handoff
        self.counts[phase, "skip" if is_skip else choice.kind] += 1
        decided = Decided(request_id, phase, choice.rank.worker_id, choice.reasons)
        self._newest.append((now_s, decided))

    def newest(self, count: int, now_s: float) -> tuple[Decided, ...]:
        """Newest first, each with its age."""
        kept = list(self._newest)[: -count - 1 : -1]
        return tuple(decided.aged(max(0.0, now_s - at_s)) for at_s, decided in kept)
