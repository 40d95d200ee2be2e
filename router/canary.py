"""Canaries: small requests that the router sends over workers as a gateway would.

They are nobody's: no tenant is charged, nothing is cached, the tier keeps nothing. Which runs when,
and what follows, is decided in `trials.py`.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from diptych.core.errors import (
    NOT_FETCHED,
    TICKET_GONE,
    Broken,
    DiptychError,
    Expired,
    Overloaded,
    Refused,
)
from diptych.core.ids import Key
from diptych.core.phases import Finish
from diptych.core.request import Generation
from diptych.core.sampling import Sampling
from diptych.decode_service.client import DecodeCall, DecodeClient
from diptych.prefill_service.client import Accepted, PrefillCall, PrefillClient, Tokens
from diptych.router.pairs import Pairs
from diptych.router.trials import NEW_TOKENS, Blame, Job, Trials, Verdict
from diptych.transport.channel import deadline
from diptych.transport.session import SessionPool

log = logging.getLogger(__name__)

STATION_S = 10.0  # for a station's next word
WHOLE_S = 20.0
TENANT = "~canary"
FIRST_ID, NUM_IDS = 3, 64  # every vocabulary has them
UNPAIRED = (NOT_FETCHED, TICKET_GONE, Refused.default_code)


class Canaries:
    """Runs what is due, and tells what came of it."""

    def __init__(
        self,
        pairs: Pairs,
        pool: SessionPool,
        on_verdict: Callable[[Verdict], None] = lambda verdict: None,
    ) -> None:
        self._trials = Trials(pairs)
        self._prefill = PrefillClient(pool)
        self._decode = DecodeClient(pool)
        self._pool = pool
        self.on_verdict = on_verdict
        self._name = f"canary-{secrets.token_hex(4)}"
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._look: asyncio.Handle | None = None
        self._is_closed = False

    def wake(self) -> None:
        """Something may be due. Cheap: it is looked for once, soon."""
        if not self._is_closed:
            self._cancel_look()
            self._look = asyncio.get_running_loop().call_soon(self._begin_due)

    async def close(self) -> None:
        """Give up what runs, and the sessions."""
        self._is_closed = True
        self._cancel_look()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()

    def _cancel_look(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _begin_due(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for job in self._trials.due(now_s):
            task = asyncio.create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        next_s = self._trials.next_s(now_s)
        self._look = None if next_s is None else loop.call_at(next_s, self._begin_due)

    async def _run(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            verdict = await self.try_out(job)
        except Exception as error:  # a bug of ours must not leave the job running for ever
            log.exception("canary failed")
            verdict = Verdict(blame=Blame.NOBODY, why=f"{type(error).__name__} in the router")
        verdict = self._trials.told(job, verdict, loop.time())
        log.info(
            "canary ended prefill=%s decode=%s took_ms=%.0f result=%s",
            job.prefill.worker_id if job.prefill is not None else "-",
            job.decode.worker_id,
            1000 * (loop.time() - began_s),
            verdict.why or "ok",
        )
        self.on_verdict(verdict)
        self.wake()

    async def try_out(self, job: Job) -> Verdict:
        """One canary, from reservation to last token."""
        self._count += 1
        generation = Generation(
            key=Key(f"{self._name}-{self._count}", 1),
            prompt=tuple(FIRST_ID + i * i % NUM_IDS for i in range(job.prompt_len)),
            sampling=Sampling(temperature=0.0, ignore_eos=True),
            max_new=NEW_TOKENS,
            priority="interactive",
            tenant=TENANT,
            retention="none",
        )
        flight = _Flight(job, generation, self._prefill, self._decode)
        try:
            async with deadline(WHOLE_S, "the canary"):
                tokens = await (flight.alone() if job.prefill is None else flight.handed_over())
        except DiptychError as error:
            return flight.failure(error)
        finally:
            await flight.end()
        return Verdict(tokens)


class _Flight:
    """One canary under way: where it is tells whose fault its end is."""

    def __init__(
        self, job: Job, generation: Generation, prefill: PrefillClient, decode: DecodeClient
    ) -> None:
        self._job = job
        self._generation = generation
        self._clients = prefill, decode
        self._at = Blame.DECODE
        self._prefill: PrefillCall | None = None
        self._decode: DecodeCall | None = None

    async def alone(self) -> tuple[int, ...]:
        """Prompt and output by one worker."""
        self._decode = self._clients[1].open(self._job.decode, self._generation.key)
        await self._decode.start(self._generation, None, STATION_S)
        return await self._rest(self._decode)

    async def handed_over(self) -> tuple[int, ...]:
        """Room first, so that who is full costs nothing; then the prompt, then its KV."""
        assert self._job.prefill is not None
        prefill, decode = self._clients
        generation = self._generation
        self._decode = await decode.reserve(
            self._job.decode, generation.key, generation.capacity, WHOLE_S
        )
        self._at = Blame.PREFILL
        self._prefill = prefill.open(self._job.prefill, generation, STATION_S)
        ticket, first = b"", tuple[int, ...]()
        async for event in self._prefill:
            match event:
                case Accepted():
                    ticket = event.ticket
                case Tokens(row) if row.finish is not None:
                    raise Broken(row.message or f"it ended the prompt with {row.finish}")
                case Tokens(row):
                    first = row.token_ids
        self._at = Blame.DECODE
        await self._decode.start(replace(generation, forced=first), ticket, STATION_S)
        rest = await self._rest(self._decode)
        self._prefill = None  # it was committed
        return first + rest

    async def _rest(self, call: DecodeCall) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        async for row in call:
            if row.finish in (Finish.ERROR, Finish.CANCELLED):
                raise Broken(row.message or "it gave the canary up")
            tokens += row.token_ids
        return tokens

    def failure(self, error: DiptychError) -> Verdict:
        """What an error says about those who took part."""
        if isinstance(error, Overloaded):
            return Verdict(blame=Blame.NOBODY, why=error.message)
        has_ticket = self._prefill is not None and self._at is Blame.DECODE
        if has_ticket and error.code in UNPAIRED:
            return Verdict(blame=Blame.PAIR, why=error.message)
        rank = self._job.prefill if self._at is Blame.PREFILL else self._job.decode
        assert rank is not None
        is_told = rank.worker_id in error.message
        what = f"{error.message} ({error.code})" if isinstance(error, Expired) else error.message
        why = what if is_told else f"{rank.worker_id}: {what}"
        return Verdict(blame=self._at, why=why)

    async def end(self) -> None:
        """Nothing may be left at either; who has ended it knows that."""
        for call in (self._prefill, self._decode):
            if call is not None:
                await call.cancel()
