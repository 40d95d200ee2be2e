"""Whether another prompt may wait. Pure."""

from dataclasses import dataclass

from diptych.core.errors import Overloaded


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may pile up before a worker says no; the router keeps the real queue."""

    waiting: int = 256  # prompts queued or running here
    held_share: float = 0.75  # of the slots, by prompts that wait to be fetched


def admit(requests: int, held: int, num_slots: int, limits: Limits) -> None:
    """Raise Overloaded if a prompt more would only wait. `requests` includes `held`."""
    if requests - held >= limits.waiting:
        raise Overloaded(f"{limits.waiting} prompts wait already", retry_after_s=1.0)
    if held > num_slots * limits.held_share:
        raise Overloaded(
            f"{held} prompts wait to be fetched by decode workers",
            code="export_blocked",
            retry_after_s=1.0,
        )
