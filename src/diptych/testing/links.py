"""A link between two processes that a test can cut, hold, delay, deafen or make flip a bit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK_BYTES = 64 << 10
READ_S = 0.1  # before a cut, for what came before to be read


@dataclass
class Way:
    """One direction. Bytes are counted over all connections, in the order in which they come."""

    num_bytes: int = 0
    is_dropping: bool = False  # takes everything, and passes nothing on
    delay_s: float = 0.0  # between coming and being passed on
    flip_at: int | None = None  # this byte's lowest bit is flipped, once
    _hold_from: int | None = None
    _is_free: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def held_bytes(self) -> int:
        """That have come and are being kept back."""
        return 0 if self._hold_from is None else max(0, self.num_bytes - self._hold_from)

    def hold(self, after: int = 0) -> None:
        """Keep back what comes after so many more bytes, until `release`."""
        self._hold_from = self.num_bytes + after
        self._is_free.clear()

    def release(self) -> None:
        """Pass on what was held, in order, and all that comes."""
        self._hold_from = None
        self._is_free.set()

    def take(self, data: bytes) -> tuple[int, bytes]:
        """Count a piece; where it begins, and what becomes of it."""
        start = self.num_bytes
        self.num_bytes += len(data)
        if self.flip_at is None or not start <= self.flip_at < self.num_bytes:
            return start, data
        flipped = bytearray(data)
        flipped[self.flip_at - start] ^= 1
        self.flip_at = None
        return start, bytes(flipped)

    async def pass_on(self, start: int, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Write a piece, the part that is to be held when it is released."""
        held_from = self._hold_from
        if held_from is not None and held_from < start + len(data):
            free = max(0, held_from - start)
            writer.write(data[:free])
            await self._is_free.wait()
            data = data[free:]
        writer.write(data)
        await writer.drain()


@dataclass
class Link:
    """A TCP proxy. `there` leads from who connected to the target, `back` the other way."""

    target: str  # host:port
    address: str = ""
    there: Way = field(default_factory=Way)
    back: Way = field(default_factory=Way)
    cut_after: int | None = None  # bytes back in all; then every connection breaks, once
    num_cuts: int = 0
    num_accepted: int = 0  # connections
    _is_closed: bool = False
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def bytes_back(self) -> int:
        return self.back.num_bytes

    @property
    def is_dropping(self) -> bool:
        """Accepts, and passes nothing on either way."""
        return self.there.is_dropping and self.back.is_dropping

    @is_dropping.setter
    def is_dropping(self, is_dropping: bool) -> None:
        self.there.is_dropping = self.back.is_dropping = is_dropping

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect on; whoever comes while it is dropping waits for ever."""
        if self._is_closed:
            writer.transport.abort()
            return
        self.num_accepted += 1
        accepting = asyncio.current_task()
        assert accepting is not None
        self._tasks.add(accepting)
        accepting.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        host, port = self.target.rsplit(":", 1)
        try:
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers.add(there_writer)
        for way, source, target in (
            (self.there, reader, there_writer),
            (self.back, there_reader, writer),
        ):
            task = asyncio.create_task(self._pump(way, source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def cut(self) -> None:
        """Break every connection."""
        self.num_cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        """Break them for good, those that are being made, too."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.cut()

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read at once whatever comes: what is held or delayed waits here and not at its sender."""
        pieces: asyncio.Queue[tuple[float, int, bytes] | None] = asyncio.Queue()
        passing = asyncio.create_task(self._pass_on(way, pieces, writer))
        try:
            with suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    start, data = way.take(data)
                    if way.is_dropping:
                        continue
                    if way is self.back and self._is_to_be_cut():
                        self.cut_after = None
                        await asyncio.sleep(READ_S)
                        self.cut()
                        return
                    pieces.put_nowait((asyncio.get_running_loop().time(), start, data))
            pieces.put_nowait(None)
            await passing
        finally:
            passing.cancel()

    async def _pass_on(
        self,
        way: Way,
        pieces: asyncio.Queue[tuple[float, int, bytes] | None],
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while (piece := await pieces.get()) is not None:
                came_s, start, data = piece
                await asyncio.sleep(max(0.0, came_s + way.delay_s - loop.time()))
                await way.pass_on(start, data, writer)
            writer.close()

    def _is_to_be_cut(self) -> bool:
        return self.cut_after is not None and self.back.num_bytes > self.cut_after


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
