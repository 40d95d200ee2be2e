"""Hit rates of a store on public traces, by tier, next to a cache without limit.

A real store in-process (memory over a disk folder) with blocks a thousandth of their size; sizes
are given as shares of all distinct bytes of the trace. Its clock is the trace's.
"""

import argparse
import asyncio
import hashlib
import json
import lzma
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diptych.core.ids import BlockHash, Incarnation
from diptych.kvcache_store.items import Item, Origin, Tier
from diptych.kvcache_store.retention import DAY_S, Retention
from diptych.kvcache_store.tenants import Admission, Tenants
from diptych.kvcache_store.tiers import Tiers
from diptych.kvcache_store.volume import Folder
from diptych.testing.clock import FakeClock
from diptych.transport.frames import PartKind, checksum

DATA = Path(__file__).parent / "data"
TRACES = ("mooncake_conversation_trace", "mooncake_synthetic_trace")
TRACE_BLOCK_TOKENS = 512
PAYLOAD_BYTES = 456  # a thousandth of four blocks of 113,920
PAYLOAD = memoryview(secrets.token_bytes(PAYLOAD_BYTES))
SHARES = ((0.02, 0.10), (0.02, 0.50), (0.05, 1.50))  # of memory, of disk


@dataclass(frozen=True)
class Request:
    """One row of a trace."""

    at_s: float
    num_tokens: int
    chain: tuple[BlockHash, ...]


def read_trace(name: str, limit: int) -> list[Request]:
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt") as file:
        rows = [json.loads(line) for _, line in zip(range(limit), file, strict=False)]
    return [
        Request(
            row["timestamp"] / 1000,
            row["input_length"],
            tuple(_name(number) for number in row["hash_ids"]),
        )
        for row in rows
    ]


def _name(number: int) -> BlockHash:
    return BlockHash(hashlib.blake2b(number.to_bytes(8), digest_size=16).digest())


def ideal(requests: Sequence[Request]) -> float:
    """Share of prompt blocks that a cache without limit finds."""
    seen: set[BlockHash] = set()
    hits = blocks = 0
    for request in requests:
        for name in request.chain:
            if name not in seen:
                break
            hits += 1
        seen.update(request.chain)
        blocks += len(request.chain)
    return hits / blocks


class Replay:
    """One store through one trace."""

    def __init__(self, tiers: Tiers, clock: FakeClock, origin: Origin, by: Admission) -> None:
        self.hits: Counter[Tier] = Counter()
        self.blocks = 0
        self._tiers = tiers
        self._clock = clock
        self._origin = origin
        self._by = by

    async def ask(self, request: Request) -> None:
        """Look up, read what is there, put the rest."""
        chain = request.chain
        found = []
        for name in chain:
            at = self._tiers.find(PartKind.BLOCK, name, self._origin)
            if at.tier is Tier.NOWHERE:
                break
            found.append(at.tier)
        done = 0
        while done < len(found):
            items = await self._tiers.read(self._origin, PartKind.BLOCK, chain[done : len(found)])
            if not items:
                break
            done += len(items)
        self.hits.update(found[:done])
        self.blocks += len(chain)
        put = self._tiers.put(list(self._items(chain, done)), Retention.CHAT, self._by)
        if put.on_disk is not None:
            await put.on_disk

    def _items(self, chain: Sequence[BlockHash], start: int) -> Iterator[Item]:
        parents = [self._origin.scope, *chain]
        crc = checksum(PAYLOAD)
        for i in range(start, len(chain)):
            yield Item(self._origin, PartKind.BLOCK, chain[i], parents[i], i, True, crc, PAYLOAD)


async def replay(
    requests: Sequence[Request], folder: Path, memory_bytes: int, disk_bytes: int
) -> tuple[Replay, Tiers]:
    clock = FakeClock(20_000 * DAY_S)
    tiers = Tiers(
        memory_bytes=memory_bytes,
        tenants=Tenants(folder / "tenants", b"bench", encrypt=False),
        incarnation=Incarnation(1),
        volume=Folder(folder / "segments"),
        disk_bytes=disk_bytes,
        fsync_s=3600,
        clock=clock,
    )
    await tiers.open()
    writing = asyncio.create_task(tiers.run())
    by = tiers.tenants.admit("bench")
    origin = Origin(b"n" * 16, b"l" * 16, b"s" * 16, by.group)
    run = Replay(tiers, clock, origin, by)
    for request in requests:
        clock.now_s = 20_000 * DAY_S + request.at_s
        await run.ask(request)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await tiers.close()
    return run, tiers


def main() -> None:
    """Print a table a trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000, help="of each trace, from its start")
    limit = parser.parse_args().requests
    for name in TRACES:
        requests = read_trace(name, limit)
        distinct = len({block for request in requests for block in request.chain})
        size_bytes = distinct * PAYLOAD_BYTES
        table = Table(title=f"{name}: {len(requests)} requests, {distinct} distinct blocks")
        for column in ("memory", "disk", "hits in memory", "on disk", "both", "promises broken"):
            table.add_column(column, justify="right")
        for memory, disk in SHARES:
            with tempfile.TemporaryDirectory() as folder:
                run, tiers = asyncio.run(
                    replay(requests, Path(folder), int(memory * size_bytes), int(disk * size_bytes))
                )
            assert tiers.disk is not None
            rates = [run.hits[tier] / run.blocks for tier in (Tier.MEMORY, Tier.DISK)]
            broken = tiers.disk.cleaner.counts.violated_bytes.total() / size_bytes
            cells = [memory, disk, *rates, sum(rates), broken]
            table.add_row(*(f"{cell:.1%}" for cell in cells))
        table.add_section()
        table.add_row("no limit", "", "", "", f"{ideal(requests):.1%}", "")
        Console().print(table)


if __name__ == "__main__":
    main()
