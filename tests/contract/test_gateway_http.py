"""The public port over real sockets: what HTTP itself allows, and a great many clients at once."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from diptych.core.errors import Lost
from diptych.gateway import app, protocol, served
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.server import Server, bind
from diptych.gateway.stream import Patience
from diptych.gateway.traffic import Traffic
from diptych.router.client import Fleet
from diptych.testing.clock import settle
from diptych.testing.hops import DecodeHop, Output, PrefillHop, ScriptedHops
from diptych.text.markers import Marker

TINY = Path(__file__).parents[1] / "golden" / "tiny-text"
FLEET = Fleet(ready=True, namespace=b"n" * 16, max_model_len=2**21, block_tokens=8)
NUM_STREAMS = 1000
GONE_S = 1.0  # promised; asserted at twice
CHAT = "/v1/chat/completions"


class Site:
    """A gateway over scripted stations, on a port."""

    def __init__(self, patience: Patience) -> None:
        model = self.served = served.load(TINY, "tiny", b"master", lambda: FLEET)
        self.hops = ScriptedHops(Output(model.tokenizer.encode(["one two three", Marker.EOS])))
        self.pipeline = Pipeline(Hops(self.hops, PrefillHop(self.hops), DecodeHop(self.hops)))
        self.traffic = Traffic()
        application = app.build(model, self.traffic, self.pipeline, lambda: True, patience=patience)
        self.server = Server(application, None)
        self.listener = bind("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, data: bytes, until: bytes = b"", limit_s: float = 10.0) -> bytes:
        """Send bytes over a new connection; what comes back until `until`, or the end."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            async with asyncio.timeout(limit_s):
                return await (reader.readuntil(until) if until else reader.read())
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(patience: Patience | None = None) -> AsyncIterator[Site]:
    site = Site(patience or Patience())
    running = asyncio.create_task(site.server.serve([site.listener]))
    try:
        await settle(lambda: site.server.started)
        yield site
    finally:
        site.server.should_exit = True
        await running
        await site.pipeline.close()
        site.served.close()
    assert site.hops.is_at_baseline
    assert site.traffic.num_running == 0


def request(path: str = CHAT, **fields: Any) -> bytes:
    body = orjson.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "thinking": {"type": "disabled"},
            **fields,
        }
    )
    return head(f"POST {path} HTTP/1.1", f"content-length: {len(body)}") + body


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([line, "host: gateway", *fields, "", ""]).encode()


def error_of(reply: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    return found


async def test_small_writes_do_not_wait_for_an_ack() -> None:
    async with serving() as site:
        _, writer = await site.connect()
        await settle(lambda: bool(site.server.server_state.connections))
        (connection,) = site.server.server_state.connections
        theirs = connection.transport.get_extra_info("socket")
        assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


async def test_t23_t24_a_thousand_silent_streams_are_kept_alive_and_forgotten_when_they_leave() -> (
    None
):
    patience = Patience(headers_s=0.2, silence_s=0.5)
    async with serving(patience) as site:
        site.hops.holds = {"queue"}
        clients = [await site.connect() for _ in range(NUM_STREAMS)]
        for _, writer in clients:
            writer.write(request(stream=True))
        async with asyncio.timeout(60):
            for reader, _ in clients:
                start = await reader.readuntil(b"\r\n\r\n")
                assert start.startswith(b"HTTP/1.1 200 ")
                assert b"x-accel-buffering: no" in start
                assert b"content-encoding" not in start
                for _ in range(2):
                    await reader.readuntil(b": keep-alive\n\n")
        assert site.traffic.num_running == NUM_STREAMS
        for _, writer in clients:
            writer.transport.abort()
        left_s = time.monotonic()
        await settle(lambda: not site.traffic.num_running and site.hops.is_at_baseline, 30)
        assert time.monotonic() - left_s < 2 * GONE_S


async def test_t93_livez_answers_while_a_long_prompt_is_taken() -> None:
    async with serving() as site:
        prompt = "The river was seven stones wide and nobody counted them. " * 18_000
        assert len(prompt) > 1_000_000
        body = request(messages=[{"role": "user", "content": prompt}], max_tokens=1)
        long = asyncio.create_task(site.say(body, until=b'"usage"', limit_s=60))
        await settle(lambda: site.traffic.num_running > 0)
        reply = await site.say(head("GET /livez HTTP/1.1"), until=b'{"status":"ok"}')
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert not long.done()
        assert (await long).startswith(b"HTTP/1.1 200 ")


async def test_a_head_that_is_too_large_is_refused_with_our_envelope() -> None:
    async with serving() as site:
        field = "x-long: " + "a" * protocol.MAX_HEAD_BYTES
        reply = await site.say(head("GET /livez HTTP/1.1", field))
        assert reply.startswith(b"HTTP/1.1 431 ")
        assert error_of(reply)["code"] == "request_header_too_large"
        with contextlib.suppress(ConnectionResetError):  # it writes more than anybody reads
            endless = await site.say(head("GET /livez HTTP/1.1", "x-long: " + "b" * 5_000_000))
            assert endless.startswith(b"HTTP/1.1 431 ")
        many = [f"x-{number}: {'c' * 100}" for number in range(400)]
        assert (await site.say(head("GET /livez HTTP/1.1", *many))).startswith(b"HTTP/1.1 431 ")
        long = await site.say(head(f"GET /{'d' * protocol.MAX_URL_BYTES} HTTP/1.1"))
        assert long.startswith(b"HTTP/1.1 414 ")
        assert error_of(long)["code"] == "request_header_too_large"


async def test_t90_what_is_no_http_is_refused_with_our_envelope() -> None:
    async with serving() as site:
        reply = await site.say(b"\x16\x03\x01 hello\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert error_of(reply).keys() == {"message", "type", "param", "code", "request_id"}


async def test_a_connection_may_rest_for_longer_than_clients_let_it() -> None:
    """httpx, and so OpenAI's client, drops one after 5 s: who drops it first must not be we."""
    async with serving() as site:
        reader, writer = await site.connect()
        for pause_s in (0, 5.5):
            await asyncio.sleep(pause_s)
            writer.write(head("GET /livez HTTP/1.1"))
            assert await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 10)
        writer.close()


async def test_a_head_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.1)
    async with serving() as site:
        reply = await site.say(b"GET /livez HTTP/1.1\r\nhost: gate")
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert await site.say(b"") == b""


async def test_t102_a_body_shorter_than_it_says_is_waited_for_and_one_too_long_is_refused() -> None:
    async with serving() as site:
        whole = request()
        reader, writer = await site.connect()
        writer.write(whole[:-5])
        await asyncio.sleep(0.05)
        writer.write(whole[-5:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        too_long = head(f"POST {CHAT} HTTP/1.1", f"content-length: {200 << 20}")
        reply = await site.say(too_long, until=b"}}")
        assert reply.startswith(b"HTTP/1.1 413 ")


async def test_t103_expect_http_1_0_and_pipelining_work() -> None:
    async with serving() as site:
        whole = request()
        start, _, body = whole.partition(b"\r\n\r\n")
        reader, writer = await site.connect()
        writer.write(start + b"\r\nexpect: 100-continue\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        old = await site.say(b"GET /livez HTTP/1.0\r\n\r\n")
        assert old.endswith(b'{"status":"ok"}')
        reader, writer = await site.connect()
        writer.write(request() + head("GET /livez HTTP/1.1") + request())
        for expected in (b'"usage"', b'{"status":"ok"}', b'"usage"'):
            await asyncio.wait_for(reader.readuntil(expected), 10)
        writer.close()


async def test_t110_what_follows_the_json_is_refused() -> None:
    async with serving() as site:
        for trailing in (b" {}", b"x"):
            body = b'{"model":"tiny","messages":[{"role":"user","content":"hi"}]}' + trailing
            whole = head(f"POST {CHAT} HTTP/1.1", f"content-length: {len(body)}") + body
            reply = await site.say(whole, until=b"}}")
            assert reply.startswith(b"HTTP/1.1 400 ")
            assert error_of(reply)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ],
)
async def test_t112_nothing_follows_an_error_in_a_stream_and_nobody_waits(
    path: str, fields: dict[str, Any]
) -> None:
    async with serving() as site:
        for stage in ("token 3", "token 4", "token 5"):  # each attempt's prefill adds one
            site.hops.failures[stage] = [Lost("gone")]
        reader, writer = await site.connect()
        body = orjson.dumps({"model": "tiny", "stream": True, **fields})
        writer.write(head(f"POST {path} HTTP/1.1", f"content-length: {len(body)}") + body)
        async with asyncio.timeout(5):
            whole = await reader.readuntil(b"\r\n0\r\n\r\n")  # the end of a body in chunks
            assert b"event: error" in whole or b'"code":"worker_lost"' in whole
            assert b"[DONE]" not in whole and b"message_stop" not in whole
            writer.write(head("GET /livez HTTP/1.1", "connection: close"))
            assert (await reader.read()).endswith(b'{"status":"ok"}')
        writer.close()


class Trickle:
    """A client with small buffers that reads ten bytes a second."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        self.heard = b""

    async def ask(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._site.port))
        await loop.sock_sendall(self._socket, data)

    async def read_on(self) -> None:
        while more := await asyncio.get_running_loop().sock_recv(self._socket, 10):
            self.heard += more
            await asyncio.sleep(1.0)

    async def read_rest(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            while more := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
                self.heard += more
        self._socket.close()


@pytest.mark.parametrize(
    ("num_tokens", "patience"),
    [(2000, Patience(unread_bytes=1 << 20)), (300, Patience(unread_s=0.4))],
    ids=["too much is unread", "it is read too slowly"],
)
async def test_f24_who_reads_ten_bytes_a_second_is_cut_off_and_nobody_else_is_held_up(
    num_tokens: int, patience: Patience
) -> None:
    async with serving(patience) as site:
        site.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        (token,) = site.served.tokenizer.encode(["x"])
        site.hops.output = Output((token,) * num_tokens, num_top=20)
        site.hops.holds = {f"token {num_tokens - 1}"}
        slow = Trickle(site)
        await slow.ask(request(stream=True, logprobs=True, top_logprobs=20))
        reading = asyncio.create_task(slow.read_on())
        await settle(lambda: site.traffic.num_running == 1)
        (theirs,) = site.server.server_state.connections
        most_bytes = 0
        plain = request(stream=True).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
        others = [asyncio.create_task(site.say(plain)) for _ in range(8)]
        async with asyncio.timeout(20):
            while theirs in site.server.server_state.connections:
                most_bytes = max(most_bytes, theirs.transport.get_write_buffer_size())
                await asyncio.sleep(0)
        assert 0 < most_bytes < (1 << 20) + (256 << 10)
        assert len(site.hops.cancelled) == 1 and site.hops.cancelled[0].startswith("decode")
        site.hops.release()
        for other in others:
            assert (await other).count(b'"content":"x"') == num_tokens
        reading.cancel()
        await slow.read_rest()
        assert b"data: " in slow.heard and b"[DONE]" not in slow.heard
