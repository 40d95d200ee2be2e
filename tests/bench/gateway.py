"""What the gateway costs, next to uvicorn and Starlette alone. Run it by `make bench-gateway`.

Every server answers the same streaming request with the same number of chunks, as fast as it can.
`alone` is the gateway over stations of a script in its own process; `chain` is a real router and
real gRPC to workers of a script. `--peers FOLDER` adds public routers installed there, each
in front of the bare server.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform as machine
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from diptych.testing.platform import CLI, free_port
from diptych.testing.processes import running
from diptych.testing.sse_load import Heard, load

HERE = Path(__file__).parent
CHECKPOINT = HERE.parent / "golden" / "tiny-text"
SERVERS = [sys.executable, str(HERE / "gateway_servers.py")]
MODEL = "scripted"
START_LIMIT_S = 25.0


@dataclass(frozen=True)
class Figure:
    """One way at one number of streams."""

    way: str
    streams: int
    first_ms: float
    p99_first_ms: float
    token_us: float  # of an answer, for each of its chunks
    requests_per_s: float
    chunks_per_s: float
    errors: int


def figure(way: str, streams: int, tokens: int, heard: Heard) -> Figure:
    token_us = 1e3 * (heard.whole_ms - heard.first_ms) / tokens
    return Figure(
        way,
        streams,
        heard.first_ms,
        heard.p99_first_ms,
        token_us,
        heard.requests_per_s,
        heard.chunks_per_s,
        heard.errors,
    )


class Silent(Exception):
    """A server did not come up."""


def wait_for(url: str) -> None:
    """Until the server answers a whole chat request."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "stream": True,
        "thinking": {"type": "disabled"},
    }
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.post(f"{url}/v1/chat/completions", json=body, timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise Silent(f"{url} does not answer")


@contextlib.contextmanager
def bare(tokens: int, folder: Path) -> Iterator[str]:
    port = free_port()
    with running([*SERVERS, "bare", f"--port={port}", f"--tokens={tokens}"], folder=folder):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def alone(tokens: int, folder: Path) -> Iterator[str]:
    port = free_port()
    flags = [f"--port={port}", f"--tokens={tokens}", f"--checkpoint={CHECKPOINT}"]
    with running([*SERVERS, "alone", *flags], folder=folder):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def chain(tokens: int, folder: Path) -> Iterator[str]:
    router, port = f"127.0.0.1:{free_port()}", free_port()
    data = ["--data-dir", str(folder), "--log-level", "warning"]
    gateway = ["--router", router, "--port", str(port), "--admin-listen", "off"]
    gateway += ["--checkpoint", str(CHECKPOINT), "--model-name", MODEL]
    with running(
        [*CLI, "router", "--listen", router, *data],
        [*SERVERS, "workers", "--router", router],
        [*CLI, "gateway", *gateway, *data],
        folder=folder,
    ):
        yield f"http://127.0.0.1:{port}"


def peer_commands(peers: Path, port: int, worker: str) -> dict[str, list[str]]:
    """Routers that are installed below a folder, and how each is started."""
    metrics = f"--prometheus-port={free_port()}"
    common = [f"--port={port}", "--host=127.0.0.1", "--worker-urls", worker, metrics]
    found = {
        "vllm-router": [str(peers / "gw/bin/vllm-router"), *common],
        "sglang-router": [str(peers / "gw/bin/sglang-router"), "launch", *common],
        "smg": [str(peers / "smg/bin/smg"), "launch", *common],
        "litellm": [
            *(str(peers / "lit/bin/litellm"), "--model", f"openai/{MODEL}"),
            *("--api_base", f"{worker}/v1", "--port", str(port), "--host", "127.0.0.1"),
        ],
    }
    return {name: command for name, command in found.items() if Path(command[0]).exists()}


def measure(way: str, url: str, options: argparse.Namespace) -> list[Figure]:
    wait_for(url)
    asyncio.run(load(url, MODEL, 4, 1.0, options.tokens))  # warm
    figures = []
    for streams in options.streams:
        heard = asyncio.run(load(url, MODEL, streams, options.seconds, options.tokens))
        figures.append(figure(way, streams, options.tokens, heard))
    return figures


async def livez_delays(url: str, chars: int = 1_000_000) -> list[float]:
    """Seconds that /livez takes, again and again, while a long prompt is taken."""
    prompt = ("The river was seven stones wide. " * (chars // 33 + 1))[:chars]
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 1,
        "thinking": {"type": "disabled"},
    }
    delays: list[float] = []
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as long,
        httpx.AsyncClient(base_url=url, timeout=120) as short,
    ):
        await short.get("/livez")
        taking = asyncio.create_task(long.post("/v1/chat/completions", json=body))
        while not taking.done():
            began_s = time.perf_counter()
            await short.get("/livez")
            delays.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.002)
        (await taking).raise_for_status()
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--tokens", type=int, default=64, help="chunks an answer")
    parser.add_argument("--seconds", type=float, default=5.0, help="a measurement")
    parser.add_argument("--ways", nargs="+", default=["bare", "alone", "chain"])
    parser.add_argument("--peers", type=Path, help="folder with gw/ smg/ lit/ of public routers")
    parser.add_argument("--json", type=Path, help="also append the figures to this file")
    options = parser.parse_args()
    console, figures = Console(), list[Figure]()
    delays: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for way, server in (("bare", bare), ("alone", alone), ("chain", chain)):
            if way in options.ways:
                with console.status(way), server(options.tokens, folder) as url:
                    figures += measure(way, url, options)
                    if way == "alone":
                        delays = asyncio.run(livez_delays(url))
        if options.peers:
            figures += peer_figures(options, folder, console)
    show(console, figures, options.tokens)
    if delays:
        console.print(
            f"/livez while a prompt of a million characters is taken: p50 "
            f"{1e3 * statistics.median(delays):.1f} ms, worst {1e3 * max(delays):.0f} ms of "
            f"{len(delays)}"
        )
    if options.json:
        with options.json.open("a") as file:
            file.writelines(json.dumps(vars(f)) + "\n" for f in figures)


def peer_figures(options: argparse.Namespace, folder: Path, console: Console) -> list[Figure]:
    figures: list[Figure] = []
    for peer in peer_commands(options.peers, 0, ""):
        with bare(options.tokens, folder) as worker:
            wait_for(worker)  # some give up on a worker that is not there when they start
            port = free_port()
            command = peer_commands(options.peers, port, worker)[peer]
            try:
                with console.status(peer), running(command, folder=folder):
                    figures += measure(peer, f"http://127.0.0.1:{port}", options)
            except Silent as silent:
                console.print(f"{peer}: {silent}; left out")
    return figures


def show(console: Console, figures: Sequence[Figure], tokens: int) -> None:
    title = f"{tokens} chunks an answer, {os.cpu_count()} cores of {machine.machine()}"
    table = Table(title=title)
    table.add_column("way")
    for column in ("streams", "first chunk p50", "p99", "added", "a chunk", "requests/s"):
        table.add_column(column, justify="right")
    table.add_column("chunks/s", justify="right")
    table.add_column("of bare", justify="right")
    table.add_column("errors", justify="right")
    base = {f.streams: f for f in figures if f.way == "bare"}
    for f in sorted(figures, key=lambda f: f.streams):
        against = base.get(f.streams, f)
        table.add_row(
            f.way,
            str(f.streams),
            f"{f.first_ms:.2f} ms",
            f"{f.p99_first_ms:.1f} ms",
            f"{f.first_ms - against.first_ms:+.2f} ms",
            f"{f.token_us:.0f} µs",
            f"{f.requests_per_s:.0f}",
            f"{f.chunks_per_s:.0f}",
            f"{f.chunks_per_s / against.chunks_per_s:.2f}",
            str(f.errors),
        )
    console.print(table)


if __name__ == "__main__":
    main()
