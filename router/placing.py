"""The leases of one client, as its stream tells of them."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from diptych.contract import router_pb2 as pb
from diptych.core.errors import BadRequest, Broken, DiptychError
from diptych.router import wire
from diptych.router.dispatcher import Dispatcher
from diptych.router.messages import Again, Answer, Ended, Leave, Opened, Progress, Want
from diptych.transport.errors import kind_of

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Held:
    """One lease. `number` is the client's, `id` the dispatcher's."""

    number: int
    id: int
    want: Want
    opened_s: float
    is_answered: bool = False


class Placing:
    """Feeds the dispatcher what one client says; what that client is to be told goes into `downs`.

    `answers`: of all clients, by the dispatcher's lease. `act` lets the dispatcher act and hands
    its answers out; `noted` hears of each answer.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        answers: dict[int, Callable[[Answer], None]],
        *,
        act: Callable[[], None],
        noted: Callable[[Held, Answer], None],
        clock: Callable[[], float],
    ) -> None:
        self.downs: asyncio.Queue[pb.PlaceDown | None] = asyncio.Queue()
        self._dispatcher = dispatcher
        self._answers = answers
        self._act = act
        self._noted = noted
        self._clock = clock
        self._held: dict[int, Held] = {}

    def hear(self, message: pb.PlaceUp) -> None:
        """One message; what is wrong with it costs its own lease only."""
        number, opened = message.lease, None
        try:
            opened = self._take(number, wire.place_up_from_pb(message))
        except BadRequest as error:
            self._fail(number, error)
        except Exception as error:  # a bug of ours must not end the leases of all
            log.exception("place failed")
            self._fail(number, Broken(f"the router failed: {type(error).__name__}"))
        self._act()
        if opened is not None and not opened.is_answered:
            self._tell(number, Opened(opened.want.attempt))

    def close(self) -> None:
        """The client is gone, and all it held with it."""
        for number in list(self._held):
            self._end(number)
        self._act()

    def _take(self, number: int, up: wire.PlaceUp) -> Held | None:
        """The lease that it opened."""
        now_s, held = self._clock(), self._held.get(number)
        match up:
            case Want():
                if held is not None:
                    raise BadRequest("Place: want comes once, first")
                held = Held(number, self._dispatcher.open(up, now_s), up, now_s)
                self._held[number] = held
                self._answers[held.id] = partial(self._answer, held)
                return held
            case Leave():
                self._end(number)  # twice is once
            case Progress() | Again() if held is None:
                raise BadRequest("Place begins with want")
            case Progress():
                self._dispatcher.progress(held.id, up, now_s)
            case Again():
                self._dispatcher.again(held.id, up, now_s)
        return None

    def _answer(self, held: Held, answer: Answer) -> None:
        held.is_answered = True
        self._noted(held, answer)
        self._tell(held.number, answer)

    def _fail(self, number: int, error: DiptychError) -> None:
        self._end(number)
        self._tell(number, Ended(kind_of(error), error.code, error.message))

    def _tell(self, number: int, down: wire.PlaceDown) -> None:
        self.downs.put_nowait(wire.place_down_to_pb(number, down))

    def _end(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            del self._answers[held.id]
            self._dispatcher.close(held.id)
