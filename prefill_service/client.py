"""Front door of prefill workers: gateways run prompts here, decode workers fetch their KV."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from diptych.contract import worker_pb2 as pb
from diptych.contract.worker_pb2_grpc import BlocksStub
from diptych.core.errors import Broken
from diptych.core.ids import Rank, WorkerId
from diptych.core.request import Generation
from diptych.core.step import Row
from diptych.prefill_service.wire import is_valid, prefill_to_pb, request_to_pb
from diptych.transport.blocks import Pulled, pull_blocks
from diptych.transport.channel import Dial, call, connect, deadline
from diptych.transport.frames import Receiver
from diptych.transport.session import Conversation, SessionPool
from diptych.transport.wire import row_from_pb

TICKET_CALL_S = 5.0


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
    """One prompt at one prefill worker. Iterate once for its events, `Tokens` being the last.

    Raises Lost when the worker dies or falls silent, Expired past the deadline, and whatever the
    worker refused it with.
    """

    def __init__(
        self, pool: SessionPool, rank: Rank, generation: Generation, deadline_s: float
    ) -> None:
        self._pool = pool
        self._rank = rank
        self._generation = generation
        self._deadline_s = deadline_s
        self._conversation: Conversation | None = None
        self._ticket = b""

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._deadline_s
        async with deadline(self._deadline_s, "prefill", code="prefill_timeout"):
            conversation = await self._pool.converse(self._rank, self._generation.key)
        self._conversation = conversation
        event: Event | None = None
        try:
            conversation.send(prefill_to_pb(self._generation, ends_at - loop.time()))
            while not isinstance(event, Tokens):
                async with deadline(ends_at - loop.time(), "prefill", code="prefill_timeout"):
                    event = self._read(await conversation.receive())
                if isinstance(event, Tokens):
                    break
                yield event
        finally:
            if not isinstance(event, Tokens):
                conversation.cancel()
        if event.row.finish is None:
            conversation.close()
        else:
            conversation.finish()
        yield event

    def _read(self, said: object) -> Event:
        match said:
            case pb.Accepted():
                self._ticket = said.ticket
                return Accepted(said.ticket)
            case pb.ChunkDone():
                return Progress(said.tokens, said.last_chunk_started)
            case pb.StepRow():
                return Tokens(row_from_pb(said))
        raise Broken(f"a prefill worker said {type(said).__name__}")

    async def renew(self) -> bool:
        """Prolong the ticket's lease while a decode worker is awaited; False if it is over."""
        session = await self._pool.session(self._rank)
        request = request_to_pb(self._ticket, WorkerId(""))
        return is_valid(await call(session.blocks.Renew, request, timeout_s=TICKET_CALL_S))

    async def cancel(self) -> None:
        """Give the prompt up wherever it stands, held KV included. Twice is once."""
        if self._conversation is not None:
            self._conversation.cancel()


class PrefillClient:
    """Opens calls over the gateway's sessions."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool

    def open(self, rank: Rank, generation: Generation, deadline_s: float) -> PrefillCall:
        """A call that starts when it is first iterated; `deadline_s` bounds the first token."""
        return PrefillCall(self._pool, rank, generation, deadline_s)


class HolderClient:
    """Fetches KV from one prefill worker; small calls and bulk frames never share a connection."""

    def __init__(self, address: str, worker_id: WorkerId, *, dial: Dial = connect) -> None:
        self._worker_id = worker_id
        self._control = dial(address)
        self._bulk = dial(address)
        self._stub = BlocksStub(self._control)  # type: ignore[no-untyped-call]

    async def pull(self, ticket: bytes, receiver: Receiver, *, silence_s: float) -> Pulled:
        """Fetch what the receiver wants; see pull_blocks."""
        return await pull_blocks(self._bulk, ticket, self._worker_id, receiver, silence_s=silence_s)

    async def renew(self, ticket: bytes) -> bool:
        """Prolong the lease; False if it is over."""
        request = request_to_pb(ticket, self._worker_id)
        return is_valid(await call(self._stub.Renew, request, timeout_s=TICKET_CALL_S))

    async def commit(self, ticket: bytes) -> bool:
        """Take the KV over; False: it must not be used."""
        request = request_to_pb(ticket, self._worker_id)
        return is_valid(await call(self._stub.Commit, request, timeout_s=TICKET_CALL_S))

    async def abort(self, ticket: bytes, why: str) -> None:
        """Let the holder free the KV at once."""
        request = request_to_pb(ticket, self._worker_id, why)
        await call(self._stub.Abort, request, timeout_s=TICKET_CALL_S)

    async def close(self) -> None:
        await self._control.close()
        await self._bulk.close()
