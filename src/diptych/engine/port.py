"""The engine as services see it. `engine/loop.py` implements it; `testing/scripted.py` stands in.

All methods are called from the asyncio thread; none blocks it. Steps come out through the callback
given at construction, on the asyncio thread, in order.
"""

from dataclasses import dataclass
from typing import Protocol

from diptych.core.ids import Key
from diptych.core.layout import Layout
from diptych.core.request import Generation
from diptych.engine.block_log import BlockLog


@dataclass(frozen=True, slots=True)
class Pages:
    """Where a sequence lies: block pages in order of position, and its slot."""

    blocks: tuple[int, ...]
    slot: int
    num_tokens: int  # positions written


@dataclass(frozen=True, slots=True)
class Counts:
    """A snapshot for reports and ledger checks."""

    running: int
    waiting: int
    held: int
    reserved: int
    free_blocks: int  # empty or cached
    num_blocks: int
    free_slots: int
    num_slots: int
    tokens_total: int
    waiting_by_class: tuple[int, ...] = ()  # in the order of PRIORITIES
    preparing: int = 0  # known, and not in the queue yet
    swapped: int = 0  # of those waiting: their bytes lie in host memory
    cached_blocks: int = 0  # of the free ones: the prefix cache would find them
    anchors: int = 0
    num_anchors: int = 0
    query_tokens_total: int = 0  # of prompts looked up in the prefix cache
    hit_tokens_total: int = 0  # of them: not computed again
    memory_hit_tokens_total: int = 0  # of these: brought from the cache tier's memory
    disk_hit_tokens_total: int = 0  # likewise, from its disk
    preemptions_total: int = 0
    swaps_total: int = 0  # of the preemptions: to host memory; the rest is computed again
    resumed_total: int = 0  # prompts that came with output made elsewhere
    snapshots_total: int = 0  # of them: went on from a copy of their slot
    tier_query_tokens_total: int = 0  # of prompts that the cache tier was asked for
    aborted_tokens_total: int = 0  # computed for sequences that had been given up
    overrun_tokens_total: int = 0  # for sequences that had just ended
    failed_tokens_total: int = 0  # in steps that broke
    recomputed_tokens_total: int = 0  # again, after a preemption


class EnginePort(Protocol):
    """Continuous batching over paged KV, seen from outside."""

    @property
    def layout(self) -> Layout: ...

    @property
    def namespace(self) -> bytes: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def keep_tokens(self) -> int:
        """The last tokens of a prompt so many are computed whatever is cached."""
        ...

    @property
    def block_log(self) -> BlockLog:
        """What its prefix cache takes in and gives up; any thread may read it."""
        ...

    async def submit(self, generation: Generation, *, hold: bool) -> None:
        """Queue a prompt. Returns when it is queued; BadRequest if it can never fit, or if its
        constraint cannot be enforced.

        Its tokens come out as rows. With `hold`, the sequence stops after its first sampled token
        and keeps its pages until `drop` (unless that token finished it: then they are freed).
        """
        ...

    async def reserve(self, key: Key, capacity: int) -> Pages | None:
        """Set pages aside for `capacity` positions; None when there is no room now."""
        ...

    async def prepare(self, generation: Generation) -> None:
        """Make ready what its constraint needs, so that `adopt` will not wait; BadRequest if that
        cannot be enforced."""
        ...

    async def adopt(self, generation: Generation) -> None:
        """Run a reserved sequence; its pages hold all of generation.tokens but the last one."""
        ...

    async def held(self, key: Key) -> Pages | None:
        """Pages of a sequence that finished its prompt under `hold`; None if there is none."""
        ...

    async def drop(self, key: Key) -> bool:
        """Forget a sequence wherever it stands and free its pages; False if it was not known.

        After it returns no step touches the pages and no row of the key comes out.
        """
        ...

    def block(self, page: int) -> memoryview:
        """The bytes of a block page, writable."""
        ...

    def slot(self, slot: int) -> memoryview:
        """The bytes of a slot, writable."""
        ...

    def counts(self) -> Counts: ...

    def idle_s(self) -> float:
        """Seconds since the engine thread last answered: large means it hangs."""
        ...

    async def stop(self) -> None:
        """End the engine thread after the step under way."""
        ...
