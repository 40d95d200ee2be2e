"""One request of one caller: what it took of the limits, what it used, and how it ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from diptych.core.errors import BadRequest, Broken, DiptychError
from diptych.gateway.limits import too_long
from diptych.gateway.notes import Notes
from diptych.gateway.tenancy import refusals
from diptych.gateway.tenancy.admission import Spent, at_the_door, for_tokens, used_of
from diptych.gateway.tenancy.book import Book, MemoryBook
from diptych.gateway.tenancy.keys import ANONYMOUS, Principal, Scope
from diptych.gateway.tenancy.meters import Hold, Reading
from diptych.gateway.tenancy.usage import Record

IN_SCOPE = "diptych.visit"
CLIENT_LEFT = 499


class Visit:
    """Takes at the door, takes again when the prompt is known, gives back when it settles."""

    def __init__(
        self,
        caller: Principal,
        book: Book,
        request_id: str,
        endpoint: str,
        hash_user: Callable[[str], str] = lambda user: "",
    ) -> None:
        self.caller = caller
        self.request_id = request_id
        self.endpoint = endpoint
        self.began_s = time.time()
        self._entered_s = time.monotonic()  # durations do not follow who sets the clock
        self.model = ""
        self.size_bytes = 0  # of the body
        self.max_new = 0
        self.status = 0
        self.finish = ""
        self.first_byte_ms: int | None = None
        self.readings: dict[str, Reading] = {}
        self.notes = Notes()
        self._book = book
        self._hash_user = hash_user
        self._user_hash = ""
        self._holds: tuple[Hold, ...] = ()
        self._count: Callable[[], Spent] = Spent
        self._task: asyncio.Task[Any] | None = None
        self._is_aborted = False

    @property
    def holds(self) -> tuple[Hold, ...]:
        """What it has taken."""
        return self._holds

    @property
    def age_s(self) -> float:
        """Since it came in."""
        return time.monotonic() - self._entered_s

    @property
    def spent(self) -> Spent:
        """What it has used so far."""
        return self._count()

    async def enter(self) -> None:
        """Take a request and a place; 429 if there is none."""
        await self._take(at_the_door(self.caller))

    def permit(self, scope: Scope) -> None:
        """403 unless the caller has the scope."""
        if scope not in self.caller.scopes:
            raise refusals.no_scope(scope)

    def choose(self, model: str) -> None:
        """403 unless the caller may use the model."""
        if self.caller.models and model not in self.caller.models:
            raise refusals.no_model(model)
        self.model = model

    def output_limit(self, prompt_len: int, asked: int | None, max_new: int) -> int:
        """The caller's own bounds over the model's; a wish is granted or refused."""
        limits = self.caller.limits
        if limits.max_input_tokens and prompt_len > limits.max_input_tokens:
            raise too_long(prompt_len, 0, limits.max_input_tokens)
        if not limits.max_output_tokens or max_new <= limits.max_output_tokens:
            return max_new
        if asked is not None:
            text = f"max_tokens: this API key allows at most {limits.max_output_tokens}"
            raise BadRequest(text, param="max_tokens")
        return limits.max_output_tokens

    @asynccontextmanager
    async def metered(
        self, prompt: int, max_new: int, user: str, count: Callable[[], Spent]
    ) -> AsyncIterator[None]:
        """Generate inside: tokens are reserved, then counted by `count` however it ends."""
        self._user_hash = self._hash_user(user) if user else ""
        await self._take(for_tokens(self.caller, prompt, max_new, time.time()))
        self.max_new = max_new
        self._count = count
        self._task = asyncio.current_task()
        is_over = False
        try:
            yield
            is_over = True
        except DiptychError as error:
            self.fail(error)
            raise
        except asyncio.CancelledError:
            self.finish = "aborted"
            if self._is_aborted and self._task is not None and self._task.uncancel() == 0:
                wish = refusals.aborted()
                self.fail(wish)
                raise wish from None
            raise
        finally:
            self._task = None
            if not is_over and not self.finish:
                self.fail(Broken("a bug while generating"))

    def abort(self) -> bool:
        """End it, as an operator's wish; False if it generates nothing now."""
        if self._task is None or self._is_aborted:
            return False
        self._is_aborted = True
        self._task.cancel()
        return True

    def fail(self, error: DiptychError) -> None:
        """It ends with this error; after the status line only the record shows it."""
        self.finish = "error"
        self.notes.error = error.code
        if not self.status:
            self.status = error.http_status

    async def settle(self) -> None:
        """Give back what was not used. Once."""
        holds, self._holds = self._holds, ()
        if holds:
            spent = self.spent if self.record().is_billed else Spent()
            units = [used_of(hold, spent) for hold in holds]
            await self._book.settle(self.request_id, holds, units)

    def record(self) -> Record:
        """For the books, once it is over."""
        spent = self.spent
        return Record(
            request_id=self.request_id,
            key_id=self.caller.key_id,
            tenant=self.caller.tenant,
            model=self.model,
            endpoint=self.endpoint,
            user_hash=self._user_hash,
            began_s=self.began_s,
            first_byte_ms=self.first_byte_ms,
            total_ms=round(self.age_s * 1000),
            prompt=spent.prompt,
            cached=spent.cached,
            completion=spent.completion,
            reasoning=spent.reasoning,
            finish=self.finish,
            status=self.status or CLIENT_LEFT,
        )

    async def _take(self, holds: list[Hold]) -> None:
        if not holds:
            return
        taking = asyncio.ensure_future(self._book.take(self.request_id, holds))
        try:
            taken = await asyncio.shield(taking)
        except asyncio.CancelledError:
            if (await taking).refused is None:  # it may have been granted; then it is given back
                self._holds += tuple(holds)
            raise
        self.readings |= {reading.meter.name: reading for reading in taken.readings}
        if taken.refused is not None:
            self.notes.limit = refusals.limit_of(taken.refused)
            units = next(hold.units for hold in holds if hold.meter == taken.refused)
            raise refusals.over_limit(taken, units)
        self._holds += tuple(holds)


def visit_of(scope: MutableMapping[str, Any]) -> Visit:
    """The request's visit; one without limits where there is no door (tests, tools)."""
    visit = scope.get(IN_SCOPE)
    if not isinstance(visit, Visit):
        visit = Visit(ANONYMOUS, MemoryBook(), scope.get("request_id", ""), scope["path"])
        scope[IN_SCOPE] = visit
    return visit
