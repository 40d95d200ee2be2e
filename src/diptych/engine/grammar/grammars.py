"""Compiled grammars of one worker: tried elsewhere first, then compiled here, once, and kept."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from diptych.core.errors import BadRequest
from diptych.engine.grammar.backends import BackendName, Compiled, make_backend
from diptych.engine.grammar.matcher import DeferredMatcher, Matcher
from diptych.engine.grammar.trial import Trial, TrialLimits
from diptych.text.constraints import Constraint, build
from diptych.text.constraints.vocabulary import Vocabulary

_KEPT_REFUSALS = 1_024


class Grammars:
    """Front door: `await prepare(constraint)` off the engine thread, then `matcher` on it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        backend: BackendName = "xgrammar",
        max_bytes: int = 1 << 30,
        limits: TrialLimits | None = None,
        on_made: Callable[[float], None] = lambda took_s: None,
    ) -> None:
        self.vocabulary = vocabulary
        self._backend_name: BackendName = backend
        self._backend = make_backend(backend, vocabulary)
        self._trial = Trial(vocabulary, backend, limits)
        self._max_bytes = max_bytes
        self._on_made = on_made
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._refused: OrderedDict[str, BadRequest] = OrderedDict()
        self._making: dict[str, asyncio.Task[Compiled]] = {}

    async def start(self) -> None:
        """Start the side process, so that the first grammar need not wait for it."""
        await self._trial.start()

    async def close(self) -> None:
        """End the side process."""
        for task in self._making.values():
            task.cancel()
        await self._trial.close()

    async def prepare(self, constraint: Constraint, *, is_tried: bool = False) -> Compiled:
        """The compiled grammar. BadRequest (`invalid_schema`) if it cannot be enforced within the
        limits, Overloaded if too many wait. One that another worker has tried is not tried again.
        """
        key = constraint.key
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if key in self._refused:
            known = self._refused[key]
            raise BadRequest(known.message, code=known.code, param=known.param)
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(constraint, is_tried))
            task.add_done_callback(lambda done: self._made(key, done))
        return await asyncio.shield(task)

    def matcher(self, compiled: Compiled, *, after: str | None = None) -> Matcher:
        """A matcher at the start of an output; `after` names the token that opens the answer
        when the output begins with reasoning."""
        inner = compiled.matcher()
        if after is None:
            return inner
        return DeferredMatcher(inner, self.vocabulary.token_id(after), self.vocabulary)

    @property
    def trial_pid(self) -> int | None:
        """The side process, while it lives."""
        return self._trial.pid

    @property
    def size_bytes(self) -> int:
        """What the kept grammars weigh."""
        return sum(c.size_bytes for c in self._kept.values())

    def _made(self, key: str, task: asyncio.Task[Compiled]) -> None:
        del self._making[key]
        if not task.cancelled():
            task.exception()  # whoever asked for it may be gone: it counts as seen

    async def _make(self, constraint: Constraint, is_tried: bool) -> Compiled:
        began_s = time.perf_counter()
        try:
            if not is_tried:
                await self._trial.run(constraint)
            compiled = await asyncio.to_thread(self._compile, constraint)
        except BadRequest as error:
            self._refused[constraint.key] = error
            if len(self._refused) > _KEPT_REFUSALS:
                self._refused.popitem(last=False)
            raise
        finally:
            self._on_made(time.perf_counter() - began_s)
        self._kept[constraint.key] = compiled
        while self.size_bytes > self._max_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return compiled

    def _compile(self, constraint: Constraint) -> Compiled:
        return self._backend.compile(build(constraint), constraint.param)
