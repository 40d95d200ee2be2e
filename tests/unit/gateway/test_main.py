"""The public port, and a server on it."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import trustme

from diptych.config import GatewaySettings
from diptych.core.errors import Misconfigured
from diptych.gateway.__main__ import Ports, bind

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"


def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured) as caught:
            bind("127.0.0.1", port)
    message = caught.value.message
    for part in ("127.0.0.1", str(port), "--port", "DIPTYCH_PORT"):
        assert part in message


def test_a_foreign_address_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"203\.0\.113\.1"):
        bind("203.0.113.1", 0)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., GatewaySettings]:
    def load(**fields: object) -> GatewaySettings:
        common = {"data_dir": str(tmp_path), "checkpoint": str(TINY), "port": 0}
        return GatewaySettings.load({**common, **fields})

    return load


def close(ports: Ports) -> None:
    for listener in (ports.public, ports.admin):
        if listener is not None:
            listener.close()


def test_the_admin_port_is_on_loopback_or_off(settings: Callable[..., GatewaySettings]) -> None:
    ports = Ports(settings())
    assert ports.admin_url.startswith("http://127.0.0.1:")
    assert ports.public_url.startswith("http://127.0.0.1:")
    close(ports)
    ports = Ports(settings(admin_listen="[::1]:0"))
    assert ports.admin_url.startswith("http://[::1]:")
    close(ports)
    ports = Ports(settings(admin_listen="off"))
    assert ports.admin_url == ""
    close(ports)


def test_an_admin_port_for_other_machines_needs_client_certificates(
    settings: Callable[..., GatewaySettings], tmp_path: Path
) -> None:
    with pytest.raises(Misconfigured, match="--tls-client-ca"):
        Ports(settings(admin_listen="0.0.0.0:0"))
    authority = trustme.CA()
    issued = authority.issue_cert("gateway.test")
    files = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key", "client_ca")}
    files["certificate"].write_bytes(issued.cert_chain_pems[0].bytes())
    files["key"].write_bytes(issued.private_key_pem.bytes())
    files["client_ca"].write_bytes(authority.cert_pem.bytes())
    flags = {f"tls_{name}": str(path) for name, path in files.items()}
    with pytest.raises(Misconfigured, match="--tls-client-ca needs"):
        Ports(settings(tls_client_ca=flags["tls_client_ca"]))
    ports = Ports(settings(admin_listen="0.0.0.0:0", **flags))
    assert ports.admin_tls is not None
    assert ports.admin_tls.verify_mode is ssl.CERT_REQUIRED
    assert ports.public_tls is not None
    assert ports.public_tls.verify_mode is ssl.CERT_NONE
    assert ports.public_url.startswith("https://")
    close(ports)


async def test_the_process_serves_without_a_router_and_leaves_on_sigterm(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DIPTYCH_")}
    settings = {
        "DIPTYCH_PORT": str(port),
        "DIPTYCH_CHECKPOINT": str(TINY),
        "DIPTYCH_DATA_DIR": str(tmp_path),
        "DIPTYCH_ROUTER": "127.0.0.1:1",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "diptych.gateway",
        env={**kept, **settings, "PYTHONSAFEPATH": "1"},
        stderr=subprocess.PIPE,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await answers(client)
            assert (await client.get("/readyz")).status_code == 503
            body = {"model": "diptych-tiny", "messages": [{"role": "user", "content": "x"}]}
            reply = await client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 503
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            _, log = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    assert b"Traceback" not in log, log.decode()


async def answers(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.get("/livez")
                return
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
