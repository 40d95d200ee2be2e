"""What the gateway's benchmark measures, each in a process of its own.

`bare` streams ready-made chunks: what uvicorn and Starlette cost alone. `alone` is the gateway over
stations of a script in the same process. `workers` are a prefill and a decode worker of a script
that speak real gRPC, for a real router and a real gateway in front.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from diptych.core.phases import Role
from diptych.gateway import app, served
from diptych.gateway.access import Access
from diptych.gateway.chat.shapes import ChatShapes
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.server import Server, bind
from diptych.gateway.sse import DONE
from diptych.gateway.traffic import Traffic
from diptych.router.client import Fleet, Join, Load, Reporter
from diptych.testing.hops import DecodeHop, Output, PrefillHop, ScriptedHops
from diptych.testing.scripted import GRAIN, Script, ScriptedEngine
from diptych.testing.workers import Worker, decode_worker, prefill_worker

MODEL = "scripted"
FLEET = Fleet(ready=True, namespace=b"n" * 16, max_model_len=2**21, block_tokens=GRAIN)


def bare(port: int, tokens: int) -> None:
    """Chunks like ours, made beforehand, one send each."""
    shapes = ChatShapes("m", "fp_0", 10, has_reasoning=False)
    chunk = shapes.no_op().replace(b"{}", b'{"content":" one"}')

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(tokens):
            yield chunk
            await asyncio.sleep(0)
        yield DONE

    async def answer(request: Request) -> StreamingResponse:
        await request.json()
        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def alive(request: Request) -> JSONResponse:
        """Routers ask for all kinds of things before they send anything."""
        models = [{"id": MODEL, "object": "model"}]
        return JSONResponse({"status": "ok", "model_path": MODEL, "object": "list", "data": models})

    posts = Route("/v1/chat/completions", answer, methods=["POST"])
    application = Starlette(routes=[posts, Route("/{path:path}", alive, methods=["GET"])])
    config = uvicorn.Config(application, port=port, log_level="error", access_log=False)
    uvicorn.Server(config).run()


async def alone(port: int, tokens: int, checkpoint: Path) -> None:
    """The gateway without a wire behind it."""
    model = served.load(checkpoint, MODEL, b"master", lambda: FLEET)
    ids = model.tokenizer.encode([" one two three four" * tokens])[:tokens]
    hops = ScriptedHops(Output(ids))
    hops.generations = _Forgetful()
    pipeline = Pipeline(Hops(hops, PrefillHop(hops), DecodeHop(hops)))
    public = app.build(model, Traffic(), pipeline, lambda: True)
    application = Access(public, pipeline.measures)
    await Server(application, None).serve([bind("127.0.0.1", port)])


class _Forgetful(list[object]):
    """Keeps nothing of what a long run would fill it with."""

    def append(self, item: object) -> None:
        pass


async def workers(router: str) -> None:
    """Join a router until the process ends. All tokens are ASCII, so each is a chunk."""
    script = Script(num_blocks=16384, num_slots=1024, vocab_size=97, block_bytes=64, slot_bytes=64)
    async with prefill_worker(script=script) as prefill, decode_worker(script=script) as decode:
        await asyncio.gather(
            _report(router, Role.PREFILL, prefill), _report(router, Role.DECODE, decode)
        )


async def _report(router: str, role: Role, worker: Worker) -> None:  # type: ignore[type-arg]
    def load() -> Load:
        counts = worker.engine.counts()
        return Load(
            running=counts.running,
            waiting=counts.waiting,
            free_blocks=counts.free_blocks,
            free_slots=counts.free_slots,
        )

    engine: ScriptedEngine = worker.engine
    join = Join(
        worker.rank.worker_id,
        role,
        incarnation=worker.rank.incarnation,
        namespace=engine.namespace,
        layout_hash=engine.layout.digest,
        model=MODEL,
        max_model_len=engine.max_model_len,
        block_tokens=GRAIN,
        num_blocks=engine.script.num_blocks,
        num_slots=engine.script.num_slots,
        address=worker.rank.address,
    )
    await Reporter(router, replace(join), load).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["bare", "alone", "workers"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--router", default="")
    options = parser.parse_args()
    match options.what:
        case "bare":
            bare(options.port, options.tokens)
        case "alone":
            uvloop.run(alone(options.port, options.tokens, options.checkpoint))
        case _:
            uvloop.run(workers(options.router))


if __name__ == "__main__":
    main()
