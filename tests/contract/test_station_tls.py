"""Mutual TLS between stations: whom a server hears, whom a client believes, renewal."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from diptych.core.errors import Lost
from diptych.core.ids import WorkerId
from diptych.engine.tier import Owner
from diptych.kvcache_store.client import StoreTier
from diptych.router import client as routers
from diptych.router.client import RouterClient, Want
from diptych.testing import fleet
from diptych.testing.papers import ANSWER_S, Papers, refusal, shown
from diptych.testing.stores import Text, running_store
from diptych.transport.authority import Files
from diptych.transport.channel import connect
from diptych.transport.roles import ROLE_REFUSED, Holder
from diptych.transport.server import Server
from diptych.transport.tls import Credentials

PROMPT = Text("alice", range(12))
WANT = Want("r", prompt_len=10, max_new=7, deadline_s=0.5)


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "certificates")


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
            with pytest.raises(Lost, match="does it ask for a certificate"):
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
