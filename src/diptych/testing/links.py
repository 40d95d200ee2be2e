"""A link between two processes that a test can cut, or make to swallow everything."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 64 << 10
READ_S = 0.1  # before a cut, for what came before to be read


@dataclass
class Link:
    """A TCP proxy. Bytes are counted on their way back, from the target to who connected."""

    target: str  # host:port
    address: str = ""
    cut_after: int | None = None  # bytes back in all; then every connection breaks, once
    is_dropping: bool = False  # accepts, and passes nothing on
    num_cuts: int = 0
    bytes_back: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect on; whoever comes while it is dropping waits for ever."""
        self._writers.add(writer)
        host, port = self.target.rsplit(":", 1)
        try:
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers.add(there_writer)
        for pump in (
            self._pump(reader, there_writer, is_back=False),
            self._pump(there_reader, writer, is_back=True),
        ):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    def cut(self) -> None:
        """Break every connection."""
        self.num_cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut()
        for task in list(self._pumps):
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_back: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.is_dropping:
                    continue
                if is_back:
                    self.bytes_back += len(data)
                    if self.cut_after is not None and self.bytes_back > self.cut_after:
                        self.cut_after = None
                        await asyncio.sleep(READ_S)
                        self.cut()
                        return
                writer.write(data)
                await writer.drain()
            writer.close()


@asynccontextmanager
async def link_to(target: str) -> AsyncIterator[Link]:
    """A link to an address; its own one is on loopback."""
    link = Link(target)
    server = await asyncio.start_server(link.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    link.address = f"{host}:{port}"
    try:
        yield link
    finally:
        server.close()
        await link.close()
        await server.wait_closed()
