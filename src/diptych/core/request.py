"""What an engine is asked to do."""

from dataclasses import dataclass

from diptych.core.constraint import Constraint
from diptych.core.ids import Key
from diptych.core.sampling import Sampling

PRIORITIES = ("interactive", "normal", "batch")  # the most urgent first
URGENT_PATIENCE_S, NORMAL_PATIENCE_S, BATCH_PATIENCE_S = 30.0, 600.0, 3600.0
RETENTIONS = ("chat", "agent", "pinned", "none")  # how long the cache tier keeps the KV


@dataclass(frozen=True, slots=True)
class Generation:
    """One sequence to continue.

    `prompt` is the original prompt. `forced` are output tokens that exist already (a retry after a
    worker died): they are computed like prompt tokens but counted as output. `max_new` bounds the
    output including `forced`, so at most max_new - len(forced) tokens are sampled.
    """

    key: Key
    prompt: tuple[int, ...]
    sampling: Sampling
    max_new: int
    forced: tuple[int, ...] = ()
    scope: bytes = b""  # 16 bytes; h_0 of the block chain (core/blocks.py); none: no caching
    priority: str = "normal"  # one of PRIORITIES
    tenant: str = "default"  # waits in line with its own requests, not with those of others
    constraint: Constraint | None = None  # what the output must be
    constraint_after: str = ""  # it holds behind the first token of this spelling; none: at once
    retention: str = "chat"  # one of RETENTIONS; none: the tier keeps nothing of it

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.forced

    @property
    def capacity(self) -> int:
        """Positions that may be written: the last sampled token never is."""
        return len(self.prompt) + self.max_new - 1


def patience_s(priority: str, normal_s: float = NORMAL_PATIENCE_S) -> float:
    """How long a request of a class may wait for a worker; operators set that of `normal`.

    Who is more urgent gives up no later, who is less urgent no sooner. Unknown classes are normal.
    """
    match priority:
        case "interactive":
            return min(URGENT_PATIENCE_S, normal_s)
        case "batch":
            return max(BATCH_PATIENCE_S, normal_s)
    return normal_s
