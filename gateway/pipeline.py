"""Performs a journey: talks to router, prefill and decode as the state machine orders.

Per output one `_Drive`: an inbox of events, one loop that decides, and a task for every call that
is listened to. Cancelling is sent in the background, so a client that leaves delays nobody.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import partial

from diptych.core.blocks import fingerprint
from diptych.core.errors import BadRequest, Broken, DiptychError, Lost
from diptych.core.ids import BlockHash, Key
from diptych.core.phases import Role
from diptych.core.request import Generation
from diptych.gateway import events as on
from diptych.gateway.deadlines import Deadlines
from diptych.gateway.events import Effect, Event, Station
from diptych.gateway.hops import DecodeCall, Hops, Lease, PrefillCall
from diptych.gateway.journey import Journey
from diptych.gateway.measures import Measures, OutputClock
from diptych.gateway.notes import Course
from diptych.prefill_service import client as prefill
from diptych.router.client import DecodeAt, Have, PrefillAt, Resume, SkipTo, Want
from diptych.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """One output to be made. The generation is that of the first attempt, nothing forced."""

    generation: Generation
    hashes: tuple[BlockHash, ...]
    tenant: str
    priority_class: str = ""


Sink = Callable[[on.Emit], bool]  # takes new output; False = enough


class Pipeline:
    """Runs outputs, and knows the goodbyes that are still on their way."""

    def __init__(
        self,
        hops: Hops,
        deadlines: Deadlines | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.hops = hops
        self.measures = measures or Measures(Metrics(Role.GATEWAY))
        self.deadlines = deadlines or Deadlines()
        self._goodbyes: set[asyncio.Task[None]] = set()

    async def run(
        self, call: Call, sink: Sink, on_over: Callable[[Course], None] = lambda course: None
    ) -> tuple[on.End | None, int]:
        """Feed the sink until the engine ends, or it has enough; the end and the cached tokens.

        Raises the error that no retry could cure. Cancelled, it tells every station. However it
        ends, `on_over` hears how it went.
        """
        with self.measures.output(len(call.generation.prompt), on_over) as clock:
            return await _Drive(self, call, sink, clock).run()

    def say_goodbye(self, work: Coroutine[object, object, None]) -> None:
        """Send a cancellation in the background; what fails is gone anyway."""
        task = asyncio.create_task(_tell(work))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def close(self) -> None:
        """Wait until everybody was told."""
        if self._goodbyes:
            await asyncio.wait(self._goodbyes, timeout=1.0)


async def _tell(work: Coroutine[object, object, None]) -> None:
    try:
        async with asyncio.timeout(5.0):
            await work
    except (DiptychError, TimeoutError) as error:
        log.info("cancellation not delivered: %s", error)


class _Drive:
    """One output under way."""

    def __init__(self, pipeline: Pipeline, call: Call, sink: Sink, clock: OutputClock) -> None:
        self._pipeline = pipeline
        self._hops = pipeline.hops
        self._call = call
        self._sink = sink
        self._clock = clock
        self._deadlines = pipeline.deadlines.of_class(call.priority_class)
        self._journey = Journey(call.generation.max_new, self._deadlines)
        self._inbox: deque[Event] = deque()
        self._is_working = False
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: dict[tuple[Station | None, int], asyncio.Task[None]] = {}
        self._prefills: dict[int, PrefillCall] = {}
        self._decodes: dict[int, DecodeCall] = {}
        self._to_say: asyncio.Queue[on.Report | on.Again] = asyncio.Queue()
        self._end: on.End | on.Fail | None = None

    async def run(self) -> tuple[on.End | None, int]:
        journey = self._journey
        try:
            self._perform(journey.start(self._loop.time()))
            self._work()
            await self._over
        finally:
            self._leave()
        if isinstance(self._end, on.Fail):
            raise self._end.error
        return self._end, journey.cached_tokens

    def _leave(self) -> None:
        """Nothing is awaited here: the client may be gone."""
        for effect in self._journey.handle(on.Enough(), self._loop.time()):
            if isinstance(effect, on.Cancel):
                self._cancel(effect)
        for task in self._tasks.values():
            task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()

    # The inbox

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        if not self._is_working:
            self._work()

    def _work(self) -> None:
        """Handle all there is, in the task that brought it: a token takes no other task's turn."""
        self._is_working = True
        journey = self._journey
        try:
            while self._inbox and not journey.is_over:
                effects = journey.handle(self._inbox.popleft(), self._loop.time())
                self._clock.saw(journey)
                self._perform(effects)
        except Exception as error:  # for who waits for the output, not for who brought the event
            if not self._over.done():
                self._over.set_exception(error)
        finally:
            self._is_working = False
        if self._over.done():
            return
        if journey.is_over:
            self._over.set_result(None)
        else:
            self._set_alarm()

    def _set_alarm(self) -> None:
        """One that rings early is harmless, so deadlines that move on cost nothing."""
        wake_at = self._journey.wake_at
        if self._alarm is not None:
            if self._alarm.when() <= wake_at:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(wake_at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._post(on.Tick())

    # Effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case on.Emit(token_ids):
                    self._clock.emitted(len(token_ids))
                    if not self._sink(effect):
                        self._perform(self._journey.handle(on.Enough(), self._loop.time()))
                        return
                case on.End() | on.Fail():
                    self._end = effect
                case on.Place():
                    self._to_say = asyncio.Queue()
                    self._listen(None, 0, self._hold_lease(effect, self._to_say))
                case on.Report() | on.Again():
                    self._to_say.put_nowait(effect)
                case on.OpenPrefill(attempt):
                    self._listen(Station.PREFILL, attempt, self._run_prefill(effect))
                case on.Reserve(attempt):
                    self._listen(Station.DECODE, attempt, self._reserve(effect))
                case on.Start(attempt):
                    self._listen(Station.DECODE, attempt, self._run_decode(effect))
                case on.Renew(attempt):
                    self._listen(Station.PREFILL, attempt, self._renew(attempt))
                case on.Cancel():
                    self._cancel(effect)

    def _listen(
        self, station: Station | None, attempt: int, work: Coroutine[object, object, None]
    ) -> None:
        earlier = self._tasks.get((station, attempt))
        if earlier is not None:
            earlier.cancel()
        task = self._tasks[station, attempt] = asyncio.create_task(work)
        task.add_done_callback(partial(self._listened, station, attempt))

    def _listened(self, station: Station | None, attempt: int, task: asyncio.Task[None]) -> None:
        """A call must end as an event; one that ended by a bug becomes one here."""
        bug = None if task.cancelled() else task.exception()
        if bug is None:
            return
        log.error("call failed station=%s attempt=%d", station, attempt, exc_info=bug)
        error = Broken(f"{type(bug).__name__} while talking to {station or 'the router'}")
        self._post(on.Failed(attempt, station, error) if station else on.LeaseEnded(error))

    def _cancel(self, effect: on.Cancel) -> None:
        task = self._tasks.pop((effect.station, effect.attempt), None)
        if task is not None:
            task.cancel()
        calls = self._prefills if effect.station is Station.PREFILL else self._decodes
        call = calls.pop(effect.attempt, None)
        if call is not None:
            self._pipeline.say_goodbye(call.cancel())

    # The hops

    async def _hold_lease(
        self, place: on.Place, to_say: asyncio.Queue[on.Report | on.Again]
    ) -> None:
        try:
            lease = await self._hops.router.place(self._want(place))
            self._post(on.LeaseOpened())
            speaking = asyncio.create_task(self._speak(lease, to_say))
            speaking.add_done_callback(partial(self._listened, None, 0))
            try:
                await self._follow(lease)
            finally:
                speaking.cancel()
                await lease.close()
        except DiptychError as error:
            self._post(on.LeaseEnded(error))

    async def _speak(self, lease: Lease, to_say: asyncio.Queue[on.Report | on.Again]) -> None:
        """Tell the router, in order, without anybody waiting for it."""
        try:
            while True:
                await _say(lease, await to_say.get())
        except DiptychError as error:
            self._post(on.LeaseEnded(error))

    async def _follow(self, lease: Lease) -> None:
        async for said in lease:
            match said:
                case PrefillAt():
                    self._clock.placed(said.reasons, prefill=said.rank.worker_id)
                    self._post(on.PlacedPrefill(said.attempt, said.rank))
                case SkipTo():
                    self._clock.placed(said.reasons, decode=said.rank.worker_id)
                    self._post(on.PlacedHybrid(said.attempt, said.rank))
                case DecodeAt():
                    self._clock.placed(said.reasons, decode=said.rank.worker_id)
                    self._post(on.PlacedDecode(said.attempt, said.rank))
        raise Lost("the router ended the lease")

    async def _run_prefill(self, order: on.OpenPrefill) -> None:
        generation = self._generation(order.attempt, order.forced)
        call = self._hops.prefill.open(order.rank, generation, order.deadline_s)
        self._prefills[order.attempt] = call
        with self._failures(Station.PREFILL, order.attempt):
            async for said in call:
                match said:
                    case prefill.Accepted(ticket):
                        self._post(on.Accepted(order.attempt, ticket))
                    case prefill.Progress(tokens, last):
                        self._post(on.Progressed(order.attempt, tokens, last))
                    case prefill.Tokens(row):
                        self._post(on.Output(order.attempt, Station.PREFILL, row))

    async def _renew(self, attempt: int) -> None:
        with self._failures(Station.PREFILL, attempt):
            if not await self._prefills[attempt].renew():
                self._post(on.Lapsed(attempt))

    async def _reserve(self, order: on.Reserve) -> None:
        key, capacity = self._key(order.attempt), self._call.generation.capacity
        with self._failures(Station.DECODE, order.attempt):
            call = await self._hops.decode.reserve(order.rank, key, capacity, order.deadline_s)
            self._decodes[order.attempt] = call
            self._post(on.Reserved(order.attempt))

    async def _run_decode(self, order: on.Start) -> None:
        if order.ticket is None:
            self._decodes[order.attempt] = self._hops.decode.open(
                order.rank, self._key(order.attempt)
            )
        call = self._decodes[order.attempt]
        generation = self._generation(order.attempt, order.forced)
        with self._failures(Station.DECODE, order.attempt):
            await call.start(generation, order.ticket, order.deadline_s)
            async for row in call:
                self._post(on.Output(order.attempt, Station.DECODE, row))

    @contextlib.contextmanager
    def _failures(self, station: Station, attempt: int) -> Iterator[None]:
        try:
            yield
        except DiptychError as error:
            why = (
                error.code if isinstance(error, BadRequest) else error
            )  # which may quote a request
            log.info("station failed station=%s attempt=%d: %s", station, attempt, why)
            self._post(on.Failed(attempt, station, error))

    # Values

    def _key(self, attempt: int) -> Key:
        return replace(self._call.generation.key, attempt=attempt)

    def _generation(self, attempt: int, forced: tuple[int, ...]) -> Generation:
        return replace(self._call.generation, key=self._key(attempt), forced=forced)

    def _want(self, place: on.Place) -> Want:
        resume = None
        if place.phase is not None:
            workers = place.prefill_worker, place.decode_worker
            resume = Resume(place.phase, *workers, tokens=place.tokens)
        generation = self._call.generation
        return Want(
            request_id=generation.key.request_id,
            prompt_len=len(generation.prompt),
            max_new=generation.max_new,
            deadline_s=self._deadlines.queue_s,
            attempt=place.attempt,
            hashes=self._call.hashes,
            priority_class=self._call.priority_class,
            tenant=self._call.tenant,
            resume=resume,
            fingerprint=fingerprint(generation.scope, generation.prompt),
        )


async def _say(lease: Lease, effect: on.Report | on.Again) -> None:
    match effect:
        case on.Report(phase, tokens, last):
            await lease.progress(phase, tokens, last)
        case on.Again(attempt, worker, why, left, code, kind, partner):
            await lease.again(attempt, worker, why, Have[left.name], code, kind, partner)
