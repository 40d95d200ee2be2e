"""A gateway on a port of its own, with scripted stations behind it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from diptych.gateway import app, served
from diptych.gateway.chat import ChatEndpoint
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.served import Served
from diptych.gateway.stream import Patience
from diptych.gateway.tenancy.door import Door
from diptych.router.client import Fleet
from diptych.testing.hops import DecodeHop, Output, PrefillHop, ScriptedHops
from diptych.text.markers import Marker, Segment

FLEET = Fleet(ready=True, namespace=b"n" * 16, max_model_len=4096, block_tokens=8)
MODEL = "tiny"


@dataclass
class ScriptedGateway:
    """Serves model `tiny`; whoever asks hears what it was told to say."""

    base_url: str
    served: Served
    hops: ScriptedHops

    def says(self, *segments: Segment, **output: Any) -> None:
        """The next answers, in text and markers; fields of Output."""
        self.hops.output = Output(self.served.tokenizer.encode(segments), **output)

    @property
    def heard(self) -> str:
        """The newest prompt as text; special tokens have none."""
        prompt = self.hops.generations[-1].prompt
        return b"".join(map(self.served.tokenizer.token_bytes, prompt)).decode()

    @property
    def is_to_think(self) -> bool:
        """Whether the newest answer begins with reasoning."""
        (think,) = self.served.tokenizer.encode([Marker.THINK])
        return self.hops.generations[-1].prompt[-1] == think


@asynccontextmanager
async def scripted_gateway(
    checkpoint: Path, *, door: Door | None = None, has_page: bool = True
) -> AsyncIterator[ScriptedGateway]:
    """Serve on loopback while the block runs; afterwards no station may know any request."""
    model = served.load(checkpoint, MODEL, b"master", lambda: FLEET)
    hops = ScriptedHops(Output(model.tokenizer.encode(["Hello"])))
    pipeline = Pipeline(Hops(hops, PrefillHop(hops), DecodeHop(hops)))
    chat = ChatEndpoint(model, pipeline, Patience())
    application = app.build(model, chat, pipeline.measures, lambda: True, door, has_page=has_page)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(application, log_config=None, lifespan="off", ws="none", server_header=False)
    )
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield ScriptedGateway(f"http://127.0.0.1:{listener.getsockname()[1]}", model, hops)
    finally:
        server.should_exit = True
        await serving
        await pipeline.close()
        model.close()
        assert hops.is_at_baseline, hops.open
        assert chat.num_running == 0
