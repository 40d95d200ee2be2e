"""Whether another prompt may wait. Pure."""

from dataclasses import dataclass

from diptych.core.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may pile up before a worker says no; the router keeps the real queue."""

    waiting: int = 256  # prompts queued or running here


def admit(prompts: int, limits: Limits) -> None:
    """Raise Overloaded if a prompt more would only wait; `prompts` have no first token yet."""
    if prompts >= limits.waiting:
        raise Overloaded(f"{limits.waiting} prompts wait already", retry_after_s=1.0)
