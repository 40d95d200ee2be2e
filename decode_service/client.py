"""Front door of decode workers: reserve room, start from a ticket or a prompt, follow, give up."""

from collections.abc import AsyncIterator

from diptych.core.ids import Key, Rank
from diptych.core.request import Generation
from diptych.core.step import Row
from diptych.transport.session import SessionPool


class DecodeCall:
    """One sequence at one decode worker. After `start`, iterate for rows; one with finish is last.

    Raises Lost when the worker dies or falls silent; with code TICKET_GONE the prompt must be
    computed again, with any other the ticket is still good for another decode worker. Raises
    Expired past the deadline, and whatever the worker refused it with.
    """

    async def start(self, generation: Generation, ticket: bytes | None, deadline_s: float) -> None:
        """Begin; without a ticket the worker computes the prompt. `deadline_s` to the next token."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Row]:
        raise NotImplementedError

    async def cancel(self) -> None:
        """Give the sequence up wherever it stands. Twice is once."""
        raise NotImplementedError


class DecodeClient:
    """Opens calls over the gateway's sessions."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    def open(self, rank: Rank, key: Key) -> DecodeCall:
        """A call without a reservation: the hybrid path, where the prompt waits in the queue."""
        raise NotImplementedError

    async def reserve(self, rank: Rank, key: Key, capacity: int, deadline_s: float) -> DecodeCall:
        """Set room aside for `capacity` positions, kept `deadline_s`; Overloaded if there is none."""
        raise NotImplementedError
