"""Front door of prefill workers: run a prompt, follow it, give it up; fetch rights for its KV."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from diptych.core.ids import Rank
from diptych.core.request import Generation
from diptych.core.step import Row
from diptych.transport.session import SessionPool


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt is queued; its KV will be fetched with this sealed ticket."""

    ticket: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """Positions computed so far; the last chunk's start is the time to choose a decode worker."""

    tokens: int
    last_chunk_started: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """The first token; the last event. Without a finish the KV waits under the ticket."""

    row: Row


Event = Accepted | Progress | Tokens


class PrefillCall:
    """One prompt at one prefill worker. Iterate for its events, `Tokens` being the last.

    Raises Lost when the worker dies or falls silent, Expired past the deadline, and whatever the
    worker refused it with.
    """

    def __aiter__(self) -> AsyncIterator[Event]:
        raise NotImplementedError

    async def renew(self) -> bool:
        """Prolong the ticket's lease while a decode worker is awaited; False if it is over."""
        raise NotImplementedError

    async def cancel(self) -> None:
        """Give the prompt up wherever it stands, held KV included. Twice is once."""
        raise NotImplementedError


class PrefillClient:
    """Opens calls over the gateway's sessions."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    def open(self, rank: Rank, generation: Generation, deadline_s: float) -> PrefillCall:
        """A call that starts when it is first iterated; `deadline_s` bounds the first token."""
        raise NotImplementedError
