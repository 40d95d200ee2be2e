"""Front door of decode workers: reserve room, start from a ticket or a prompt, follow, give up."""

import asyncio
from collections.abc import AsyncIterator

from diptych.contract import worker_pb2 as pb
from diptych.core.errors import Broken, Overloaded
from diptych.core.ids import Key, Rank
from diptych.core.request import Generation
from diptych.core.step import Row
from diptych.decode_service.wire import reserve_to_pb, start_to_pb
from diptych.transport.channel import deadline
from diptych.transport.session import Conversation, SessionPool
from diptych.transport.wire import row_from_pb

_NEXT = "the next token"


class DecodeCall:
    """One sequence at one decode worker. After `start`, iterate once; a row with finish is last.

    Raises Lost when the worker dies or falls silent; with code TICKET_GONE the prompt must be
    computed again, with any other the ticket is still good for another decode worker. Raises
    Expired past the deadline, and whatever the worker refused it with.
    """

    def __init__(self, pool: SessionPool, rank: Rank, key: Key) -> None:
        self._pool = pool
        self._rank = rank
        self._key = key
        self._conversation: Conversation | None = None
        self._token_s = 0.0
        self._due_s = 0.0

    async def start(self, generation: Generation, ticket: bytes | None, deadline_s: float) -> None:
        """Begin; without a ticket the worker computes the prompt. `deadline_s` to each token."""
        self._token_s = deadline_s
        self._due_s = asyncio.get_running_loop().time() + deadline_s
        conversation = await self._connect(deadline_s)
        conversation.send(start_to_pb(generation, ticket or b"", deadline_s))

    async def __aiter__(self) -> AsyncIterator[Row]:
        assert self._conversation is not None, "start comes first"
        loop = asyncio.get_running_loop()
        row: Row | None = None
        try:
            while row is None or row.finish is None:
                async with deadline(self._due_s - loop.time(), _NEXT, code="decode_timeout"):
                    row = await _next_row(self._conversation)
                if row.finish is not None:
                    self._conversation.finish()
                yield row
                self._due_s = loop.time() + self._token_s
        finally:
            self._conversation.cancel()

    async def cancel(self) -> None:
        """Give the sequence up wherever it stands. Twice is once."""
        if self._conversation is not None:
            self._conversation.cancel()

    async def reserve(self, capacity: int, deadline_s: float) -> None:
        """Ask for room; see DecodeClient.reserve."""
        conversation = await self._connect(deadline_s)
        said: object = None
        try:
            conversation.send(reserve_to_pb(self._key, capacity, deadline_s))
            async with deadline(deadline_s, "reserving", code="reserve_timeout"):
                said = await conversation.receive()
        finally:
            if not isinstance(said, pb.Reserved | pb.Busy):
                conversation.cancel()
        if isinstance(said, pb.Busy):
            conversation.finish()
            retry_after_s = said.retry_after_ms / 1000
            raise Overloaded(f"{self._rank.worker_id} has no room", retry_after_s=retry_after_s)
        if not isinstance(said, pb.Reserved):
            raise Broken(f"a decode worker answered Reserve with {type(said).__name__}")

    async def _connect(self, deadline_s: float) -> Conversation:
        if self._conversation is None:
            async with deadline(deadline_s, f"reaching {self._rank.worker_id}"):
                self._conversation = await self._pool.converse(self._rank, self._key)
        return self._conversation


async def _next_row(conversation: Conversation) -> Row:
    while True:
        said = await conversation.receive()
        if isinstance(said, pb.StepRow):
            return row_from_pb(said)
        if not isinstance(said, pb.Accepted | pb.ChunkDone):
            raise Broken(f"a decode worker said {type(said).__name__}")


class DecodeClient:
    """Opens calls over the gateway's sessions."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    def open(self, rank: Rank, key: Key) -> DecodeCall:
        """A call without a reservation: the hybrid path, where the prompt waits in the queue."""
        return DecodeCall(self._pool, rank, key)

    async def reserve(self, rank: Rank, key: Key, capacity: int, deadline_s: float) -> DecodeCall:
        """Set room aside for `capacity` positions, kept `deadline_s`; Overloaded: there is none."""
        decode_call = DecodeCall(self._pool, rank, key)
        await decode_call.reserve(capacity, deadline_s)
        return decode_call
