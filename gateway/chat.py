"""The chat endpoint: from a body to an answer, streamed or whole."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from diptych.core.errors import Overloaded
from diptych.core.step import Logprob
from diptych.gateway import ask as asks
from diptych.gateway.answer import Answer
from diptych.gateway.ask import Ask
from diptych.gateway.body import read_json
from diptych.gateway.events import Emit, End
from diptych.gateway.pipeline import Call, Pipeline
from diptych.gateway.served import Served
from diptych.gateway.shapes import DONE, Shapes
from diptych.gateway.stream import Outbox, Patience, Receive, Send, end, stream, unless_gone
from diptych.gateway.tenancy.admission import Spent
from diptych.gateway.tenancy.visit import Visit, visit_of
from diptych.text.pieces import Piece

log = logging.getLogger(__name__)


class ChatEndpoint:
    """ASGI. Watches for the client leaving from before the queue until the last byte."""

    def __init__(
        self,
        served: Served,
        pipeline: Pipeline,
        patience: Patience,
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        self._served = served
        self._pipeline = pipeline
        self._patience = patience
        self._on_load = on_load
        self._idle = asyncio.Event()
        self._idle.set()
        self._cut = asyncio.Event()
        self.is_draining = False
        self.num_running = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if self.is_draining:
            raise _shutting_down()
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        body = await read_json(headers, receive)
        self._count(1)
        try:
            await unless_gone(receive, self._answer(body, visit_of(scope), send))
        finally:
            self._count(-1)

    async def drain(self, patience_s: float) -> None:
        """Take nothing new, let running answers end, and then end them with an error."""
        self.is_draining = True
        self._on_load()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        self._cut.set()

    def _count(self, change: int) -> None:
        self.num_running += change
        if self.num_running:
            self._idle.clear()
        else:
            self._idle.set()
        self._on_load()

    async def _answer(self, body: dict[str, Any], visit: Visit, send: Send) -> None:
        began_s = time.monotonic()
        ask = await asks.read(body, visit, self._served)
        answers = [Answer(i, asks.parser_of(ask, self._served)) for i in range(ask.request.n)]
        if ask.request.stream:

            async def produce(outbox: Outbox) -> None:
                async with _metered(visit, ask, answers):
                    await self._stream(ask, answers, outbox)

            no_op = ask.shapes.no_op()
            await stream(produce, send, visit.request_id, ask.headers, no_op, self._patience)
        else:
            async with _metered(visit, ask, answers):
                whole = await self._whole(ask, answers)
            spent_ms = round((time.monotonic() - began_s) * 1000)
            await _send_json(send, whole, ask.headers | {"openai-processing-ms": str(spent_ms)})
        log.info(
            "answered prompt_tokens=%d tokens=%d finish=%s seconds=%.3f",
            ask.shapes.prompt_tokens,
            sum(len(answer.token_ids) for answer in answers),
            answers[0].finish_reason,
            time.monotonic() - began_s,
        )

    async def _stream(self, ask: Ask, answers: list[Answer], outbox: Outbox) -> None:
        choices = [_StreamedChoice(answer, ask.shapes, outbox) for answer in answers]
        await self._generate(ask, choices)
        outbox.put(ask.shapes.usage_chunk(answers))
        outbox.put(DONE)

    async def _whole(self, ask: Ask, answers: list[Answer]) -> bytes:
        choices = [_CollectedChoice(answer) for answer in answers]
        await self._generate(ask, choices)
        return ask.shapes.whole(answers, [choice.pieces for choice in choices])

    async def _generate(self, ask: Ask, choices: "Sequence[_Choice]") -> None:
        """All choices at once; the first that fails ends the others."""
        runs = [
            asyncio.create_task(self._run(call, choice))
            for call, choice in zip(ask.calls, choices, strict=True)
        ]
        cut = asyncio.create_task(self._cut.wait())
        waiting: set[asyncio.Task[Any]] = set(runs)
        try:
            while waiting:
                done, _ = await asyncio.wait({*waiting, cut}, return_when=asyncio.FIRST_COMPLETED)
                for run in done & waiting:
                    run.result()
                waiting -= done
                if waiting and cut in done:
                    raise _shutting_down()
        finally:
            await end(*runs, cut)

    async def _run(self, call: Call, choice: "_Choice") -> None:
        choice.finish(*await self._pipeline.run(call, choice.put))


@asynccontextmanager
async def _metered(visit: Visit, ask: Ask, answers: Sequence[Answer]) -> AsyncIterator[None]:
    """Generate inside: the caller's tokens are reserved, and settled however it ends."""

    def count() -> Spent:
        return Spent(
            prompt=ask.shapes.prompt_tokens,
            cached=answers[0].cached_tokens,
            completion=sum(len(answer.token_ids) for answer in answers),
            reasoning=sum(answer.reasoning_tokens for answer in answers),
        )

    max_new = sum(call.generation.max_new for call in ask.calls)
    async with visit.metered(ask.shapes.prompt_tokens, max_new, ask.request.user_id, count):
        yield
        visit.finish = answers[0].finish_reason or ""


class _Choice(Protocol):
    """Takes one choice's output."""

    def put(self, emit: Emit) -> bool: ...

    def finish(self, ended: End | None, cached_tokens: int) -> None: ...


class _StreamedChoice:
    """Puts a choice's chunks into the outbox as its tokens come."""

    def __init__(self, answer: Answer, shapes: Shapes, outbox: Outbox) -> None:
        self._answer = answer
        self._shapes = shapes
        self._outbox = outbox
        self._is_open = False
        self._told = 0  # token ids that have left with some chunk

    def put(self, emit: Emit) -> bool:
        self._open(emit.prompt_logprobs)
        self._say(self._answer.push(emit))
        return not self._answer.is_over

    def finish(self, ended: End | None, cached_tokens: int) -> None:
        self._open()
        self._say(self._answer.finish(ended, cached_tokens))
        ids = self._answer.token_ids[self._told :]
        self._outbox.put(self._shapes.closing(self._answer, ids))

    def _open(self, prompt_logprobs: Sequence[Logprob] = ()) -> None:
        if not self._is_open:
            self._is_open = True
            self._outbox.put(self._shapes.opening(self._answer, prompt_logprobs))

    def _say(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            ids = self._answer.token_ids
            chunk = self._shapes.piece(self._answer, piece, ids[self._told :])
            if chunk:
                self._told = len(ids)
                self._outbox.put(chunk)


class _CollectedChoice:
    """Collects a choice's text."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.pieces: list[Piece] = []

    def put(self, emit: Emit) -> bool:
        self.pieces += self._answer.push(emit)
        return not self._answer.is_over

    def finish(self, ended: End | None, cached_tokens: int) -> None:
        self.pieces += self._answer.finish(ended, cached_tokens)


def _shutting_down() -> Overloaded:
    return Overloaded("this server is shutting down", code="draining", retry_after_s=5)


async def _send_json(send: Send, body: bytes, headers: dict[str, str]) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    await send({"type": "http.response.body", "body": body})
