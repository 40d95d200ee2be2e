"""What is written down after a request, and while it runs: usage, audit, leases, retention.

Records wait in memory for the next write, a fifth of a second at most while the disk is well. A
disk or a Redis that fails delays them; beyond `MAX_WAITING` the oldest are dropped and counted.
"""

import asyncio
import logging
import sqlite3
import time
from collections import deque
from contextlib import suppress

from diptych.core.errors import DiptychError
from diptych.gateway.tenancy.audit import Act, AuditLog
from diptych.gateway.tenancy.book import RENEW_S, Book
from diptych.gateway.tenancy.usage import Record, UsageStore
from diptych.gateway.tenancy.visit import Visit

log = logging.getLogger(__name__)

WRITE_GAP_S = 0.2
AGAIN_S = 1.0
BATCH = 500
MAX_WAITING = 100_000
CLOSE_S = 3.0
DAY_S = 86_400


class Clerk:
    """Knows the requests that run; `run` must be running for anything to be written."""

    def __init__(
        self,
        book: Book,
        usage: UsageStore,
        audit: AuditLog,
        *,
        usage_days: int = 400,
        audit_days: int = 400,
    ) -> None:
        self.visits: dict[str, Visit] = {}
        self.num_dropped = 0  # records that were never written
        self._book = book
        self._usage = usage
        self._audit = audit
        self._usage_days = usage_days
        self._audit_days = audit_days
        self._records: deque[Record] = deque()
        self._acts: deque[Act] = deque()
        self._bell = asyncio.Event()
        self._settling: set[asyncio.Task[None]] = set()

    def open(self, visit: Visit) -> None:
        """A request came in."""
        self.visits[visit.request_id] = visit

    def close(self, visit: Visit) -> None:
        """It is over: settle and write it down, in the background."""
        self.visits.pop(visit.request_id, None)
        if visit.holds:
            settling = asyncio.create_task(visit.settle())
            self._settling.add(settling)
            settling.add_done_callback(self._settling.discard)
        if visit.caller.is_accounted:
            self._records.append(visit.record())
            if len(self._records) > MAX_WAITING:
                self._records.popleft()
                self.num_dropped += 1
            self._bell.set()

    def note(self, act: Act) -> None:
        """For the audit log, soon."""
        self._acts.append(act)
        self._bell.set()

    async def run(self) -> None:
        """Write, renew and forget until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_on())
            tasks.create_task(self._renew_on())
            tasks.create_task(self._forget_on())

    async def finish(self) -> None:
        """Settle and write what is left; call when `run` has ended."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=CLOSE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while (self._records or self._acts) and await self._write():
                    pass

    async def settled(self) -> None:
        """Wait until nothing is being settled or written."""
        while self._settling or self._records or self._acts:
            if self._settling:
                await asyncio.wait(self._settling)
            elif not await self._write():
                return

    async def expire(self) -> tuple[int, int]:
        """Delete what is too old: usage records, audit entries."""
        now_s = time.time()
        records = await self._usage.expire(now_s - self._usage_days * DAY_S)
        entries = await self._audit.purge(now_s - self._audit_days * DAY_S)
        if entries:
            after = {"entries": entries}
            await self._audit.add(Act("gateway", "", "audit.purge", after=after))
        return records, entries

    async def _write_on(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            is_written = await self._write()
            if self._records or self._acts:
                self._bell.set()
            await asyncio.sleep(WRITE_GAP_S if is_written else AGAIN_S)  # so that more come at once

    async def _write(self) -> bool:
        """One batch; False if it could not be written and stays."""
        records = [self._records.popleft() for _ in range(min(BATCH, len(self._records)))]
        acts = [self._acts.popleft() for _ in range(len(self._acts))]
        try:
            if acts:
                await self._audit.add(*acts)
                acts = []
            if records:
                await self._usage.add(records)
                records = []
        except (sqlite3.Error, OSError, DiptychError) as error:
            log.warning("usage or audit cannot be written, trying again: %s", error)
            return False
        finally:
            self._records.extendleft(reversed(records))
            self._acts.extendleft(reversed(acts))
        return True

    async def _renew_on(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            held = {name: visit.holds for name, visit in self.visits.items() if visit.holds}
            if held:
                await self._book.renew(held)

    async def _forget_on(self) -> None:
        while True:
            try:
                records, entries = await self.expire()
                log.info("retention usage_records=%d audit_entries=%d", records, entries)
            except (sqlite3.Error, OSError, DiptychError) as error:
                log.warning("retention failed, trying again in a day: %s", error)
            await asyncio.sleep(DAY_S)
