"""Whether another sequence may come, and when a busy worker should be asked again. Pure."""

from dataclasses import dataclass

from diptych.core.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may pile up before a worker says no; the router keeps the real queue."""

    waiting: int = 256  # prompts queued here (hybrid)
    busy_retry_s: float = 0.2  # a slot frees within a few steps when sequences are short


def admit_prompt(waiting: int, limits: Limits) -> None:
    """Raise Overloaded if a prompt more would only wait."""
    if waiting >= limits.waiting:
        raise Overloaded(f"{limits.waiting} prompts wait already", retry_after_s=1.0)
