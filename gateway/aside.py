"""Work on long bodies in threads, so that others are served meanwhile."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

INLINE_BYTES = 16 << 10  # what is made of a body no longer than this takes a millisecond or two


async def aside(work: Callable[[], Result], size_bytes: int) -> Result:
    """Do work on a body of this size."""
    if size_bytes <= INLINE_BYTES:
        return work()
    return await asyncio.to_thread(work)
