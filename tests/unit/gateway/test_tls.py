"""TLS of the public port."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from diptych.core.errors import Misconfigured
from diptych.gateway import tls


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


def put(ca: trustme.CA, folder: Path, name: str = "gateway.test") -> tuple[Path, Path]:
    issued = ca.issue_cert(name)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    key.write_bytes(issued.private_key_pem.bytes())
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return certificate, key


async def handshake(
    context: ssl.SSLContext, client: ssl.SSLContext, name: str = "gateway.test"
) -> tuple[bytes, str]:
    """The certificate that a server with the context shows, and the protocol spoken."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hi")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        port = server.sockets[0].getsockname()[1]
        return await asyncio.to_thread(shown_at, port, client, name)
    finally:
        server.close()
        await server.wait_closed()


def shown_at(port: int, client: ssl.SSLContext, name: str) -> tuple[bytes, str]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        client.wrap_socket(plain, server_hostname=name) as connection,
    ):
        if connection.recv(2) != b"hi":
            raise ConnectionError("turned away")
        shown, version = connection.getpeercert(True), connection.version()
        assert shown is not None
        assert version is not None
        return shown, version


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    client = ssl.create_default_context()
    ca.configure_trust(client)
    return client


async def test_a_replaced_certificate_is_used_from_the_next_handshake(
    ca: trustme.CA, tmp_path: Path
) -> None:
    certificate = tls.Certificate(*put(ca, tmp_path))
    context, client = certificate.context(), trusting(ca)
    first, version = await handshake(context, client)
    assert version in ("TLSv1.2", "TLSv1.3")
    assert (await handshake(context, client))[0] == first
    put(ca, tmp_path)
    second, _ = await handshake(context, client)
    assert second != first
    assert certificate.num_reloads == 1


async def test_a_broken_replacement_leaves_the_last_one(ca: trustme.CA, tmp_path: Path) -> None:
    certificate = tls.Certificate(*put(ca, tmp_path))
    context, client = certificate.context(), trusting(ca)
    first, _ = await handshake(context, client)
    (tmp_path / "tls.crt").write_text("half a certif")
    assert (await handshake(context, client))[0] == first
    (tmp_path / "tls.key").unlink()
    assert (await handshake(context, client))[0] == first
    put(ca, tmp_path)
    assert (await handshake(context, client))[0] != first


async def test_tls_1_1_is_not_spoken(ca: trustme.CA, tmp_path: Path) -> None:
    context = tls.Certificate(*put(ca, tmp_path)).context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_with_a_client_ca_strangers_are_turned_away(ca: trustme.CA, tmp_path: Path) -> None:
    clients = trustme.CA()
    (tmp_path / "clients.pem").write_bytes(clients.cert_pem.bytes())
    certificate = tls.Certificate(*put(ca, tmp_path), tmp_path / "clients.pem")
    context, client = certificate.context(), trusting(ca)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(context, client)
    clients.issue_cert("operator").configure_cert(client)
    assert (await handshake(context, client))[0]


def test_files_that_do_not_fit_are_refused_by_name(ca: trustme.CA, tmp_path: Path) -> None:
    certificate, key = put(ca, tmp_path)
    other = ca.issue_cert("another")
    for content in (b"nonsense", other.private_key_pem.bytes()):
        key.write_bytes(content)
        with pytest.raises(Misconfigured) as caught:
            tls.load(certificate, key)
        assert str(certificate) in caught.value.message
    with pytest.raises(Misconfigured, match="belong together"):
        tls.load(certificate, None)
    assert tls.load(None, None) is None
