"""The engine's thread: commands in by a queue, one thread-safe call a step out."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from diptych.core.errors import CANCELLED, BadRequest, DiptychError, Expired, Lost, Refused
from diptych.core.ids import Key
from diptych.core.layout import Layout
from diptych.core.request import Generation
from diptych.core.step import StepOutput
from diptych.engine.block_log import BlockLog
from diptych.engine.guide import Guide
from diptych.engine.guides import Guides
from diptych.engine.loading import Rates
from diptych.engine.port import Counts, Pages
from diptych.engine.stepper import Stepper
from diptych.engine.tier import Tier
from diptych.engine.tiering import Loaded, Tiering

ANSWER_TIMEOUT_S = 60.0  # to a command: a step may have to end first

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PageBytes(Protocol):
    """The arenas, as services and the cache tier see them."""

    def block(self, page: int) -> memoryview: ...

    def slot(self, slot: int) -> memoryview: ...

    def anchor(self, page: int) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Command:
    """Something to do between two steps, and who waits for the answer."""

    action: Callable[[], object]
    answer: asyncio.Future[Any] | None = None
    fenced: bool = False  # answered when the step that is launched now has been retired


class Engine:
    """An `EnginePort`. Every touch of ledger and pages by the engine happens on its own thread.

    A caller of `submit` or `reserve` that is cancelled leaves nothing behind.
    """

    def __init__(
        self,
        stepper: Stepper[Any],
        page_bytes: PageBytes,
        *,
        layout: Layout,
        namespace: bytes,
        on_step: Callable[[StepOutput], None],
        loop: asyncio.AbstractEventLoop,
        guides: Guides | None = None,
        tier: Tier | None = None,
        rates: Rates | None = None,
        on_load: Callable[[Loaded], None] = lambda loaded: None,
    ) -> None:
        self._guides = guides
        self._stepper = stepper
        self._ledger = stepper.ledger
        self._page_bytes = page_bytes
        self._layout = layout
        self._namespace = namespace
        self._on_step = on_step
        self._loop = loop
        self._tiering: Tiering | None = None
        if tier is not None:
            ledger, rates = stepper.ledger, rates or Rates()
            self._tiering = Tiering(
                tier,
                ledger,
                page_bytes,
                layout,
                rates,
                ask=self._ask,
                order=self._order,
                on_load=on_load,
            )
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._fenced: list[tuple[Command, object]] = []  # and the result of each
        self._stopping = False
        self._stopped = False
        self._counts = self._ledger.counts()
        self._busy_since_s: float | None = time.monotonic()  # None: blocked on the queue
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def namespace(self) -> bytes:
        return self._namespace

    @property
    def max_model_len(self) -> int:
        return self._ledger.bounds.max_model_len

    @property
    def keep_tokens(self) -> int:
        return max(1, self._ledger.limits.keep)

    @property
    def block_log(self) -> BlockLog:
        return self._ledger.block_log

    async def submit(self, generation: Generation, *, hold: bool) -> None:
        key = generation.key
        may_be_brought = self._tiering is not None and bool(generation.scope)
        is_ready = generation.constraint is None and not may_be_brought

        def submit() -> None:
            self._ledger.submit(generation, hold=hold, ready=is_ready, now_s=time.monotonic())

        await self._ask_for(key, submit)
        if is_ready:
            return
        try:
            guide = await self._prepared(generation)
            is_known = await self._ask(lambda: self._ledger.ready(key, guide))
        except (asyncio.CancelledError, DiptychError):
            self._order(lambda: self._ledger.drop(key))
            raise
        if not is_known:
            raise Refused(f"{key} was given up while it was prepared", code=CANCELLED)

    async def _prepared(self, generation: Generation) -> Guide | None:
        """Its grammar is compiled while what is stored of its prompt is brought."""
        if self._tiering is None:
            return await self._guide(generation)
        bringing = asyncio.create_task(self._tiering.bring(generation.key))
        try:
            guide = await self._guide(generation)
            await bringing
            return guide
        finally:
            bringing.cancel()
            await asyncio.gather(bringing, return_exceptions=True)

    async def reserve(self, key: Key, capacity: int) -> Pages | None:
        return await self._ask_for(key, lambda: self._ledger.reserve(key, capacity))

    async def prepare(self, generation: Generation) -> None:
        await self._guide(generation)

    async def adopt(self, generation: Generation) -> None:
        guide = await self._guide(generation)
        await self._ask(lambda: self._ledger.adopt(generation, guide))

    async def held(self, key: Key) -> Pages | None:
        return await self._ask(lambda: self._ledger.held(key))

    async def drop(self, key: Key) -> bool:
        return await self._ask(lambda: self._ledger.drop(key), fenced=True)

    def block(self, page: int) -> memoryview:
        return self._page_bytes.block(page)

    def slot(self, slot: int) -> memoryview:
        return self._page_bytes.slot(slot)

    def counts(self) -> Counts:
        return self._counts

    def idle_s(self) -> float:
        since = self._busy_since_s
        return 0.0 if since is None else time.monotonic() - since

    async def stop(self) -> None:
        self._commands.put(Command(self._halt))
        await asyncio.to_thread(self._thread.join, ANSWER_TIMEOUT_S)
        if self._guides is not None:
            await self._guides.close()
        if self._thread.is_alive():
            raise Expired(f"the engine did not stop within {ANSWER_TIMEOUT_S:g} s")

    async def _guide(self, generation: Generation) -> Guide | None:
        if generation.constraint is None:
            return None
        if self._guides is None:
            raise BadRequest("this engine has no grammars", param=generation.constraint.param)
        return await self._guides.of(generation)

    def _halt(self) -> None:
        self._stopping = True

    async def _ask(self, action: Callable[[], T], *, fenced: bool = False) -> T:
        """Run `action` on the engine thread, between two steps."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._commands.put(Command(action, answer, fenced))
        if self._stopped:  # the thread may have looked into the queue for the last time
            self._refuse_rest()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError as error:
            raise Expired(f"the engine did not answer within {ANSWER_TIMEOUT_S:g} s") from error

    async def _ask_for(self, key: Key, action: Callable[[], T]) -> T:
        """Like `_ask`, for an action that makes `key` known."""
        try:
            return await self._ask(action)
        except (asyncio.CancelledError, Expired):
            self._order(lambda: self._ledger.drop(key))
            raise

    def _order(self, action: Callable[[], object]) -> None:
        """Run `action` behind all that was asked before. Nobody waits for it."""
        self._commands.put(Command(action))

    def _work(self) -> None:
        """Obey, step, tell; block on the queue when there is nothing to compute."""
        progressed = False
        try:
            while self._obey(wait=not progressed):
                progressed = self._stepper.step(self._tell)
                self._answer_fenced()
                self._keep()
            self._stepper.settle(self._tell)
            self._answer_fenced()
        finally:
            self._stopped = True
            self._refuse_rest()
            self._stepper.close()
            logger.info("engine stopped")

    def _obey(self, *, wait: bool) -> bool:
        """Carry out the commands that are there; False when told to stop."""
        if wait:
            self._busy_since_s = None
            command = self._commands.get()
            self._busy_since_s = time.monotonic()
            self._carry_out(command)
        self._busy_since_s = time.monotonic()
        while not self._stopping:
            try:
                self._carry_out(self._commands.get_nowait())
            except Empty:
                return True
        return False

    def _carry_out(self, command: Command) -> None:
        try:
            result = command.action()
        except DiptychError as error:
            self._answer(command, error=error)
        else:
            self._keep()  # before the next command or plan gives its pages away
            self._counts = self._ledger.counts()
            if command.fenced and self._stepper.is_flying:
                self._fenced.append((command, result))
            else:
                self._answer(command, result)

    def _answer_fenced(self) -> None:
        """What was launched when these commands were carried out is retired."""
        self._counts = self._ledger.counts()
        fenced, self._fenced = self._fenced, []
        for command, result in fenced:
            self._answer(command, result)

    def _refuse_rest(self) -> None:
        for command, _ in self._fenced:
            self._answer(command, error=Lost("the engine has stopped"))
        while True:
            try:
                self._answer(self._commands.get_nowait(), error=Lost("the engine has stopped"))
            except Empty:
                return

    def _answer(
        self, command: Command, result: object = None, *, error: DiptychError | None = None
    ) -> None:
        answer = command.answer
        if answer is None:
            return

        def resolve() -> None:
            if answer.done():  # its caller has left
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        self._call_soon(resolve)

    def _keep(self) -> None:
        tiering = self._tiering
        items = tiering.copy_notes() if tiering is not None else []
        if tiering is not None and items:
            self._call_soon(lambda: tiering.keep(items))

    def _tell(self, output: StepOutput) -> None:
        self._counts = self._ledger.counts()  # whoever hears of a step may look at them
        self._call_soon(lambda: self._on_step(output))

    def _call_soon(self, callback: Callable[[], None]) -> None:
        if self._loop.is_closed():  # nobody is left to hear it
            self._stopping = True
            return
        self._loop.call_soon_threadsafe(callback)
