"""Router, prefill and decode in this process, without a wire: a gateway's whole world on a script.

Stages, in order: `place`, `queue`, `prefill`, `first`, `decode_at`, `reserve`, `start`, and
`token 1`, `token 2`, … before the step that brings an output to that many tokens.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from diptych.core.errors import DiptychError, Lost
from diptych.core.ids import Incarnation, Key, Rank, WorkerId
from diptych.core.phases import Finish, Phase
from diptych.core.request import Generation
from diptych.core.step import Logprob, Row
from diptych.prefill_service.client import Accepted, Event, Progress, Tokens
from diptych.router.client import DecodeAt, Have, Placement, PrefillAt, SkipTo, Want


@dataclass(frozen=True, slots=True)
class Output:
    """What the engines sample for every request."""

    token_ids: tuple[int, ...]
    finish: Finish = Finish.STOP
    stop_token: int | None = None
    tokens_a_step: int = 1
    cached_tokens: int = 0
    cached_disk: int = 0
    num_top: int = 2  # alternatives of a request that asks for log-probabilities

    def row(self, generation: Generation, key: Key, start: int, count: int) -> Row:
        """The row of a step that begins after `start` tokens."""
        end = min(start + count, len(self.token_ids))
        is_last = end == len(self.token_ids)
        return Row(
            key,
            self.token_ids[start:end],
            self.finish if is_last else None,
            self.cached_tokens,
            self.stop_token if is_last else None,
            logprobs=tuple(map(self.logprob, self.token_ids[start:end]))
            if generation.sampling.logprobs is not None
            else (),
            prompt_logprobs=tuple(map(self.logprob, generation.prompt[1:]))
            if start == 0 and generation.sampling.prompt_logprobs is not None
            else (),
            cached_disk=self.cached_disk,
        )

    def logprob(self, token_id: int) -> Logprob:
        """Of any token the same, but for the order of the alternatives."""
        top = tuple((token_id + i, -math.inf if i else -0.5) for i in range(self.num_top))
        return Logprob(-0.5, 1, top)


@dataclass
class ScriptedHops:
    """Implements gateway.hops: Router, Prefill and Decode at once; `open` is what is not over."""

    output: Output
    is_hybrid: bool = False
    holds: set[str] = field(default_factory=set)  # stages where requests stop until `release`
    failures: dict[str, list[DiptychError]] = field(default_factory=lambda: defaultdict(list))
    open: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    cancelled: list[str] = field(default_factory=list)
    wants: list[Want] = field(default_factory=list)
    agains: list[tuple[int, Have]] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    has_tickets: bool = True  # False: they have lapsed
    _reached: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _forgot: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_at_baseline(self) -> bool:
        """Whether no station knows any request."""
        return not any(self.open.values())

    async def reached(self, stage: str) -> None:
        """Wait until a request stands at a stage."""
        async with asyncio.timeout(5):
            await self._reached[stage].wait()

    def release(self) -> None:
        """Let everybody go on."""
        self.holds.clear()
        self._released.set()

    async def pass_by(self, stage: str) -> None:
        """A request comes to a stage: it may fail there, or have to wait."""
        self._reached[stage].set()
        if self.failures[stage]:
            raise self.failures[stage].pop(0)
        if stage in self.holds:
            await self._released.wait()

    @contextmanager
    def knowing(self, station: str, name: object) -> Iterator[None]:
        """A station knows a request as long as the body runs."""
        self.open[station].add(str(name))
        try:
            yield
        finally:
            self.forget(station, name)

    def forget(self, station: str, name: object) -> None:
        self.open[station].discard(str(name))
        self._forgot.set()

    async def settled(self) -> None:
        """Wait until no station knows any request."""
        async with asyncio.timeout(5):
            while not self.is_at_baseline:
                self._forgot.clear()
                await self._forgot.wait()

    async def place(self, want: Want) -> "_Lease":
        self.wants.append(want)
        await self.pass_by("place")
        return _Lease(self, want)

    async def reserve(
        self, rank: Rank, key: Key, capacity: int, deadline_s: float
    ) -> "_DecodeCall":
        with self.knowing("decode", key):
            await self.pass_by("reserve")
        self.open["decode"].add(str(key))
        return _DecodeCall(self, key)


class PrefillHop:
    """The prefill side of the script."""

    def __init__(self, hops: ScriptedHops) -> None:
        self._hops = hops

    def open(self, rank: Rank, generation: Generation, deadline_s: float) -> "_PrefillCall":
        return _PrefillCall(self._hops, generation)


class DecodeHop:
    """The decode side of the script."""

    def __init__(self, hops: ScriptedHops) -> None:
        self._hops = hops
        self.reserve = hops.reserve

    def open(self, rank: Rank, key: Key) -> "_DecodeCall":
        self._hops.open["decode"].add(str(key))
        return _DecodeCall(self._hops, key)


class _Lease:
    def __init__(self, hops: ScriptedHops, want: Want) -> None:
        self._hops = hops
        self._name = want.request_id
        self._attempt = want.attempt
        self._answers: asyncio.Queue[Placement] = asyncio.Queue()
        hops.open["lease"].add(self._name)
        if want.resume is None:
            self._place_prompt()

    def _place_prompt(self) -> None:
        to = SkipTo if self._hops.is_hybrid else PrefillAt
        name = "hybrid" if self._hops.is_hybrid else "prefill"
        self._answers.put_nowait(to(_rank(f"{name}-{self._attempt}"), (), self._attempt))

    def _place_decode(self) -> None:
        self._answers.put_nowait(DecodeAt(_rank(f"decode-{self._attempt}"), (), self._attempt))

    async def __aiter__(self) -> AsyncIterator[Placement]:
        while True:
            answer = await self._answers.get()
            await self._hops.pass_by("decode_at" if isinstance(answer, DecodeAt) else "queue")
            yield answer

    async def progress(self, phase: Phase, tokens: int, last_chunk_started: bool = False) -> None:
        if last_chunk_started:
            self._place_decode()

    async def again(
        self,
        attempt: int,
        failed_worker: str,
        why: str,
        have: Have,
        code: str = "",
        kind: str = "",
        partner: str = "",
    ) -> None:
        self._hops.agains.append((attempt, have))
        self._attempt = attempt
        if have is Have.TICKET:
            self._place_decode()
        else:
            self._place_prompt()

    async def close(self) -> None:
        self._hops.forget("lease", self._name)


class _PrefillCall:
    def __init__(self, hops: ScriptedHops, generation: Generation) -> None:
        self._hops = hops
        self._generation = generation

    async def __aiter__(self) -> AsyncIterator[Event]:
        hops, generation = self._hops, self._generation
        hops.generations.append(generation)
        hops.open["prefill"].add(str(generation.key))
        await hops.pass_by("prefill")
        yield Accepted(str(generation.key).encode())
        yield Progress(len(generation.prompt), True)
        await hops.pass_by("first")
        row = hops.output.row(generation, generation.key, len(generation.forced), 1)
        if row.finish is None and len(generation.forced) + 1 == generation.max_new:
            row = replace(row, finish=Finish.LENGTH)
        if row.finish is not None:
            hops.forget("prefill", generation.key)
        yield Tokens(row)

    async def renew(self) -> bool:
        return self._hops.has_tickets

    async def cancel(self) -> None:
        self._hops.cancelled.append(f"prefill {self._generation.key}")
        self._hops.forget("prefill", self._generation.key)


class _DecodeCall:
    def __init__(self, hops: ScriptedHops, key: Key) -> None:
        self._hops = hops
        self._key = key
        self._generation: Generation | None = None

    async def start(self, generation: Generation, ticket: bytes | None, deadline_s: float) -> None:
        self._generation = generation
        self._hops.generations.append(generation)
        await self._hops.pass_by("start")
        if ticket is not None:
            if ticket.decode() not in self._hops.open["prefill"]:
                raise Lost("no such ticket", code="ticket_gone")
            self._hops.forget("prefill", ticket.decode())

    async def __aiter__(self) -> AsyncIterator[Row]:
        generation = self._generation
        assert generation is not None
        hops, done = self._hops, len(generation.forced)
        while True:
            count = min(hops.output.tokens_a_step, generation.max_new - done)
            await hops.pass_by(f"token {done + count}")
            row = hops.output.row(generation, self._key, done, count)
            done += len(row.token_ids)
            if row.finish is None and done == generation.max_new:
                row = replace(row, finish=Finish.LENGTH)
            if row.finish is not None:
                hops.forget("decode", self._key)
            yield row
            if row.finish is not None:
                return
            await asyncio.sleep(0)  # one step, one turn of the loop

    async def cancel(self) -> None:
        self._hops.cancelled.append(f"decode {self._key}")
        self._hops.forget("decode", self._key)


def _rank(name: str) -> Rank:
    return Rank(WorkerId(name), f"{name}:1", Incarnation(1))
