"""Who waits for a worker, for how long, and who is told that it would be of no use.

Prompts wait here, and hand-offs: prompts computed (nearly) that need a decode row. Pure but for its
own state.
"""

from collections.abc import Callable, Iterator

from diptych.router.admission import class_of
from diptych.router.chooser import Chooser
from diptych.router.demand import Demand
from diptych.router.forecast import Forecast, Room
from diptych.router.ledger import Ledger, Pending, Stage
from diptych.router.messages import Answer, Queued, RefusedBy
from diptych.router.queue import FairQueue, Queue, Waiting

NOBODY_WAIT_S = 8.0  # without any worker of a role: longer than a restart, shorter than patience
HANDOFF_WAIT_S = 20.0  # for a decode row; prefill's lease on the KV is 30 s
RETRY_WAIT_S = 10.0  # at least, however long ago the first attempt came


class WaitingRoom:
    """Both queues. `answer` is how a lease hears that it waits, or that it is refused."""

    def __init__(
        self,
        limit: int,
        ledger: Ledger,
        chooser: Chooser,
        demand: Demand,
        answer: Callable[[int, Answer], None],
    ) -> None:
        self.prompts = FairQueue(limit)
        self.handoffs = Queue(limit)
        self.forecast = Forecast()
        self._ledger = ledger
        self._chooser = chooser
        self._demand = demand
        self._answer = answer
        self._untold: list[int] = []  # leases that do not know yet that they wait
        self._nobody: dict[Queue, float] = {}  # since when a queue has no worker at all

    def add(self, lease: int, now_s: float) -> None:
        """A lease needs a worker; refused at once if too many do."""
        entry = self._ledger.entries[lease]
        if entry.stage is Stage.HANDOFF:
            # Bounded by prefill's lease, not by the client's patience in the queue.
            self.handoffs.push(Waiting(now_s, lease, now_s + HANDOFF_WAIT_S))
        elif self.prompts.is_full:
            self.refuse(lease, "no_capacity", f"{len(self.prompts)} requests wait already")
        else:
            patience_s = entry.want.deadline_s
            deadline_s = max(entry.arrived_s + patience_s, now_s + min(patience_s, RETRY_WAIT_S))
            waiting = Waiting(
                entry.arrived_s,
                lease,
                deadline_s,
                class_of(entry.want.priority_class).level,
                entry.want.tenant,
                self._chooser.cost_ms(lease, entry),
            )
            self.prompts.push(waiting)
            self._untold.append(lease)

    def remove(self, lease: int) -> None:
        """It waits no more, whyever; nothing if it did not."""
        self.prompts.remove(lease)
        self.handoffs.remove(lease)

    def served(self, queue: Queue, lease: int, now_s: float) -> None:
        """It was given to a worker."""
        if queue is self.prompts:
            self.prompts.serve(lease)
            self.forecast.served(len(self.prompts), now_s)
        else:
            queue.remove(lease)

    def refuse(
        self, lease: int, code: str, message: str, retry_after_s: float | None = None
    ) -> None:
        """Its last answer; without a time to come back, that is foretold."""
        if retry_after_s is None:
            retry_after_s = self.forecast.retry_after_s(len(self.prompts))
        attempt = self._ledger.entries[lease].attempt
        self._answer(lease, RefusedBy(code, message, retry_after_s, attempt))

    def expire(self, now_s: float) -> None:
        """Refuse those whose time is over."""
        for waiting in self.prompts.expire(now_s):
            waited_s = now_s - waiting.arrived_s
            self.refuse(waiting.lease, "queue_timeout", f"no worker was free for {waited_s:.1f} s")
        for waiting in self.handoffs.expire(now_s):
            self.refuse(
                waiting.lease, "no_capacity", f"no decode worker had room for {HANDOFF_WAIT_S:g} s"
            )

    def somebody_is_there(self, queue: Queue) -> None:
        """There are workers for this queue, busy as they may be."""
        self._nobody.pop(queue, None)

    def nobody_is_there(self, queue: Queue, message: str, now_s: float) -> None:
        """There are none; who waits is refused once that has lasted."""
        since_s = self._nobody.setdefault(queue, now_s)
        for waiting in list(queue):
            if now_s >= max(waiting.arrived_s, since_s) + NOBODY_WAIT_S:
                queue.remove(waiting.lease)
                self.refuse(waiting.lease, "no_capacity", message)

    def wakes_s(self) -> Iterator[float]:
        """When something is due without anything happening."""
        for queue in (self.prompts, self.handoffs):
            deadline_s = queue.next_deadline_s()
            if deadline_s is not None:
                yield deadline_s
        for queue, since_s in self._nobody.items():
            oldest_s = queue.oldest_s()
            if oldest_s is not None:
                yield max(oldest_s, since_s) + NOBODY_WAIT_S

    def tell(self, now_s: float) -> None:
        """Those who came and must wait: how long, or that it would be too long."""
        untold = [lease for lease in self._untold if lease in self.prompts]
        self._untold.clear()
        if not untold:
            return
        room, pending = self._chooser.room(now_s), self._ledger.all_pending()
        for lease in untold:
            self._tell(lease, room, pending, now_s)

    def _tell(self, lease: int, room: Room, pending: Pending, now_s: float) -> None:
        entry = self._ledger.entries[lease]
        ahead = self.prompts.ahead_of(lease)
        ahead_ms = self.prompts.ahead_ms(lease)
        wait_s = self.forecast.wait_s(ahead, ahead_ms, self._chooser.given_ms(now_s))
        row_s = self.forecast.row_s(room, pending, entry.want, ahead)
        work_s = self.prompts.cost_ms(lease) / 1000
        first_s = max(wait_s + work_s, row_s)
        left_s = entry.want.deadline_s - (now_s - entry.arrived_s)
        # What takes longer than that all by itself is judged by what it waits for others.
        late_s = (first_s if work_s <= left_s else max(wait_s, row_s - work_s)) - left_s
        is_first_attempt = entry.attempt == entry.want.attempt
        if late_s > 0 and is_first_attempt:
            self.prompts.remove(lease)
            message = f"its first token is expected in {first_s:.0f} s; {left_s:.0f} s are left"
            self.refuse(lease, "no_capacity", message, max(1.0, late_s))
            return
        if is_first_attempt:
            self._demand.promised(lease, entry.arrived_s, now_s - entry.arrived_s + first_s)
        self._answer(lease, Queued(wait_s, ahead, entry.attempt))
