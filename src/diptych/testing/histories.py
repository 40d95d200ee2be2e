"""Random histories of limited requests, for the books in memory and in Redis."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from diptych.gateway.tenancy.book import Book
from diptych.gateway.tenancy.meters import Hold, Meter, Places, Quota, Rate, Taken

EXACT_LIMITS = (1, 2, 3, 5, 6, 10, 60, 1000, 60_000)  # they divide a minute's microseconds


@dataclass(frozen=True, slots=True)
class Pass:
    """Time goes by."""

    us: int


@dataclass(frozen=True, slots=True)
class Enter:
    """A request wants something."""

    lease: str
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """A request that may have entered ends, having used so many units of each."""

    lease: str
    units: tuple[int, ...]


Step = Pass | Enter | Leave


def history(draw: random.Random, now_s: int, num_steps: int) -> Iterator[Step]:
    """Requests over a handful of meters; all that entered have left at the end."""
    meters: list[Meter] = [
        *(Rate(f"d:{{t}}:key:{i}:tpm", draw.choice(EXACT_LIMITS)) for i in range(2)),
        Places("d:{t}:key:a:places", draw.randint(1, 4)),
        Quota("d:{t}:key:a:day:x", draw.randint(1, 5000), now_s + 3600),
    ]
    inside: dict[str, tuple[Hold, ...]] = {}
    for number in range(num_steps):
        match draw.random():
            case x if x < 0.3:
                yield Pass(draw.choice((1, 999, 100_000, 1_000_000, 17_000_000)))
            case x if x < 0.7 or not inside:
                chosen = draw.sample(meters, draw.randint(1, len(meters)))
                holds = tuple(Hold(meter, _units(draw, meter)) for meter in chosen)
                inside[f"r{number}"] = holds
                yield Enter(f"r{number}", holds)
            case _:
                yield _leave(draw, inside)
    while inside:
        yield _leave(draw, inside)


async def take_part(
    book: Book, step: Enter | Leave, entered: dict[str, tuple[Hold, ...]]
) -> Taken | None:
    """Do a step; what a book said to who entered."""
    if isinstance(step, Enter):
        taken = await book.take(step.lease, step.holds)
        if taken.refused is None:
            entered[step.lease] = step.holds
        return taken
    if (holds := entered.pop(step.lease, None)) is not None:
        await book.settle(step.lease, holds, step.units)
    return None


def _leave(draw: random.Random, inside: dict[str, tuple[Hold, ...]]) -> Leave:
    lease = draw.choice(sorted(inside))
    return Leave(lease, tuple(_used(draw, hold) for hold in inside.pop(lease)))


def _units(draw: random.Random, meter: Meter) -> int:
    return 1 if isinstance(meter, Places) else draw.choice((1, 2, 7, 300, 2000))


def _used(draw: random.Random, hold: Hold) -> int:
    return 1 if isinstance(hold.meter, Places) else draw.randint(0, 2 * hold.units)
