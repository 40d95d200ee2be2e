"""The store's half of a shared window: gets and puts of a peer on this host, one after the other.

Bytes that are put are copied out of the window before they are checked: the peer can still write
there.
"""

from collections.abc import Awaitable, Callable

from diptych.core.errors import BadRequest
from diptych.kvcache_store import wire
from diptych.kvcache_store.intake import Intake
from diptych.kvcache_store.items import Origin
from diptych.kvcache_store.messages import Announcement, Fetch, Whose, WindowOffer
from diptych.kvcache_store.tiers import Tiers
from diptych.transport.channel import deadline
from diptych.transport.window import Filled, Window, parts_in

Receive = Callable[[], Awaitable[bytes | None]]
Send = Callable[[bytes], Awaitable[None]]


class SharedPeer:
    """One stream with one window."""

    def __init__(
        self,
        tiers: Tiers,
        origin_of: Callable[[Whose], Origin],
        receive: Receive,
        send: Send,
        silence_s: float,
    ) -> None:
        self._tiers = tiers
        self._origin_of = origin_of
        self._receive = receive
        self._send = send
        self._silence_s = silence_s

    async def serve(self) -> None:
        """Until the peer ends the stream. Between two works it may be silent for ever."""
        async with deadline(self._silence_s, "a window"):
            offer = await self._hear()
        if not isinstance(offer, WindowOffer):
            raise BadRequest("expected a window first")
        window = Window.attach(offer.pid, offer.fd, offer.num_slots, offer.slot_bytes, offer.nonce)
        try:
            await self._send(wire.share_down_to_bytes(None))
            while (work := await self._hear()) is not None:
                if isinstance(work, Fetch):
                    await self._fetch(work, window)
                elif isinstance(work, Announcement):
                    await self._put(work, window)
                else:
                    raise BadRequest("expected a fetch or a put")
        finally:
            window.close()

    async def _fetch(self, fetch: Fetch, window: Window) -> None:
        """Fill slots with what is here, up to the first part that is not."""
        if not 0 < fetch.part_bytes <= window.slot_bytes:
            raise BadRequest("part_bytes: expected what fits a slot", param="part_bytes")
        origin = self._origin_of(fetch.whose)
        at_once = window.slot_bytes // fetch.part_bytes
        free = list(range(window.num_slots))
        start, is_last = 0, False
        while not is_last:
            names = fetch.names[start : start + at_once]
            items = await self._tiers.read(origin, fetch.kind, names)
            parts = [item.part for item in items if len(item.payload) == fetch.part_bytes]
            start += len(parts)
            is_last = start == len(fetch.names) or not parts or len(parts) < len(items)
            if not free:
                free.append(await self._freed())
            filled = window.fill(free.pop(), parts, fetch.kind, is_last=is_last)
            await self._send(wire.share_down_to_bytes(filled))
        while len(free) < window.num_slots:
            free.append(await self._freed())

    async def _put(self, announced: Announcement, window: Window) -> None:
        """Say what is wanted, take it slot by slot, say what became of it."""
        intake = Intake(self._tiers, announced, self._origin_of(announced.whose))
        await self._send(wire.share_down_to_bytes(intake.arrivals.missing))
        while not intake.arrivals.has_ended:
            async with deadline(self._silence_s, "the next slot", code="transfer_silent"):
                filled = await self._hear()
            if not isinstance(filled, Filled):
                raise BadRequest("expected a filled slot")
            data = memoryview(bytes(window.slot(filled.slot)[: sum(filled.sizes)]))
            items = intake.arrivals.take(parts_in(data, filled), is_last=filled.is_last)
            await self._send(wire.share_down_to_bytes(filled.slot))
            await intake.store(items)
        await self._send(wire.share_down_to_bytes(await intake.outcome()))

    async def _freed(self) -> int:
        async with deadline(self._silence_s, "a free slot", code="no_credit"):
            freed = await self._hear()
        if not isinstance(freed, int):
            raise BadRequest("expected a freed slot")
        return freed

    async def _hear(self) -> WindowOffer | Fetch | Announcement | Filled | int | None:
        data = await self._receive()
        return None if data is None else wire.share_up_from_bytes(data)
