"""The other routers of the fleet: follows what each of them says that it carries."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc.aio

from diptych.contract import router_pb2 as pb
from diptych.contract import router_pb2_grpc as pb_grpc
from diptych.core.errors import DiptychError, Lost
from diptych.core.ids import Incarnation
from diptych.router import wire
from diptych.router.sharing import Sharing
from diptych.transport.channel import Backoff, Dial, connect
from diptych.transport.errors import from_rpc

log = logging.getLogger(__name__)

SILENT_S = 1.0  # a peer speaks twice in that time at least
AGAIN_CAP_S = 1.0


class Peers:
    """Listens to every other router, for ever. One that is silent or gone carries nothing here."""

    def __init__(
        self,
        addresses: Sequence[str],
        sharing: Sharing,
        on_news: Callable[[], None] = lambda: None,
        *,
        dial: Dial = connect,
    ) -> None:
        self._fixed = tuple(addresses)
        self._sharing = sharing
        self._on_news = on_news
        self._dial = dial
        self._addresses = self._fixed
        self._group: asyncio.TaskGroup | None = None
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._lives: dict[str, Incarnation] = {}  # of those that are heard
        self._selves: set[str] = set()  # addresses that are our own
        self._count()

    def use(self, addresses: Sequence[str]) -> None:
        """These are there, besides those that were given at first."""
        self._addresses = tuple(dict.fromkeys((*self._fixed, *addresses)))
        self._selves &= set(self._addresses)
        self._keep()

    async def run(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._keep()
            await asyncio.Event().wait()

    def _keep(self) -> None:
        """A task for each of them, and for nobody else."""
        if self._group is not None:
            for address in self._addresses:
                if address not in self._listening and address not in self._selves:
                    self._listening[address] = self._group.create_task(self._listen(address))
            for address in self._listening.keys() - set(self._addresses):
                self._listening.pop(address).cancel()
        self._count()

    def _count(self) -> None:
        known = [address for address in self._addresses if address not in self._selves]
        self._sharing.count(len(known), sum(address not in self._lives for address in known))

    async def _listen(self, address: str) -> None:
        backoff = Backoff(first_s=0.1, cap_s=AGAIN_CAP_S)
        channel = self._dial(address)
        stub = pb_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        try:
            while address not in self._selves:
                try:
                    await self._follow(address, stub, backoff)
                except DiptychError as error:
                    if address in self._lives or not backoff.failures:
                        log.warning("router is not heard at=%s: %s", address, error)
                finally:
                    self._lose(address)
                await asyncio.sleep(backoff.failed())
        finally:
            await channel.close()

    async def _follow(self, address: str, stub: pb_grpc.RouterStub, backoff: Backoff) -> None:
        call = stub.ShareLedger(pb.ShareRequest(router_life=self._sharing.life))
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    raise Lost("it ended the stream")
                backoff.succeeded()
                self._heard(address, message)
                if address in self._selves:
                    return
        except TimeoutError:
            raise Lost(f"silent for {SILENT_S:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        finally:
            call.cancel()

    def _heard(self, address: str, message: pb.LedgerShare) -> None:
        share = wire.share_from_pb(message)
        if share.router == self._sharing.life:
            self._selves.add(address)  # the lists of all routers may be the same
            self._listening.pop(address, None)
            self._count()
            return
        if self._lives.get(address) != share.router:
            self._forget(address)
            log.info("router is heard at=%s", address)
            self._lives[address] = share.router
            self._count()
        self._sharing.heard(share, asyncio.get_running_loop().time())
        self._on_news()

    def _lose(self, address: str) -> None:
        if address in self._lives:
            self._forget(address)
            self._count()
            self._on_news()

    def _forget(self, address: str) -> None:
        """Its share goes, unless the same router is heard at another address, too."""
        life = self._lives.pop(address, None)
        if life is not None and life not in self._lives.values():
            self._sharing.lost(life)
