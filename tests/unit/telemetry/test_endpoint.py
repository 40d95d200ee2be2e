"""Pages over loopback."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import httpx
import pytest

from diptych.core.errors import BadRequest, Misconfigured
from diptych.telemetry.endpoint import REQUEST_BYTES, Endpoint, Page


async def echo(query: Mapping[str, str]) -> bytes:
    if "bad" in query:
        raise BadRequest("bad is not good")
    return repr(sorted(query.items())).encode()


PAGES = {"/echo": Page("text/x-echo", echo)}


async def test_a_page_gets_its_query_and_says_its_type() -> None:
    async with Endpoint("127.0.0.1:0", PAGES) as served, httpx.AsyncClient() as client:
        reply = await client.get(f"http://{served.address}/echo?b=2&a=1%20x")
    assert (reply.status_code, reply.text) == (200, "[('a', '1 x'), ('b', '2')]")
    assert reply.headers["content-type"] == "text/x-echo"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/", 404, "expected one of /echo"),
        ("POST", "/echo", 405, "expected GET"),
        ("GET", "/echo?bad=1", 400, "bad is not good"),
    ],
)
async def test_what_cannot_be_answered_is_said(
    method: str, path: str, status: int, words: str
) -> None:
    async with Endpoint("127.0.0.1:0", PAGES) as served, httpx.AsyncClient() as client:
        reply = await client.request(method, f"http://{served.address}{path}")
    assert (reply.status_code, reply.text.strip()) == (status, words)


async def test_who_says_nothing_or_too_much_is_cut_off() -> None:
    async with Endpoint("127.0.0.1:0", PAGES, timeout_s=0.05) as served:
        host, port = served.address.split(":")
        for sent in (b"GET /echo", b"x" * (REQUEST_BYTES + 1)):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{served.address}/echo")).status_code == 200


async def test_without_an_address_nothing_is_served() -> None:
    async with Endpoint(None, PAGES) as served:
        assert served.address == ""


async def test_a_taken_port_is_named() -> None:
    async with Endpoint("127.0.0.1:0", PAGES) as served:
        with pytest.raises(Misconfigured, match=f"--metrics-listen {served.address}: "):
            await Endpoint(served.address, PAGES).start()
