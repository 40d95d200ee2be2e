"""What the router costs and what it wins, beside public ones. Run it by `make bench-router`.

First decisions alone: 64 workers, prompts of 32k tokens. Then recorded chat traffic in a closed
loop through four workers of a script, each with an LRU cache, where a block that is not cached
takes half a millisecond. Ours is asked over gRPC and the worker is called by the client; a public
router (`--peers FOLDER`, as for `make bench-gateway`) carries the request itself. `added` is what
one stream of cached prompts takes more than without a router.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import uvloop
from rich.console import Console
from rich.table import Table

from diptych.core.blocks import part_hash
from diptych.core.ids import BlockHash, Incarnation
from diptych.core.phases import Phase, Role
from diptych.router.client import RouterClient, SkipTo, Want
from diptych.router.dispatcher import Dispatcher
from diptych.router.messages import BlockChanges, Join, Load, PrefillAt, Progress
from diptych.router.registry import Record, StreamRegistry
from diptych.router.simulation import traces
from diptych.testing.platform import CLI, free_port
from diptych.testing.processes import running

HERE = Path(__file__).parent
TRACE = HERE / "data" / "mooncake_conversation.jsonl.xz"
WORKERS = [sys.executable, str(HERE / "router_workers.py")]
MODEL, CHUNK, NUM_WORKERS = "scripted", 64, 4
START_LIMIT_S = 40.0

Ask = Callable[[str, Sequence[BlockHash]], Awaitable[dict[str, object]]]
Chain = Callable[[str], tuple[BlockHash, ...]]


@dataclass(frozen=True)
class Figure:
    """One way through the whole trace."""

    way: str
    hits: float
    busiest: float  # worker next to the mean, by requests
    busiest_work: float  # by prompt blocks computed
    mean_ms: float
    p99_ms: float
    requests_per_s: float
    added_ms: float


# Decisions alone


def decisions(console: Console, rounds: int) -> None:
    """How long one placement takes, from Want to the answer, without gRPC."""
    names = [f"prefill-{i}" for i in range(24)] + [f"decode-{i}" for i in range(40)]
    registry = StreamRegistry()
    dispatcher = Dispatcher(registry)
    chance = random.Random("decisions")
    prompt = tuple(part_hash(i.to_bytes(4, "little"), "prompt") for i in range(256))
    records = []
    for number, name in enumerate(names):
        role = Role(name.partition("-")[0])
        join = Join(name, role, name, Incarnation(1), b"n", block_tokens=128, num_blocks=10**6,
                    num_slots=1024)  # fmt: skip
        record = Record(join, Load(free_slots=1024, free_blocks=10**6), number, 0.0, 0.0)
        registry.announce(record)
        records.append(record)
        held = prompt[: chance.randint(0, 250 if role is Role.PREFILL else 200)]
        others = (part_hash(i.to_bytes(4, "little"), name) for i in range(1000))
        known = (*held, *others)
        change = BlockChanges(0, known, (True,) * len(known))
        assert dispatcher.announced(name, Incarnation(1), change) is None
    took: dict[str, list[float]] = {"prefill": [], "decode": []}
    now_s, hit = 0.0, 0
    for _ in range(rounds):
        now_s += 0.2
        began_s = time.perf_counter()
        lease = dispatcher.open(Want("r", 32_768, 200, 60, hashes=prompt), now_s)
        dispatcher.dispatch(now_s)
        took["prefill"].append(time.perf_counter() - began_s)
        ((_, answer),) = dispatcher.outbox
        dispatcher.outbox.clear()
        assert isinstance(answer, PrefillAt)
        dispatcher.progress(lease, Progress(Phase.PREFILL, 32_000, True), now_s)
        began_s = time.perf_counter()
        dispatcher.dispatch(now_s)
        took["decode"].append(time.perf_counter() - began_s)
        dispatcher.outbox.clear()
        dispatcher.close(lease)
        hit += 32_768
        for record in records:
            load = replace(record.load, hit_tokens_total=hit)
            registry.report(record.join.member_id, record.stream, load, now_s)
            dispatcher.reported(replace(record, load=load))
    table = Table(title="decisions: 64 workers, 256 block hashes")
    for column in ("of", "p50", "p99", "a second"):
        table.add_column(column, justify="right")
    for name, times in took.items():
        times.sort()
        median, last = times[len(times) // 2], times[int(0.99 * len(times))]
        mean = statistics.mean(times)
        table.add_row(name, f"{1e3 * median:.2f} ms", f"{1e3 * last:.2f} ms", f"{1 / mean:.0f}")
    console.print(table)


# The replay


def prompts(limit: int) -> list[str]:
    """The trace's prompts: each id is one chunk of text."""

    def chunk(block: BlockHash) -> str:
        return block.hex() * 2

    jobs = traces.read(TRACE, limit, whole_blocks=False)
    return ["".join(map(chunk, job.blocks)) for job in jobs]


class Client:
    """Calls workers, or a router that carries requests, over kept connections."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=60, limits=limits)

    async def post(self, url: str, text: str) -> dict[str, object]:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "stream": False,
        }
        reply = await self._http.post(f"{url}/v1/chat/completions", json=body)
        reply.raise_for_status()
        answer: dict[str, object] = reply.json()
        return answer

    async def ready(self, url: str) -> None:
        """Until a chat request is answered."""
        async with asyncio.timeout(START_LIMIT_S):
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    await self.post(url, "x" * CHUNK)
                    return
                await asyncio.sleep(0.2)

    async def close(self) -> None:
        await self._http.aclose()


@contextlib.asynccontextmanager
async def through_ours(client: Client, folder: Path) -> AsyncIterator[tuple[Ask, Ask]]:
    address = f"127.0.0.1:{free_port()}"
    ports = [str(free_port()) for _ in range(NUM_WORKERS)]
    router = [*CLI, "router", "--listen", address, "--data-dir", str(folder), "--canary", "off"]
    workers = [*WORKERS, "--router", address, "--ports", *ports]
    with running([*router, "--log-level", "warning"], workers, folder=folder):
        for port in ports:
            await client.ready(f"http://127.0.0.1:{port}")
        placer = RouterClient(address)
        number = 0
        closing: set[asyncio.Task[None]] = set()

        async def ask(text: str, blocks: Sequence[BlockHash]) -> dict[str, object]:
            nonlocal number
            number += 1
            want = Want(str(number), len(text), 1, 60.0, hashes=tuple(blocks))
            lease = await placer.place(want)
            try:
                async for answer in lease:
                    if isinstance(answer, SkipTo):
                        reply = await client.post(f"http://{answer.rank.address}", text)
                        await lease.progress(Phase.DECODE, 1)
                        return reply
            finally:  # as in a gateway, the answer does not wait for the goodbye
                closing.add(ended := asyncio.create_task(lease.close()))
                ended.add_done_callback(closing.discard)
            raise AssertionError("the router ended the lease")

        async def direct(text: str, blocks: Sequence[BlockHash]) -> dict[str, object]:
            return await client.post(f"http://127.0.0.1:{ports[0]}", text)

        try:
            yield ask, direct
        finally:
            await asyncio.gather(*closing)
            await placer.close()


@contextlib.asynccontextmanager
async def through_peer(
    client: Client, folder: Path, peers: Path, name: str
) -> AsyncIterator[tuple[Ask, Ask]]:
    port = free_port()
    ports = [str(free_port()) for _ in range(NUM_WORKERS)]
    urls = [f"http://127.0.0.1:{p}" for p in ports]
    with running([*WORKERS, "--ports", *ports], folder=folder):
        for url in urls:
            await client.ready(url)
        with running(peer_commands(peers, port, urls)[name], folder=folder):
            await client.ready(f"http://127.0.0.1:{port}")

            async def ask(text: str, blocks: Sequence[BlockHash]) -> dict[str, object]:
                return await client.post(f"http://127.0.0.1:{port}", text)

            async def direct(text: str, blocks: Sequence[BlockHash]) -> dict[str, object]:
                return await client.post(urls[0], text)

            yield ask, direct


def peer_commands(peers: Path, port: int, urls: Sequence[str]) -> dict[str, list[str]]:
    """Routers that are installed below a folder, and how each is started."""
    metrics = f"--prometheus-port={free_port()}"
    common = [f"--port={port}", "--host=127.0.0.1", "--worker-urls", *urls, metrics]
    aware = [*common, "--policy", "cache_aware"]
    smg = [str(peers / "smg/bin/smg"), "launch"]
    found = {
        "vllm-router": [str(peers / "gw/bin/vllm-router"), *aware],
        "round robin": [str(peers / "gw/bin/vllm-router"), *common, "--policy", "round_robin"],
        "least load": [*smg, *common, "--policy", "least_load"],
        "prefix hash": [*smg, *common, "--policy", "prefix_hash"],
        "sglang-router": [str(peers / "gw/bin/sglang-router"), "launch", *aware],
        "smg": [*smg, *aware],
    }
    return {name: command for name, command in found.items() if Path(command[0]).exists()}


async def replay(
    way: str, ask: Ask, direct: Ask, texts: Sequence[str], streams: int, chain: Chain
) -> Figure:
    added_ms = await added(ask, direct, chain)
    served, computed, hits, blocks = Counter[str](), Counter[str](), 0, 0
    times: list[float] = []
    upcoming = iter(texts)

    async def stream() -> None:
        nonlocal hits, blocks
        for text in upcoming:
            names = chain(text)
            began_s = time.perf_counter()
            answer = await ask(text, names)
            times.append(time.perf_counter() - began_s)
            usage = answer["usage"]
            assert isinstance(usage, dict)
            worker = str(answer["choices"][0]["message"]["content"])  # type: ignore[index]
            hit = usage["prompt_tokens_details"]["cached_tokens"]
            served[worker] += 1
            computed[worker] += usage["prompt_tokens"] - hit
            hits += hit
            blocks += usage["prompt_tokens"]

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    took_s = time.perf_counter() - began_s
    times.sort()
    return Figure(
        way,
        hits / blocks,
        max(served.values()) * NUM_WORKERS / served.total(),
        max(computed.values()) * NUM_WORKERS / max(1, computed.total()),
        1e3 * statistics.mean(times),
        1e3 * times[int(0.99 * len(times))],
        len(texts) / took_s,
        added_ms,
    )


async def added(ask: Ask, direct: Ask, chain: Chain, rounds: int = 300) -> float:
    """Median of one stream of a cached prompt, less that without a router."""
    text = "added latency, a prompt of eight chunks ".ljust(8 * CHUNK, "x")
    names = chain(text)
    medians = []
    for call in (ask, direct):
        for _ in range(20):
            await call(text, names)
        times = []
        for _ in range(rounds):
            began_s = time.perf_counter()
            await call(text, names)
            times.append(time.perf_counter() - began_s)
        medians.append(statistics.median(times))
    return 1e3 * (medians[0] - medians[1])


async def run(options: argparse.Namespace, console: Console) -> list[Figure]:
    texts, figures = prompts(options.limit), list[Figure]()
    client = Client()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with console.status("ours"):
            async with through_ours(client, folder) as (ask, direct):
                await asyncio.sleep(1.5)  # until all have joined and announced their blocks
                figures.append(await replay("ours", ask, direct, texts, options.streams, chain_of))
        for peer in peer_commands(options.peers, 0, []) if options.peers else ():
            with console.status(peer):
                try:
                    async with through_peer(client, folder, options.peers, peer) as (ask, direct):
                        figure = await replay(peer, ask, direct, texts, options.streams, chain_of)
                        figures.append(figure)
                except (TimeoutError, httpx.HTTPError) as error:
                    console.print(f"{peer}: {type(error).__name__}, no figure", style="red")
    await client.close()
    return figures


def chain_of(text: str) -> tuple[BlockHash, ...]:
    """Names of the whole chunks of a text, as the workers name them."""
    state, names = hashlib.blake2b(digest_size=16), []
    for at in range(0, len(text) - CHUNK + 1, CHUNK):
        state.update(text[at : at + CHUNK].encode())
        names.append(BlockHash(state.digest()))
    return tuple(names)


def best_hits(texts: Sequence[str]) -> float:
    """Of one cache without bounds."""
    known, hits, blocks = set[BlockHash](), 0, 0
    for text in texts:
        names = chain_of(text)
        depth = next((i for i, name in enumerate(names) if name not in known), len(names))
        hits += depth
        blocks += len(names)
        known.update(names)
    return hits / blocks


def show(console: Console, figures: Sequence[Figure], texts: Sequence[str], streams: int) -> None:
    table = Table(
        title=f"{len(texts)} prompts, {streams} streams, {NUM_WORKERS} workers; "
        f"one cache without bounds would hit {best_hits(texts):.3f}"
    )
    table.add_column("router")
    for column in ("hits", "busiest", "by work", "mean", "p99", "requests/s", "added p50"):
        table.add_column(column, justify="right")
    for f in figures:
        table.add_row(
            f.way,
            f"{f.hits:.3f}",
            f"{f.busiest:.2f}",
            f"{f.busiest_work:.2f}",
            f"{f.mean_ms:.0f} ms",
            f"{f.p99_ms:.0f} ms",
            f"{f.requests_per_s:.0f}",
            f"{f.added_ms:.2f} ms",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=4000, help="prompts of the trace")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1000, help="decisions to time")
    parser.add_argument("--peers", type=Path, help="folder with gw/ smg/ of public routers")
    parser.add_argument("--json", type=Path, help="also append the figures to this file")
    options = parser.parse_args()
    console = Console()
    decisions(console, options.rounds)
    figures = uvloop.run(run(options, console))
    show(console, figures, prompts(options.limit), options.streams)
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(vars(f)) + "\n" for f in figures)


if __name__ == "__main__":
    main()
