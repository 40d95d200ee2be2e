"""Closed-loop load of streaming chat requests over keep-alive connections, and what it measured.

Reads bytes, not JSON: the generator shares the machine with what it measures.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson


@dataclass
class Heard:
    """Of all answers of one run."""

    first_s: list[float] = field(default_factory=list)  # to the first event
    whole_s: list[float] = field(default_factory=list)
    chunks: int = 0
    errors: int = 0
    took_s: float = 0.0

    @property
    def first_ms(self) -> float:
        return 1e3 * statistics.median(self.first_s)

    @property
    def whole_ms(self) -> float:
        return 1e3 * statistics.median(self.whole_s)

    @property
    def p99_first_ms(self) -> float:
        return 1e3 * sorted(self.first_s)[int(0.99 * (len(self.first_s) - 1))]

    @property
    def chunks_per_s(self) -> float:
        return self.chunks / self.took_s

    @property
    def requests_per_s(self) -> float:
        return len(self.whole_s) / self.took_s


class _Client(asyncio.Protocol):
    """One connection: asks, counts events until `[DONE]`, asks again until the time is over."""

    def __init__(self, request: bytes, heard: Heard, until_s: float) -> None:
        self._request = request
        self._heard = heard
        self._until_s = until_s
        self._tail = b""
        self._asked_s = 0.0
        self._has_first = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        text = self._tail + data
        if not self._has_first:
            if b"data: " not in text:
                self._tail = text
                if b"HTTP/1.1 " in text and b"HTTP/1.1 200" not in text:
                    self._end(is_error=True)
                return
            self._has_first = True
            self._heard.first_s.append(time.perf_counter() - self._asked_s)
        keep = 16
        self._heard.chunks += text.count(b"\ndata: {") - self._tail.count(b"\ndata: {")
        if b"data: [DONE]" in text and text.endswith(b"0\r\n\r\n"):
            self._heard.whole_s.append(time.perf_counter() - self._asked_s)
            if time.perf_counter() < self._until_s:
                self._ask()
            else:
                self._end()
            return
        self._tail = text[-keep:]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self._heard.errors += 1
            self.over.set_result(None)

    def _ask(self) -> None:
        self._tail, self._has_first = b"", False
        self._asked_s = time.perf_counter()
        self._transport.write(self._request)

    def _end(self, *, is_error: bool = False) -> None:
        self._heard.errors += is_error
        if not self.over.done():
            self.over.set_result(None)
        self._transport.close()


async def load(url: str, model: str, streams: int, seconds: float, tokens: int) -> Heard:
    """Keep `streams` answers of `tokens` tokens under way for some seconds."""
    body = orjson.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "Count the stones, please. " * 4}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "thinking": {"type": "disabled"},
        }
    )
    host = urlsplit(url)
    assert host.hostname is not None
    assert host.port is not None
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    heard, loop = Heard(), asyncio.get_running_loop()
    began_s = time.perf_counter()
    clients = [_Client(head.encode() + body, heard, began_s + seconds) for _ in range(streams)]
    waiting = iter(clients)
    for _ in clients:
        await loop.create_connection(lambda: next(waiting), host.hostname, host.port)
    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(client.over for client in clients))
    heard.took_s = time.perf_counter() - began_s
    return heard
