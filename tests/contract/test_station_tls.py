"""Mutual TLS between stations: whom a real server lets in, what it says to others, renewal."""

import asyncio
import datetime
import importlib
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from diptych import contract
from diptych.contract import router_pb2, worker_pb2
from diptych.contract.router_pb2_grpc import RouterStub
from diptych.contract.worker_pb2_grpc import BlocksStub
from diptych.core.blocks import chain
from diptych.core.errors import DiptychError, Lost, Refused
from diptych.core.ids import Incarnation, Key, WorkerId
from diptych.core.phases import Role
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeClient
from diptych.engine.tier import Owner
from diptych.kvcache_store import client as kvcache
from diptych.kvcache_store.client import StoreClient, StoreTier, Transport
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
from diptych.testing.papers import Papers
from diptych.testing.scripted import continuation
from diptych.testing.stores import Shelf, Text, bring, running_store
from diptych.testing.workers import decode_worker, prefill_worker
from diptych.transport.authority import Files
from diptych.transport.channel import Dial, call, connect
from diptych.transport.errors import from_rpc
from diptych.transport.frames import PartKind, Receiver
from diptych.transport.roles import CALLERS, ROLE_REFUSED, Holder, Station
from diptych.transport.server import Server
from diptych.transport.session import SessionPool
from diptych.transport.tls import Credentials, dial_of

ANSWER_S = 5.0
PROMPT = Text("alice", range(12))
WANT = Want("r", prompt_len=10, max_new=7, deadline_s=0.5)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "certificates")


def shown(files: Files, ca: Path | None = None) -> Dial:
    """How somebody dials who looks at nothing that `Credentials` looks at."""
    own = grpc.ssl_channel_credentials(
        (ca or files.ca).read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    return lambda address: grpc.aio.secure_channel(address, own)


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
    coming = {"Router/ShareLedger"}  # of routers that share what they know
    assert {at: {*methods} - coming for at, methods in CALLERS.items()} == {
        at: methods - coming for at, methods in served.items()
    }
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


async def refusal(address: str, dial: Dial) -> DiptychError:
    """What becomes of an operator's question."""
    async with asyncio.timeout(ANSWER_S):
        with pytest.raises(DiptychError) as caught:
            await routers.status(address, ANSWER_S, dial=dial)
    return caught.value


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
            for method in ("PutBlocks", "ShareBlocks"):
                stream: Any = channel.stream_stream(f"/diptych.contract.Store/{method}")()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stream.read()
                error = from_rpc(caught.value)
                assert error.code == ROLE_REFUSED
                assert f"Store.{method} of store: called by gateway/gateway-1" in error.message
        gateway = papers.of("gateway/gateway-1").dial
        assert (await kvcache.stats(store.address, ANSWER_S, dial=gateway)).memory_parts == 12
        assert store.tiers.counts.put == 12


async def test_who_has_no_certificate_or_a_wrong_one_is_not_heard(
    papers: Papers, tmp_path: Path
) -> None:
    foreign = Papers(tmp_path / "foreign")
    ours = papers.authority.folder / "ca.crt"
    nothing = grpc.ssl_channel_credentials(ours.read_bytes())
    dials = {
        "none": lambda at: grpc.aio.secure_channel(at, nothing),
        "foreign": shown(foreign.issue("operator/operator"), ours),
        "expired": shown(papers.issue("operator/operator", days=-0.001)),
        "plain": connect,
    }
    async with fleet.router(credentials=papers.of("router/router-1")) as address:
        for why, dial in dials.items():
            error = await refusal(address, dial)
            assert isinstance(error, Lost), why
            assert "does it ask for a certificate (--station-ca), or refuse ours?" in error.message
        operator = papers.of("operator/operator").dial
        assert await routers.status(address, ANSWER_S, dial=operator)


async def test_a_plain_peer_of_a_secure_one_ends_within_its_deadline(
    papers: Papers, tmp_path: Path
) -> None:
    async with asyncio.timeout(ANSWER_S):
        async with fleet.router(credentials=papers.of("router/router-1")) as address:
            plain = RouterClient(address)  # it would wait for a router that comes back
            with pytest.raises(Lost, match=r"the router did not answer for 0.5 s"):
                await plain.place(WANT)
            await plain.close()
        async with running_store(tmp_path, credentials=papers.of("store/store-1")) as store:
            tier = StoreTier([store.address], WorkerId("w")).bind(b"n" * 16, b"l" * 16)
            owner = Owner("alice", PROMPT.whose.scope, "chat")
            assert not (await tier.find(owner, PROMPT.chain, 0)).stored
            await tier.close()
        async with fleet.router() as address:
            secure = await refusal(address, papers.of("operator/operator").dial)
            assert "it talks without TLS, and we were given --station-ca" in secure.message


async def test_a_client_believes_only_servers_of_its_ca_that_are_the_host_it_dialled(
    papers: Papers, tmp_path: Path
) -> None:
    foreign = Papers(tmp_path / "foreign")
    operator = papers.of("operator/operator").dial
    async with fleet.router(credentials=foreign.of("router/router-1")) as address:
        assert "of another CA than --station-ca" in (await refusal(address, operator)).message
    elsewhere = papers.authority.issue(Holder.read("router/router-1"), ["router-1.example"])
    async with fleet.router(credentials=Credentials(elsewhere)) as address:
        assert "names other hosts" in (await refusal(address, operator)).message


@dataclass
class Heard:
    """A router that keeps who called, by which certificate, over which connection."""

    calls: list[tuple[int, str]] = field(default_factory=list)  # serial number, peer
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def register(self, server: grpc.aio.Server) -> None:
        one = grpc.unary_unary_rpc_method_handler(self._status)
        many = grpc.unary_stream_rpc_method_handler(self._watch)
        handlers: Any = {"Status": one, "Watch": many}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("diptych.contract.Router", handlers),)
        )

    async def _status(self, request: bytes, context: Any) -> bytes:
        [pem] = context.auth_context()["x509_pem_cert"]
        serial = x509.load_pem_x509_certificate(pem).serial_number
        self.calls.append((serial, context.peer()))
        return b""

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b""
        await self.go_on.wait()
        yield b""


@asynccontextmanager
async def hearing(credentials: Credentials) -> AsyncIterator[tuple[Heard, str]]:
    heard = Heard()
    async with Server(
        "127.0.0.1:0", [heard.register], grace_s=0, credentials=credentials
    ) as server:
        yield heard, server.address


def serial_of(files: Files) -> int:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes()).serial_number


async def serial_at(address: str, files: Files) -> int:
    """Of the certificate that a server shows now."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(ANSWER_S):
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
    return x509.load_der_x509_certificate(der).serial_number


async def test_a_server_shows_a_renewed_certificate_to_the_next_who_comes(papers: Papers) -> None:
    before = papers.issue("router/router-1")
    operator = papers.issue("operator/operator")
    old = serial_of(before)
    async with (
        hearing(Credentials(before)) as (heard, address),
        shown(operator)(address) as channel,
    ):
        ask = channel.unary_unary("/diptych.contract.Router/Status")
        await ask(b"", timeout=ANSWER_S)
        assert await serial_at(address, operator) == old
        new = serial_of(papers.issue("router/router-1"))
        assert await serial_at(address, operator) == new != old
        await ask(b"", timeout=ANSWER_S)
        assert len(heard.calls) == 2
        assert len(set(heard.calls)) == 1  # who was there stays there


async def test_a_client_uses_a_renewed_certificate_for_new_calls_and_ends_old_ones_in_peace(
    papers: Papers,
) -> None:
    before = papers.issue("operator/operator")
    old = serial_of(before)
    async with (
        hearing(papers.of("router/router-1")) as (heard, address),
        Credentials(before).dial(address) as channel,
    ):
        ask = channel.unary_unary("/diptych.contract.Router/Status")
        watch: Any = channel.unary_stream("/diptych.contract.Router/Watch")(b"")
        assert await watch.read() == b""
        await ask(b"", timeout=ANSWER_S)
        new = serial_of(papers.issue("operator/operator"))
        for _ in range(2):
            await ask(b"", timeout=ANSWER_S)
        serials, peers = zip(*heard.calls, strict=True)
        assert serials == (old, new, new)
        assert peers[0] != peers[1] == peers[2]
        heard.go_on.set()
        async with asyncio.timeout(ANSWER_S):
            assert [await watch.read(), await watch.read()] == [b"", grpc.aio.EOF]


async def test_a_new_ca_beside_the_old_one_lets_in_who_has_a_certificate_of_either(
    papers: Papers, tmp_path: Path
) -> None:
    following = Papers(tmp_path / "following")
    files = papers.issue("router/router-1")
    theirs = following.issue("operator/operator")
    async with fleet.router(credentials=Credentials(files)) as address:
        stranger = shown(theirs, files.ca)
        assert isinstance(await refusal(address, stranger), Lost)
        both = files.ca.read_bytes() + theirs.ca.read_bytes()
        files.ca.write_bytes(both)
        assert await routers.status(address, ANSWER_S, dial=shown(theirs, files.ca))
        operator = papers.of("operator/operator").dial
        assert await routers.status(address, ANSWER_S, dial=operator)


async def test_only_the_uri_of_a_certificate_says_who_its_holder_is(papers: Papers) -> None:
    uri = "spiffe://diptych/operator/operator"
    names: dict[str, list[x509.GeneralName]] = {
        "nothing but its common name": [],
        "a host of that name": [x509.DNSName(uri)],
        "an address of mail": [x509.RFC822Name("operator@diptych")],
        "two at a time": [
            x509.UniformResourceIdentifier(uri),
            x509.UniformResourceIdentifier("spiffe://diptych/gateway/g"),
        ],
        "of another domain": [x509.UniformResourceIdentifier("spiffe://other/operator/operator")],
        "of no role": [x509.UniformResourceIdentifier("spiffe://diptych/king/operator")],
    }
    async with fleet.router(credentials=papers.of("router/router-1")) as address:
        for what, alternative in names.items():
            error = await refusal(address, shown(forged(papers, alternative)))
            assert error.code == ROLE_REFUSED, what
            assert "called by a certificate of no station" in error.message


def forged(papers: Papers, names: list[x509.GeneralName]) -> Files:
    """A certificate that our CA signed, with whatever names in it."""
    files = papers.issue("operator/operator")
    key = serialization.load_pem_private_key(
        (papers.authority.folder / "ca.key").read_bytes(), password=None
    )
    known = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    draft = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator/operator")]))
        .issuer_name(known.issuer)
        .public_key(known.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )
    if names:
        draft = draft.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = draft.sign(key, hashes.SHA256())  # type: ignore[arg-type]
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return files


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
