"""What the cache tier moves: put and get over loopback gRPC, next to what carries them.

Blocks of the released size (113,920 bytes), every checksum on. In the same run: memcpy, the same
bytes through plain files, and Redis MSET/MGET. The store and Redis are processes of their own; the
client is one process, as in a worker. Figures of other stores follow, which this run does not take.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio

from diptych.core.blocks import block_hash
from diptych.core.ids import BlockHash, WorkerId
from diptych.kvcache_store.client import Retention, Run, StoreClient, Transport, Whose
from diptych.kvcache_store.disk import DiskTier
from diptych.kvcache_store.items import Item, Origin
from diptych.kvcache_store.volume import Folder
from diptych.testing.redis import redis_server
from diptych.transport.allocator import keep_freed_memory
from diptych.transport.frames import Part, PartKind, Place, checksum

BLOCK_BYTES = 113_920
RUN_BLOCKS = 256  # of one put or get: 32,768 tokens, 29 MB
AT_ONCE = 8  # blocks of a Redis command, as of a frame
WHOSE = Whose(b"n" * 16, b"l" * 16, b"s" * 16, "bench")
LIMIT_S = 120.0

PEERS_TAKEN = (
    "Not of this run: taken on 2026-11-29 on another machine of two cores (AVX-512, over 85 % idle)"
    "\nover loopback, one client and one server process; GB/s, put / get; our blocks are of 111 KiB"
)
PEERS = (  # what, of 64 KiB, of 1 MiB
    ("plain TCP sockets, Python", "0.71 / 0.51", "2.58 / 2.46"),
    ("Redis 7, redis-py", "0.29 / 0.41", "1.40 / 0.81"),
    ("LMCache 0.5.6 over Redis, C++, 32 keys a call", "0.62 / 1.20", "1.14 / 1.75"),
    ("Mooncake transfer engine, TCP", "0.46 / 0.44", "1.38 / 1.05"),
    ("Mooncake Store, TCP, put / get", "0.14 / 0.20", "0.61 / 1.01"),
    ("NIXL 1.5.1, UCX over TCP, write / read", "0.55 / 0.34", "1.14 / 0.15"),
    ("NIXL 1.5.1, UCX through shared memory", "2.32 / 7.85", "5.52 / 9.71"),
)


@dataclass(frozen=True)
class Data:
    """Chains of blocks with their bytes."""

    runs: tuple[Run, ...]

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)


def make_data(num_runs: int) -> Data:
    """Different names and bytes throughout."""
    draw = random.Random(7)
    runs = []
    for number in range(num_runs):
        payloads = [memoryview(draw.randbytes(BLOCK_BYTES)) for _ in range(RUN_BLOCKS)]
        checksums = [checksum(payload) for payload in payloads]
        chain: list[BlockHash] = []
        parent = WHOSE.scope
        for i in range(RUN_BLOCKS):
            parent = block_hash(parent, [number, i])
            chain.append(BlockHash(parent))
        blocks = [
            Part(PartKind.BLOCK, name, crc, payload)
            for name, crc, payload in zip(chain, checksums, payloads, strict=True)
        ]
        runs.append(
            Run(WHOSE, tuple(chain), 0, blocks, [True] * RUN_BLOCKS, retention=Retention.CHAT)
        )
    return Data(tuple(runs))


class Arena:
    """Where blocks are fetched to: made before the clock starts, as a pool's pages are."""

    def __init__(self) -> None:
        self._pages = memoryview(bytearray(RUN_BLOCKS * BLOCK_BYTES))
        self._places: dict[BlockHash, Place] = {}

    def expect(self, names: Sequence[BlockHash]) -> None:
        self._places = {
            name: Place(PartKind.BLOCK, self._pages[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES])
            for i, name in enumerate(names)
        }

    def place(self, name: BlockHash) -> Place:
        return self._places[name]


@contextmanager
def store(folder: Path, memory_bytes: int, disk_bytes: int) -> Iterator[str]:
    """A real store process; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    sizes = ["--cache-memory-bytes", str(memory_bytes), "--cache-disk-bytes", str(disk_bytes)]
    command = [sys.executable, "-m", "diptych.cli", "store", "--listen", address, *sizes]
    flags = ["--data-dir", str(folder), "--log-level", "warning"]
    process = subprocess.Popen([*command, *flags])
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "no store"
                time.sleep(0.05)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def memcpy(data: Data) -> float:
    """Seconds to copy every block into a pool."""
    into = memoryview(bytearray(RUN_BLOCKS * BLOCK_BYTES))
    began_s = time.perf_counter()
    for run in data.runs:
        for i, part in enumerate(run.blocks):
            into[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] = part.payload
    return time.perf_counter() - began_s


def write_file(path: Path, data: Data) -> float:
    """Seconds to append every block to a file, eight a call; the kernel writes it later."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began_s = time.perf_counter()
    for run in data.runs:
        for i in range(0, RUN_BLOCKS, AT_ONCE):
            os.writev(file, [part.payload for part in run.blocks[i : i + AT_ONCE]])
    took_s = time.perf_counter() - began_s
    os.fsync(file)
    os.close(file)
    return took_s


def read_file(path: Path, *, is_cold: bool) -> float:
    """Seconds to read it, eight blocks a call; cold: not from the page cache."""
    if is_cold:
        forget(path)
    file = os.open(path, os.O_RDONLY)
    began_s = time.perf_counter()
    while os.read(file, AT_ONCE * BLOCK_BYTES):
        pass
    took_s = time.perf_counter() - began_s
    os.close(file)
    return took_s


def forget(path: Path) -> None:
    """Out of the page cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def read_tier(folder: Path, data: Data, *, is_cold: bool) -> float:
    """Seconds to read everything through the disk tier, checksums on, without gRPC."""
    disk = DiskTier(Folder(folder), 4 << 30, clock=time.time)
    disk.open()
    if is_cold:
        for path in folder.iterdir():
            forget(path)
    origin = Origin(WHOSE.namespace, WHOSE.layout_hash, WHOSE.scope, b"g" * 16)
    began_s = time.perf_counter()
    for run in data.runs:
        for i in range(0, RUN_BLOCKS, AT_ONCE):
            assert len(disk.read(origin, PartKind.BLOCK, run.chain[i : i + AT_ONCE])) == AT_ONCE
    took_s = time.perf_counter() - began_s
    disk.close()
    return took_s


def write_tier(folder: Path, data: Data) -> float:
    """Seconds to write everything through the disk tier, without gRPC."""
    disk = DiskTier(Folder(folder), 4 << 30, clock=time.time)
    disk.open()
    origin = Origin(WHOSE.namespace, WHOSE.layout_hash, WHOSE.scope, b"g" * 16)
    began_s = time.perf_counter()
    for run in data.runs:
        parents = [WHOSE.scope, *run.chain]
        items = [
            Item(origin, PartKind.BLOCK, p.name, parents[i], i, True, p.crc32c, p.payload)
            for i, p in enumerate(run.blocks)
        ]
        disk.write(items, Retention.CHAT)
    took_s = time.perf_counter() - began_s
    disk.close()
    return took_s


async def stream(work: Callable[[Run], Awaitable[None]], data: Data, streams: int) -> float:
    """Seconds until so many streams have shared the runs."""
    waiting = iter(data.runs)

    async def one() -> None:
        for run in waiting:
            await work(run)

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(streams)))
    return time.perf_counter() - began_s


async def put_all(
    address: str, data: Data, streams: int, transport: Transport, *, await_disk: bool
) -> float:
    clients = [
        StoreClient([address], WorkerId("bench"), unsent_bytes=4 << 30, transport=transport)
        for _ in range(streams)
    ]
    free = list(clients)

    async def put(run: Run) -> None:
        client = free.pop()
        outcome = await client.put(run, deadline_s=LIMIT_S, await_disk=await_disk)
        assert outcome.sent == RUN_BLOCKS and not outcome.dropped, outcome
        free.append(client)

    took_s = await stream(put, data, streams)
    for client in clients:
        await client.close()
    return took_s


async def get_all(address: str, data: Data, streams: int, transport: Transport) -> float:
    clients = [
        StoreClient([address], WorkerId("bench"), lookup_s=10, transport=transport)
        for _ in range(streams)
    ]
    hits = {run.chain: await clients[0].lookup(WHOSE, run.chain) for run in data.runs}
    free = [(client, Arena()) for client in clients]

    async def get(run: Run) -> None:
        client, arena = free.pop()
        arena.expect(run.chain)
        fetched = await client.get(
            hits[run.chain], PartKind.BLOCK, range(RUN_BLOCKS), arena, deadline_s=LIMIT_S
        )
        assert fetched.num_leading == RUN_BLOCKS, fetched
        free.append((client, arena))

    took_s = await stream(get, data, streams)
    for client in clients:
        await client.close()
    return took_s


async def look_up(address: str, data: Data) -> float:
    """Seconds that one look-up of a whole run takes, at best."""
    client = StoreClient([address], WorkerId("bench"), lookup_s=10)
    took: list[float] = []
    for run in data.runs * 4:
        began_s = time.perf_counter()
        assert (await client.lookup(WHOSE, run.chain)).end == RUN_BLOCKS
        took.append(time.perf_counter() - began_s)
    await client.close()
    return min(took)


async def redis_all(url: str, data: Data, streams: int) -> tuple[float, float]:
    """Seconds of MSET and of MGET, which copies into a pool and checks as we do."""
    free = [(redis.asyncio.Redis.from_url(url), Arena()) for _ in range(streams)]
    clients = [client for client, _ in free]

    async def mset(run: Run) -> None:
        client, arena = free.pop()
        for i in range(0, RUN_BLOCKS, AT_ONCE):
            await client.mset({p.name: p.payload for p in run.blocks[i : i + AT_ONCE]})
        free.append((client, arena))

    async def mget(run: Run) -> None:
        client, arena = free.pop()
        arena.expect(run.chain)
        for i in range(0, RUN_BLOCKS, AT_ONCE):
            parts = run.blocks[i : i + AT_ONCE]
            for part, got in zip(parts, await client.mget([p.name for p in parts]), strict=True):
                place = arena.place(part.name)
                place.into[:] = got
                assert checksum(place.into) == part.crc32c
        free.append((client, arena))

    times = await stream(mset, data, streams), await stream(mget, data, streams)
    for client in clients:
        await client.aclose()
    return times


class Figures:
    """The best of some rounds of each, since others use the machine, too."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._best_s: dict[str, float] = {}
        self.lookup_s = LIMIT_S

    def note(self, name: str, took_s: float) -> None:
        self._best_s[name] = min(took_s, self._best_s.get(name, took_s))
        print(".", end="", file=sys.stderr, flush=True)

    def show(self) -> None:
        print(file=sys.stderr)
        for name, took_s in self._best_s.items():
            print(f"{name:48} {self._data.size_bytes / took_s / 1e9:6.2f} GB/s")
        print(f"look-up of {RUN_BLOCKS} blocks and their anchors: {self.lookup_s * 1e3:.1f} ms")
        print("first tokens of a prompt, cold, from memory, from disk: make bench-cache")


def show_peers() -> None:
    """Other people's stores, as they were measured once."""
    print(f"\n{PEERS_TAKEN}")
    print(f"{'':48} {'64 KiB':>12} {'1 MiB':>12}")
    for what, small, large in PEERS:
        print(f"{what:48} {small:>12} {large:>12}")


def measure_floor(figures: Figures, data: Data, folder: Path) -> None:
    """What no store can beat, and the disk tier without a wire."""
    figures.note("memcpy", memcpy(data))
    figures.note("file, write (page cache)", write_file(folder / "raw", data))
    figures.note("file, read (page cache)", read_file(folder / "raw", is_cold=False))
    figures.note("file, read (cold)", read_file(folder / "raw", is_cold=True))
    tier = folder / "tier"
    figures.note("disk tier alone, write (page cache)", write_tier(tier, data))
    figures.note("disk tier alone, read (page cache)", read_tier(tier, data, is_cold=False))
    figures.note("disk tier alone, read (cold)", read_tier(tier, data, is_cold=True))


def measure_store(figures: Figures, data: Data, folder: Path, streams: int) -> None:
    """Both tiers over gRPC, then Redis."""
    room = 2 * data.size_bytes
    name = f"{streams} stream{'s' if streams > 1 else ''}"
    for transport in (Transport.GRPC, Transport.SHM):
        with store(folder / f"memory-{transport}", room, 0) as address:
            took_s = asyncio.run(put_all(address, data, streams, transport, await_disk=False))
            figures.note(f"store, memory, put, {transport}, {name}", took_s)
            took_s = asyncio.run(get_all(address, data, streams, transport))
            figures.note(f"store, memory, get, {transport}, {name}", took_s)
            figures.lookup_s = min(figures.lookup_s, asyncio.run(look_up(address, data)))
    disk = folder / "disk"
    with store(disk, 64 << 20, 4 * room) as address:
        took_s = asyncio.run(put_all(address, data, streams, Transport.GRPC, await_disk=True))
        figures.note(f"store, disk, put (page cache), {name}", took_s)
    for way in ("page cache", "cold"):
        with store(disk, 16 << 20, 4 * room) as address:
            if way == "cold":
                for path in (disk / "cache" / "segments").iterdir():
                    forget(path)
            took_s = asyncio.run(get_all(address, data, streams, Transport.GRPC))
            figures.note(f"store, disk, get ({way}), {name}", took_s)
    with redis_server(folder) as server:
        mset_s, mget_s = asyncio.run(redis_all(server.url, data, streams))
        figures.note(f"Redis, MSET of {AT_ONCE}, {name}", mset_s)
        figures.note(f"Redis, MGET of {AT_ONCE}, {name}", mget_s)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8, help=f"of {RUN_BLOCKS} blocks each")
    parser.add_argument("--rounds", type=int, default=3, help="the best one counts")
    options = parser.parse_args()
    keep_freed_memory()
    data = make_data(options.runs)
    blocks = len(data.runs) * RUN_BLOCKS
    print(f"{blocks} blocks of {BLOCK_BYTES} B, {data.size_bytes / 1e6:.0f} MB")
    figures = Figures(data)
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            measure_floor(figures, data, Path(name))
        for streams in (1, 4):
            with tempfile.TemporaryDirectory() as name:
                measure_store(figures, data, Path(name), streams)
    figures.show()
    show_peers()


if __name__ == "__main__":
    main()
