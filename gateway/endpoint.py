"""One endpoint that generates: from a body to an answer, streamed or whole, in any dialect."""

import asyncio
import time
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import orjson

from diptych.core.errors import DiptychError, Expired
from diptych.core.step import Logprob
from diptych.gateway import timings
from diptych.gateway.answer import Answer
from diptych.gateway.body import MAX_BODY_BYTES, read_json
from diptych.gateway.deadlines import client_timeout_s
from diptych.gateway.dialect import Ask, Dialect, Shapes
from diptych.gateway.errors import envelope_for
from diptych.gateway.events import Emit, End
from diptych.gateway.measures import OTHER
from diptych.gateway.notes import Notes
from diptych.gateway.pipeline import Call, Pipeline
from diptych.gateway.stream import (
    Outbox,
    Patience,
    Receive,
    Send,
    end,
    send_whole,
    stream,
    unless_gone,
)
from diptych.gateway.tenancy.visit import Visit, visit_of
from diptych.gateway.traffic import Traffic, shutting_down
from diptych.text.pieces import Piece


class Endpoint:
    """ASGI. Watches for the client leaving from before the queue until the last byte."""

    def __init__(
        self,
        dialect: Dialect,
        traffic: Traffic,
        pipeline: Pipeline,
        patience: Patience,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`max_bytes`: of a body."""
        self._dialect = dialect
        self._traffic = traffic
        self._pipeline = pipeline
        self._patience = patience
        self._max_bytes = max_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self._traffic.check_open()
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        timeout_s = client_timeout_s(headers)
        until_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        visit = visit_of(scope)
        visit.notes.wants_timings = timings.is_asked(headers)
        body, visit.size_bytes = await read_json(headers, receive, self._max_bytes)
        with self._traffic.entered():
            await unless_gone(receive, self._answer(body, visit, send, until_s))

    async def _answer(
        self, body: dict[str, Any], visit: Visit, send: Send, until_s: float | None
    ) -> None:
        began_s = time.monotonic()
        notes = visit.notes
        async with _within(until_s):
            ask = await self._dialect.read(body, visit)
        notes.ignored = ask.harmless + (OTHER,) * len(ask.ignored)
        if ask.is_stream:

            async def produce(outbox: Outbox) -> None:
                async with _metered(visit, ask), _within(until_s):
                    await self._stream(ask, notes, outbox)

            request_id, patience = visit.request_id, self._patience
            await stream(produce, send, request_id, ask.headers, ask.shapes, patience, notes)
        else:

            async def collect() -> bytes:
                async with _metered(visit, ask), _within(until_s):
                    return await self._whole(ask, notes)

            def headers() -> dict[str, str]:
                spent_ms = round((time.monotonic() - began_s) * 1000)
                return {**ask.headers, "openai-processing-ms": str(spent_ms)}

            def failure(error: DiptychError) -> bytes:
                return orjson.dumps(envelope_for(visit.endpoint, error, visit.request_id))

            await send_whole(collect, send, headers, failure, self._patience)

    async def _stream(self, ask: Ask, notes: Notes, outbox: Outbox) -> None:
        choices = [_StreamedChoice(answer, ask.shapes, outbox) for answer in ask.answers]
        await self._generate(ask, notes, choices)
        outbox.put(ask.shapes.ending(ask.answers))

    async def _whole(self, ask: Ask, notes: Notes) -> bytes:
        choices = [_CollectedChoice(answer) for answer in ask.answers]
        await self._generate(ask, notes, choices)
        return ask.shapes.whole(ask.answers, [choice.pieces for choice in choices])

    async def _generate(self, ask: Ask, notes: Notes, choices: "Sequence[_Choice]") -> None:
        """All choices at once; the first that fails ends the others."""
        runs = [
            asyncio.create_task(self._run(call, choice, notes))
            for call, choice in zip(ask.calls, choices, strict=True)
        ]
        cut = asyncio.create_task(self._traffic.cut.wait())
        waiting: set[asyncio.Task[Any]] = set(runs)
        try:
            while waiting:
                done, _ = await asyncio.wait({*waiting, cut}, return_when=asyncio.FIRST_COMPLETED)
                for run in done & waiting:
                    run.result()
                waiting -= done
                if waiting and cut in done:
                    raise shutting_down()
        finally:
            await end(*runs, cut)

    async def _run(self, call: Call, choice: "_Choice", notes: Notes) -> None:
        choice.finish(*await self._pipeline.run(call, choice.put, notes.courses.append))


@asynccontextmanager
async def _metered(visit: Visit, ask: Ask) -> AsyncIterator[None]:
    """Generate inside: the caller's tokens are reserved, and settled however it ends."""
    async with visit.metered(ask.prompt_tokens, ask.max_new, ask.user, ask.spent):
        try:
            yield
        finally:
            for answer in ask.answers:
                visit.notes.parsed += answer.parsed
        visit.finish = ask.answers[0].finish_reason or ""


@asynccontextmanager
async def _within(until_s: float | None) -> AsyncIterator[None]:
    """Work inside; Expired when the client's own time limit is over."""
    limit = asyncio.timeout_at(until_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Expired("the time limit that the client set is over") from None


class _Choice(Protocol):
    """Takes one choice's output."""

    def put(self, emit: Emit) -> bool: ...

    def finish(self, ended: End | None, cached_tokens: int) -> None: ...


class _StreamedChoice:
    """Puts a choice's events into the outbox as its tokens come."""

    def __init__(self, answer: Answer, shapes: Shapes, outbox: Outbox) -> None:
        self._answer = answer
        self._shapes = shapes
        self._outbox = outbox
        self._is_open = False

    def put(self, emit: Emit) -> bool:
        self._open(emit.prompt_logprobs)
        self._say(self._answer.push(emit))
        return not self._answer.is_over

    def finish(self, ended: End | None, cached_tokens: int) -> None:
        self._open()
        self._say(self._answer.finish(ended, cached_tokens))
        self._outbox.put(self._shapes.closing(self._answer))

    def _open(self, prompt_logprobs: Sequence[Logprob] = ()) -> None:
        if not self._is_open:
            self._is_open = True
            self._outbox.put(self._shapes.opening(self._answer, prompt_logprobs))

    def _say(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._outbox.put(self._shapes.piece(self._answer, piece))


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
