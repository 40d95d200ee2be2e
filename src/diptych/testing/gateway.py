"""A gateway on a port of its own, with scripted stations behind it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diptych.gateway import app, served
from diptych.gateway.hops import Hops
from diptych.gateway.pipeline import Pipeline
from diptych.gateway.served import Served
from diptych.gateway.server import Server, bind
from diptych.gateway.tenancy.door import Door
from diptych.gateway.traffic import Traffic
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
    traffic = Traffic()
    application = app.build(model, traffic, pipeline, lambda: True, door, has_page=has_page)
    listener = bind("127.0.0.1", 0)
    server = Server(application, None)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield ScriptedGateway(f"http://127.0.0.1:{listener.getsockname()[1]}", model, hops)
    finally:
        server.should_exit = True
        await serving
        await pipeline.close()
        model.close()
        assert hops.is_at_baseline, hops.open
        assert traffic.num_running == 0
