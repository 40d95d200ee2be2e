"""Workers of a script for `router.py`: chat over HTTP, an LRU cache of 64-character chunks.

A chunk that is not cached takes half a millisecond, one prompt after another. With `--router` they
also join our router and tell it their load and their blocks.
"""

import argparse
import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import orjson
import uvloop

from diptych.core.ids import BlockHash, Incarnation
from diptych.core.phases import Role
from diptych.engine.block_log import BlockLog
from diptych.router.client import Join, Load, Reporter

CHUNK = 64
MISS_S = 0.0005
MODEL = "scripted"


def chain(text: str) -> tuple[BlockHash, ...]:
    """Names of the whole chunks of a text."""
    state, names = hashlib.blake2b(digest_size=16), []
    for at in range(0, len(text) - CHUNK + 1, CHUNK):
        state.update(text[at : at + CHUNK].encode())
        names.append(BlockHash(state.digest()))
    return tuple(names)


class Worker:
    """One of them."""

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name = name
        self.log = BlockLog()
        self.num_blocks = num_blocks
        self.busy_us = self.steps = self.rows = self.pairs = self.query = self.hit = 0
        self.waiting = 0
        self._cache: OrderedDict[BlockHash, None] = OrderedDict()
        self._turn = asyncio.Lock()

    async def answer(self, text: str) -> bytes:
        names = chain(text)
        self.waiting += 1
        async with self._turn:
            hit = 0
            while hit < len(names) and names[hit] in self._cache:
                hit += 1
            began_s = time.monotonic()
            missed = len(names) - hit
            if missed:
                await asyncio.sleep(MISS_S * missed)
            self._publish(names)
            self.busy_us += round(1e6 * (time.monotonic() - began_s))
            self.steps += 1
            self.rows += CHUNK * missed
            self.pairs += CHUNK * missed * CHUNK * (hit + missed // 2)
            self.query += CHUNK * len(names)
            self.hit += CHUNK * hit
        self.waiting -= 1
        usage = {
            "prompt_tokens": len(names),
            "completion_tokens": 1,
            "total_tokens": len(names) + 1,
            "prompt_tokens_details": {"cached_tokens": hit},
        }
        message = {"role": "assistant", "content": self.name}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return orjson.dumps(
            {
                "id": self.name,
                "object": "chat.completion",
                "created": 1,
                "model": MODEL,
                "choices": [choice],
                "usage": usage,
            }
        )

    def load(self) -> Load:
        return Load(
            running=min(1, self.waiting),
            waiting=max(0, self.waiting - 1),
            free_blocks=self.num_blocks,
            free_slots=1024 - self.waiting,
            query_tokens_total=self.query,
            hit_tokens_total=self.hit,
            busy_us_total=self.busy_us,
            steps_total=self.steps,
            prompt_rows_total=self.rows,
            prompt_pairs_total=self.pairs,
        )

    def _publish(self, names: Sequence[BlockHash]) -> None:
        for name in names:
            if name not in self._cache:
                self.log.stored(name)
            self._cache[name] = None
            self._cache.move_to_end(name)
        while len(self._cache) > self.num_blocks:
            self.log.removed(self._cache.popitem(last=False)[0])


class Http(asyncio.Protocol):
    """As much of HTTP/1.1 as routers speak to workers."""

    def __init__(self, worker: Worker, notify: asyncio.Event) -> None:
        self._worker = worker
        self._notify = notify
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of their own kind

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end])
            length = next(
                (
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            task = asyncio.create_task(self._serve(head, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"POST /v1/chat"):
            text = orjson.loads(body)["messages"][0]["content"]
            answer = await self._worker.answer(text)
            self._notify.set()
        elif b" /v1/models" in head[:40]:
            answer = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            answer = orjson.dumps({"status": "ok", "model_path": MODEL, "served_model_name": MODEL})
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % len(answer)
                + answer
            )


async def serve(ports: Sequence[int], num_blocks: int, router: str | None) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        for number, port in enumerate(ports):
            worker, changed = Worker(f"worker-{number}", num_blocks), asyncio.Event()

            def protocol(worker: Worker = worker, changed: asyncio.Event = changed) -> Http:
                return Http(worker, changed)

            await loop.create_server(protocol, "127.0.0.1", port)
            if router is not None:
                group.create_task(_report(router, worker, port, changed))
        await asyncio.Event().wait()


async def _report(router: str, worker: Worker, port: int, changed: asyncio.Event) -> None:
    join = Join(
        worker.name,
        Role.HYBRID,
        f"127.0.0.1:{port}",
        Incarnation(port),
        b"n" * 16,
        model=MODEL,
        max_model_len=2**20,
        block_tokens=CHUNK,
        num_blocks=2**20,
        num_slots=1024,
    )
    reporter = Reporter(router, join, worker.load, block_log=worker.log)

    async def notify() -> None:
        while True:
            await changed.wait()
            changed.clear()
            reporter.notify()

    async with asyncio.TaskGroup() as group:
        group.create_task(reporter.run())
        group.create_task(notify())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, nargs="+", required=True)
    parser.add_argument("--blocks", type=int, default=16_000)
    parser.add_argument("--router")
    options = parser.parse_args()
    uvloop.run(serve(options.ports, options.blocks, options.router))


if __name__ == "__main__":
    main()
