"""Fetches a prompt's KV from the prefill worker that holds it, verifies it, takes it over."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from diptych.core.blocks import chain
from diptych.core.errors import (
    NOT_FETCHED,
    TICKET_GONE,
    BadRequest,
    DiptychError,
    Expired,
    Lost,
    Refused,
)
from diptych.core.ids import BlockHash, WorkerId
from diptych.core.request import Generation
from diptych.core.ticket import Ticket, unseal
from diptych.engine.port import EnginePort, Pages
from diptych.prefill_service.client import HolderClient
from diptych.transport.channel import Backoff, Dial, connect
from diptych.transport.frames import BadFrame, Fault, PartKind, Place, Receiver

log = logging.getLogger(__name__)

TRANSPORT, MODE = "grpc", "full_state"  # how KV comes, and what of a sequence: all of it
SILENCE_S = 5.0  # without a frame: as long as a session may be silent
TRIES = 2
RETRY_WITHIN_S = 3.0  # of the first try: a holder that took longer to fail is gone
RETRY_S = 0.5  # at first, half of it at least: a broken connection is made anew after 0.1 s
RENEW_EVERY_S = 5.0
CONCURRENT = 8
KEPT_HOLDERS = 32


@dataclass(slots=True)
class Transfer:
    """How one went."""

    result: str = "cancelled"  # "ok", or an error's code
    took_s: float = 0.0  # waiting for a turn and the commit included
    size_bytes: int = 0
    damaged: int = 0  # frames with a wrong checksum


@dataclass(frozen=True, slots=True)
class Destination:
    """The BlockWriter of one request: its reserved pages by name of part."""

    places: dict[BlockHash, Place]

    def place(self, name: BlockHash) -> Place:
        return self.places[name]


class Puller:
    """All transfers of this worker."""

    def __init__(
        self,
        engine: EnginePort,
        worker_id: WorkerId,
        secret: bytes,
        *,
        silence_s: float = SILENCE_S,
        renew_every_s: float = RENEW_EVERY_S,
        on_transfer: Callable[[Transfer], None] = lambda transfer: None,
        dial: Dial = connect,
    ) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._secret = secret
        self._silence_s = silence_s
        self._renew_every_s = renew_every_s
        self._on_transfer = on_transfer
        self._dial = dial
        self._turns = asyncio.Semaphore(CONCURRENT)
        self._holders: dict[str, HolderClient] = {}
        self._using: dict[str, int] = {}

    @property
    def num_pulls(self) -> int:
        """Transfers under way or waiting for their turn."""
        return sum(self._using.values())

    async def fetch(self, sealed: bytes, generation: Generation, pages: Pages) -> None:
        """Fill the pages with the ticket's KV and make it ours.

        Lost when the prompt must be computed again: with TICKET_GONE its lease is over, with
        NOT_FETCHED holder and we cannot exchange it. Refused when ticket and request or worker do
        not belong together. No byte is written after it returned or raised.
        """
        ticket = unseal(sealed, self._secret)
        check(ticket, generation, self._engine.namespace, self._engine.layout.grain)
        destination = self._destination(ticket, pages)
        with self._told() as transfer:
            await self._fetch(sealed, ticket, destination, transfer)

    async def _fetch(
        self, sealed: bytes, ticket: Ticket, destination: Destination, transfer: Transfer
    ) -> None:
        async with self._holder(ticket.address) as holder:
            pulling = asyncio.create_task(self._pull(holder, sealed, ticket, destination, transfer))
            renewing = asyncio.create_task(self._renew(holder, sealed, ticket))
            try:
                done, _ = await asyncio.wait(
                    (pulling, renewing), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
            finally:
                pulling.cancel()
                renewing.cancel()
                await asyncio.gather(pulling, renewing, return_exceptions=True)
            await _commit(holder, sealed, ticket)

    async def close(self) -> None:
        """Close all connections."""
        for holder in self._holders.values():
            await holder.close()
        self._holders.clear()

    def _destination(self, ticket: Ticket, pages: Pages) -> Destination:
        views = [self._engine.block(page) for page in pages.blocks]
        full = len(ticket.hashes)
        places = {
            name: Place(PartKind.BLOCK, view)
            for name, view in zip(ticket.hashes, views, strict=False)
        }
        if ticket.num_tokens % self._engine.layout.grain:
            places[ticket.tail_hash] = Place(PartKind.TAIL, views[full])
        places[ticket.slot_hash] = Place(PartKind.SLOT, self._engine.slot(pages.slot))
        return Destination(places)

    async def _pull(
        self,
        holder: HolderClient,
        sealed: bytes,
        ticket: Ticket,
        destination: Destination,
        transfer: Transfer,
    ) -> None:
        """Pull what is missing until nothing is, twice at most."""
        missing: Sequence[BlockHash] = tuple(destination.places)
        backoff = Backoff(RETRY_S)
        async with self._turns:
            loop = asyncio.get_running_loop()
            retry_until_s = loop.time() + RETRY_WITHIN_S
            for tries in range(1, TRIES + 1):
                receiver = Receiver(missing, destination)
                try:
                    pulled = await holder.pull(sealed, receiver, silence_s=self._silence_s)
                except (Lost, Expired) as error:
                    transfer.damaged += error.code == Fault.CHECKSUM
                    log.warning(
                        "pull failed request=%s from=%s parts=%d/%d code=%s",
                        ticket.key,
                        ticket.worker_id,
                        len(receiver.done),
                        len(missing),
                        error.code,
                    )
                    missing = tuple(name for name in missing if name not in receiver.done)
                    if tries == TRIES or error.code == TICKET_GONE or loop.time() > retry_until_s:
                        await _give_up(holder, sealed, ticket, missing, error)
                    await asyncio.sleep(backoff.failed())
                else:
                    transfer.size_bytes += pulled.size_bytes
                    log.debug(
                        "pulled request=%s bytes=%d frames=%d",
                        ticket.key,
                        pulled.size_bytes,
                        pulled.frames,
                    )
                    return

    async def _renew(self, holder: HolderClient, sealed: bytes, ticket: Ticket) -> None:
        """Keep the lease while we wait and pull; raises when it is over."""
        while True:
            await asyncio.sleep(self._renew_every_s)
            try:
                runs = await holder.renew(sealed)
            except (Lost, Expired) as error:  # the pull meets the same trouble and decides
                log.info("renewal failed request=%s code=%s", ticket.key, error.code)
                continue
            if not runs:
                raise _gone(ticket, "its lease is over")

    @contextmanager
    def _told(self) -> Iterator[Transfer]:
        """Tell the listener of a transfer when it is over."""
        transfer, began_s = Transfer(), time.monotonic()
        try:
            yield transfer
            transfer.result = "ok"
        except DiptychError as error:
            transfer.result = error.code
            raise
        finally:
            transfer.took_s = time.monotonic() - began_s
            self._on_transfer(transfer)

    @asynccontextmanager
    async def _holder(self, address: str) -> AsyncIterator[HolderClient]:
        holder = self._holders.pop(address, None) or HolderClient(
            address, self._worker_id, dial=self._dial
        )
        self._holders[address] = holder  # last in the order of use
        self._using[address] = self._using.get(address, 0) + 1
        try:
            yield holder
        finally:
            self._using[address] -= 1
            if not self._using[address]:
                del self._using[address]
            await self._close_old()

    async def _close_old(self) -> None:
        unused = [address for address in self._holders if address not in self._using]
        for address in unused[: max(0, len(self._holders) - KEPT_HOLDERS)]:
            await self._holders.pop(address).close()


def check(ticket: Ticket, generation: Generation, namespace: bytes, grain: int) -> None:
    """Refuse a ticket of another fleet, request or text. Pure."""
    if ticket.namespace != namespace:
        raise Refused(f"{ticket.worker_id} serves another model, layout or numerics than we do")
    if ticket.key.request_id != generation.key.request_id:
        raise BadRequest("the ticket is another request's", param="ticket")
    written = generation.tokens[:-1]  # the last one was sampled, not written
    if ticket.num_tokens != len(written) or ticket.scope != generation.scope:
        raise BadRequest(
            f"the ticket is for {ticket.num_tokens} positions, the request has {len(written)}",
            param="ticket",
        )
    if list(ticket.hashes) != chain(generation.scope, written, grain):
        raise BadRequest("the ticket's blocks are of another text", param="ticket")


async def _commit(holder: HolderClient, sealed: bytes, ticket: Ticket) -> None:
    try:
        is_ours = await holder.commit(sealed)
    except (Lost, Expired) as error:  # maybe freed, maybe not: unusable either way
        raise _not_fetched(ticket, (), error) from error
    if not is_ours:
        raise _gone(ticket, "it lapsed before the commit")


async def _give_up(
    holder: HolderClient,
    sealed: bytes,
    ticket: Ticket,
    missing: Sequence[BlockHash],
    error: DiptychError,
) -> None:
    """Let a holder that answers free the KV; say that the prompt must be computed again."""
    if error.code == TICKET_GONE:
        raise _gone(ticket, error.message) from error
    if isinstance(error, BadFrame):
        try:
            await holder.abort(sealed, error.code)
        except (Lost, Expired) as unreachable:
            log.info("abort failed request=%s code=%s", ticket.key, unreachable.code)
    raise _not_fetched(ticket, missing, error) from error


def _not_fetched(ticket: Ticket, missing: Sequence[BlockHash], error: DiptychError) -> Lost:
    blocks = ticket.hashes or (ticket.tail_hash,)
    arrived = len(set(blocks).difference(missing))
    return Lost(
        f"{arrived} of {len(blocks)} blocks arrived from {ticket.worker_id} ({error.code})",
        code=NOT_FETCHED,
    )


def _gone(ticket: Ticket, why: str) -> Lost:
    return Lost(f"the KV of {ticket.key} at {ticket.worker_id} is lost: {why}", code=TICKET_GONE)
