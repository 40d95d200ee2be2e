"""Who may call what: the table, held by real servers of every role."""

import asyncio
import importlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from diptych import contract
from diptych.contract import router_pb2, worker_pb2
from diptych.contract.router_pb2_grpc import RouterStub
from diptych.contract.worker_pb2_grpc import BlocksStub
from diptych.core.blocks import chain
from diptych.core.errors import DiptychError, Refused
from diptych.core.ids import Incarnation, Key, WorkerId
from diptych.core.phases import Role
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeClient
from diptych.kvcache_store import client as kvcache
from diptych.kvcache_store.client import StoreClient, Transport
from diptych.kvcache_store.service import StoreService
from diptych.prefill_service.client import Accepted, HolderClient, PrefillClient, Tokens
from diptych.router import client as routers
from diptych.router import wire
from diptych.router.client import Drain, Join, RouterClient, Want
from diptych.router.dispatcher import Dispatcher
from diptych.router.registry import StreamRegistry
from diptych.router.service import RouterService
from diptych.telemetry.metrics import Metrics
from diptych.testing import fleet
from diptych.testing.clock import settle
from diptych.testing.papers import ANSWER_S, Papers, refusal
from diptych.testing.scripted import continuation
from diptych.testing.stores import Shelf, Text, bring, running_store
from diptych.testing.workers import decode_worker, prefill_worker
from diptych.transport.channel import call, connect
from diptych.transport.errors import from_rpc
from diptych.transport.frames import PartKind, Receiver
from diptych.transport.roles import CALLERS, ROLE_REFUSED, Station
from diptych.transport.session import SessionPool
from diptych.transport.tls import dial_of

PROMPT = Text("alice", range(12))
WANT = Want("r", prompt_len=10, max_new=7, deadline_s=0.5)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "certificates")


class Registrar:
    """Takes what a service registers, instead of a server."""

    def __init__(self) -> None:
        self.methods: set[str] = set()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        for handler in handlers:
            self.methods.update(handler._method_handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self.methods.update(f"/{service}/{name}" for name in handlers)


async def test_every_method_of_every_station_is_in_the_table(tmp_path: Path) -> None:
    registry, nothing = StreamRegistry(), cast(Any, None)
    registrars: dict[Station, Registrar] = defaultdict(Registrar)
    router = RouterService(Dispatcher(registry), registry, Metrics("router"))
    router.register(cast(Any, registrars[Station.ROUTER]))
    StoreService(nothing, nothing).register(cast(Any, registrars[Station.STORE]))
    async with prefill_worker() as prefill, decode_worker() as decode:
        prefill.service.register(cast(Any, registrars[Station.PREFILL]))
        decode.service.register(cast(Any, registrars[Station.DECODE]))
    served = {
        station: {method.removeprefix("/diptych.contract.") for method in registrar.methods}
        for station, registrar in registrars.items()
    }
    assert {at: {*methods} for at, methods in CALLERS.items()} == dict(served)
    # And nothing of the contract is served by a station that this test does not know.
    protos = (Path(contract.__file__).parent).glob("*_pb2.py")
    modules = [importlib.import_module(f"{contract.__name__}.{path.stem}") for path in protos]
    declared = {
        f"{name}/{method}"
        for module in modules
        for name, service in module.DESCRIPTOR.services_by_name.items()
        for method in service.methods_by_name
    }
    assert len(declared) > 15
    assert declared <= set().union(*served.values())


async def test_routers_hear_routers_alone(papers: Papers) -> None:
    async with (
        fleet.running_router(credentials=papers.of("router/router-1")) as one,
        fleet.running_router(credentials=papers.of("router/router-2")) as two,
    ):
        one.peers.use([two.address])
        await settle(lambda: (one.sharing.num_peers, one.sharing.num_stale) == (1, 0), ANSWER_S)
        async with papers.of("gateway/gateway-1").dial(two.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await RouterStub(channel).ShareLedger(router_pb2.ShareRequest()).read()
            assert from_rpc(refused.value).code == ROLE_REFUSED


async def test_each_role_may_do_its_own_and_nobody_else(papers: Papers) -> None:
    async with fleet.router(credentials=papers.of("router/router-1")) as address:
        operator = papers.of("operator/operator").dial
        assert not (await routers.status(address, ANSWER_S, dial=operator)).ready
        gateway = RouterClient(address, dial=papers.of("gateway/gateway-1").dial)
        lease = await gateway.place(WANT)
        await lease.close()
        await gateway.close()

        decode = papers.of("decode/decode-1").dial
        client = RouterClient(address, dial=decode)
        with pytest.raises(Refused) as caught:
            await anext(await client.place(WANT))
        await client.close()
        assert caught.value.code == ROLE_REFUSED
        assert caught.value.message == (
            "Router.Place of router: called by decode/decode-1; allowed to gateway"
        )
        assert (await refusal(address, decode)).code == ROLE_REFUSED
        with pytest.raises(Refused, match=r"Router.Drain .* by store/s; allowed to gateway, op"):
            dial = papers.of("store/s").dial
            await routers.drain(address, "decode-1", Drain(True, 0), ANSWER_S, dial=dial)


async def test_kv_moves_to_decode_workers_alone(papers: Papers) -> None:
    generation = Generation(Key("r", 1), tuple(range(3, 30)), Sampling(seed=5), 6, scope=b"s" * 16)
    prefill_papers, decode_papers = papers.of("prefill/prefill-1"), papers.of("decode/decode-1")
    pool = SessionPool("gateway-1", dial=papers.of("gateway/gateway-1").dial)
    async with (
        prefill_worker(credentials=prefill_papers) as prefill,
        decode_worker(credentials=decode_papers) as decode,
    ):
        prompt = PrefillClient(pool).open(prefill.rank, generation, ANSWER_S)
        ticket, first = b"", -1
        async for event in prompt:
            if isinstance(event, Accepted):
                ticket = event.ticket
            if isinstance(event, Tokens):
                (first,) = event.row.token_ids
        assert await prompt.renew()  # the gateway's own right, until a decode worker has it

        receiver = Receiver(
            chain(generation.scope, generation.prompt, 8)[:1], Shelf(PartKind.BLOCK, 1)
        )
        for thief in ("vision/vision-1", "gateway/gateway-2", "prefill/prefill-2", "operator/o"):
            dial = papers.of(thief).dial
            holder = HolderClient(prefill.rank.address, WorkerId("decode-1"), dial=dial)
            said = f"Blocks.GetBlocks of prefill: called by {thief}; allowed to decode"
            with pytest.raises(Refused, match=said):
                await holder.pull(ticket, receiver, silence_s=ANSWER_S)
            with pytest.raises(Refused, match=r"Blocks.Commit of prefill: .*; allowed to decode"):
                await holder.commit(ticket)
            await holder.close()

        taken = await DecodeClient(pool).reserve(
            decode.rank, generation.key, generation.capacity, ANSWER_S
        )
        after = Generation(
            generation.key, generation.prompt, generation.sampling, generation.max_new,
            scope=generation.scope, forced=(first,),
        )  # fmt: skip
        await taken.start(after, ticket, ANSWER_S)
        rest = [token async for row in taken for token in row.token_ids]
        assert [first, *rest] == continuation(generation)
        await pool.close()


@pytest.mark.parametrize("transport", [Transport.GRPC, Transport.SHM])
async def test_the_store_takes_and_gives_blocks_of_workers_alone(
    papers: Papers, tmp_path: Path, transport: Transport
) -> None:
    def client(holder: str) -> StoreClient:
        dial = papers.of(holder).dial
        return StoreClient(
            [store.address], WorkerId("w"), lookup_s=ANSWER_S, transport=transport, dial=dial
        )

    async with running_store(tmp_path / "s", credentials=papers.of("store/store-1")) as store:
        prefill, decode = client("prefill/prefill-1"), client("decode/decode-1")
        assert (await prefill.put(PROMPT.run(), deadline_s=ANSWER_S)).sent == 12
        assert (await bring(decode, PROMPT)).num_leading == 12
        await prefill.close()
        await decode.close()

        async with papers.of("gateway/gateway-1").dial(store.address) as channel:
            for method in ("PutBlocks", "ShareBlocks", "Watch"):
                path = f"/diptych.contract.Store/{method}"
                stream: Any = (
                    channel.unary_stream(path)(b"")
                    if method == "Watch"
                    else channel.stream_stream(path)()
                )
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stream.read()
                error = from_rpc(caught.value)
                assert error.code == ROLE_REFUSED
                assert f"Store.{method} of store: called by gateway/gateway-1" in error.message
        gateway = papers.of("gateway/gateway-1").dial
        assert (await kvcache.stats(store.address, ANSWER_S, dial=gateway)).memory_parts == 12
        assert store.tiers.counts.put == 12


async def test_nobody_joins_the_fleet_as_what_it_is_not(papers: Papers) -> None:
    join = Join("prefill-9", Role.PREFILL, "127.0.0.1:1", Incarnation(1), num_slots=4)
    up = router_pb2.ReportUp(join=wire.join_to_pb(join))
    async with fleet.router(credentials=papers.of("router/router-1")) as address:
        for holder, may in (("decode/decode-1", False), ("prefill/prefill-9", True)):
            async with papers.of(holder).dial(address) as channel:
                stream = RouterStub(channel).Report()
                await stream.write(up)
                async with asyncio.timeout(ANSWER_S):
                    if may:
                        assert (await stream.read()).WhichOneof("body") == "fleet"
                        continue
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await stream.read()
                assert from_rpc(caught.value).message == (
                    "decode/decode-1 says that it is a prefill"
                )


async def test_without_credentials_everything_is_as_it_was(papers: Papers) -> None:
    assert dial_of(None) is connect
    async with prefill_worker() as prefill, connect(prefill.rank.address) as channel:
        request = worker_pb2.TicketRequest(ticket=b"?", worker_id="anybody")
        with pytest.raises(DiptychError) as caught:
            await call(BlocksStub(channel).Renew, request, timeout_s=ANSWER_S)
    assert caught.value.code != ROLE_REFUSED
