"""Prompts whose KV waits to be fetched: pages, checksums, leases, and who may read them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from diptych.core.blocks import chain
from diptych.core.errors import TICKET_GONE, Broken, Expired, Lost, Refused
from diptych.core.ids import BlockHash, Key, WorkerId
from diptych.core.request import Generation
from diptych.core.ticket import Ticket, new_ticket_id, seal, unseal
from diptych.engine.port import EnginePort, Pages
from diptych.prefill_service.tickets import Tickets
from diptych.transport.frames import Part, PartKind, checksum
from diptych.transport.session_server import Identity

log = logging.getLogger(__name__)

READY_S = 5.0  # from the first token's arrival at the gateway to checksums made: far less


@dataclass(eq=False, slots=True)
class _Holding:
    """What a ticket stands for; `parts` is filled when the KV is complete."""

    ticket: Ticket
    parts: dict[BlockHash, Part]
    ready: asyncio.Event


class Holdings:
    """All tickets of this worker."""

    def __init__(
        self,
        engine: EnginePort,
        identity: Identity,
        secret: bytes,
        on_free: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._secret = secret
        self._on_free = on_free
        self._clock = clock
        self._holdings: dict[bytes, _Holding] = {}
        self._changed = asyncio.Event()
        self.tickets = Tickets()
        self.address = ""  # of our server, known once it is bound

    def expect(self, generation: Generation, deadline_s: float) -> bytes:
        """Issue the sealed ticket of a prompt that is about to be computed."""
        ticket = Ticket(
            ticket_id=new_ticket_id(),
            key=generation.key,
            scope=generation.scope,
            worker_id=self._identity.worker_id,
            address=self.address,
            incarnation=self._identity.incarnation,
            namespace=self._identity.namespace,
            hashes=tuple(chain(generation.scope, generation.tokens, self._engine.layout.grain)),
            num_tokens=len(generation.tokens),
        )
        self._holdings[ticket.ticket_id] = _Holding(ticket, {}, asyncio.Event())
        self.tickets.expect(ticket.ticket_id, ticket.key, self._clock(), deadline_s)
        self._changed.set()
        return seal(ticket, self._secret)

    def hold(self, key: Key, pages: Pages) -> None:
        """The prompt is computed: checksum its pages and let them be fetched."""
        lease = self.tickets.of(key)
        if lease is None or not self.tickets.hold(lease.ticket_id, self._clock()):
            raise Lost(f"the ticket of {key} is over", code=TICKET_GONE)
        holding = self._holdings[lease.ticket_id]
        ticket = holding.ticket
        if pages.num_tokens != ticket.num_tokens:
            raise Broken(f"{pages.num_tokens} positions written, {ticket.num_tokens} promised")
        views = [self._engine.block(page) for page in pages.blocks]
        full = len(ticket.hashes)
        for name, view in zip(ticket.hashes, views, strict=False):
            holding.parts[name] = _part(PartKind.BLOCK, name, view)
        if len(views) > full and ticket.num_tokens % self._engine.layout.grain:
            holding.parts[ticket.tail_hash] = _part(PartKind.TAIL, ticket.tail_hash, views[full])
        slot = self._engine.slot(pages.slot)
        holding.parts[ticket.slot_hash] = _part(PartKind.SLOT, ticket.slot_hash, slot)
        holding.ready.set()
        self._changed.set()

    async def open(self, sealed: bytes, asker: WorkerId) -> "Reader":
        """Let a worker read what a ticket stands for, waiting until it is complete."""
        ticket = unseal(sealed, self._secret)
        if ticket.namespace != self._identity.namespace:
            raise Refused(f"{asker} holds a ticket of another model, layout or numerics")
        holding = self._find(ticket)
        if holding is None:
            raise _gone(ticket)
        try:
            async with asyncio.timeout(READY_S):
                await holding.ready.wait()
        except TimeoutError as error:
            raise Expired(f"the KV of {ticket.key} is not complete yet") from error
        return Reader(self, ticket)

    def read(self, ticket: Ticket, name: BlockHash) -> Part:
        """A part, only while the lease runs: pages are freed after their lease has ended."""
        holding = self._find(ticket)
        if holding is None:
            raise _gone(ticket)
        part = holding.parts.get(name)
        if part is None:
            raise Lost(f"the ticket of {ticket.key} has no part {name.hex()}", code="unknown_block")
        return part

    def renew(self, sealed: bytes) -> float | None:
        """Prolong a lease; seconds left, None if it is over."""
        ticket = unseal(sealed, self._secret)
        if self._find(ticket) is None:
            return None
        left_s = self.tickets.renew(ticket.ticket_id, self._clock())
        self._changed.set()
        return left_s

    def commit(self, sealed: bytes) -> bool:
        """The KV was fetched and verified: end the lease. False: it must not be used."""
        ticket = unseal(sealed, self._secret)
        if self._find(ticket) is None:
            return False
        key = self.tickets.take(ticket.ticket_id, self._clock())
        if key is None:
            return False
        self._free(ticket.ticket_id, key)
        return True

    def abort(self, sealed: bytes) -> bool:
        """The KV will not be fetched."""
        ticket = unseal(sealed, self._secret)
        key = self.tickets.drop(ticket.ticket_id)
        if key is None:
            return False
        self._free(ticket.ticket_id, key)
        return True

    def forget(self, key: Key) -> None:
        """The request is over; its pages are the caller's to free."""
        lease = self.tickets.of(key)
        if lease is not None:
            self.tickets.drop(lease.ticket_id)
            del self._holdings[lease.ticket_id]
            self._changed.set()

    async def run(self) -> None:
        """Free what lapses, for ever."""
        while True:
            self._changed.clear()
            next_s = self.tickets.next_expiry_s
            wait_s = None if next_s is None else max(0.0, next_s - self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            self.sweep()

    def sweep(self) -> None:
        """Free what has lapsed by now."""
        for lease in self.tickets.lapse(self._clock()):
            log.warning("lease lapsed request=%s held=%s", lease.key, lease.is_held)
            self._free(lease.ticket_id, lease.key)

    def _free(self, ticket_id: bytes, key: Key) -> None:
        """After the lease has ended: no more reads at once, no more pages soon."""
        self._holdings.pop(ticket_id, None)
        self._changed.set()
        self._on_free(key)

    def _find(self, ticket: Ticket) -> _Holding | None:
        if ticket.incarnation != self._identity.incarnation:
            return None
        if self.tickets.find(ticket.ticket_id, self._clock()) is None:
            return None
        return self._holdings.get(ticket.ticket_id)


@dataclass(frozen=True, slots=True)
class Reader:
    """The BlockReader of one ticket."""

    holdings: Holdings
    ticket: Ticket

    def read(self, name: BlockHash) -> Part:
        return self.holdings.read(self.ticket, name)


def _part(kind: PartKind, name: BlockHash, view: memoryview) -> Part:
    return Part(kind, name, checksum(view), view)


def _gone(ticket: Ticket) -> Lost:
    return Lost(f"the lease of {ticket.key} is over", code=TICKET_GONE)
