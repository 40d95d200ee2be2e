"""The stations a request passes, as the pipeline sees them. Real ones are the others' clients."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from diptych.core.ids import Key, Rank
from diptych.core.phases import Phase
from diptych.core.request import Generation
from diptych.core.step import Row
from diptych.prefill_service.client import Event
from diptych.router.client import Have, Placement, Want


class Lease(Protocol):
    """A placed request; it lives until closed."""

    def __aiter__(self) -> AsyncIterator[Placement]: ...

    async def progress(
        self, phase: Phase, tokens: int, last_chunk_started: bool = False
    ) -> None: ...

    async def again(
        self,
        attempt: int,
        failed_worker: str,
        why: str,
        have: Have,
        code: str = "",
        kind: str = "",
        partner: str = "",
    ) -> None: ...

    async def close(self) -> None: ...


class Router(Protocol):
    """Decides where."""

    async def place(self, want: Want) -> Lease: ...


class PrefillCall(Protocol):
    """One prompt at one worker."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def renew(self) -> bool: ...

    async def cancel(self) -> None: ...


class Prefill(Protocol):
    """Computes prompts."""

    def open(self, rank: Rank, generation: Generation, deadline_s: float) -> PrefillCall: ...


class DecodeCall(Protocol):
    """One output at one worker."""

    async def start(
        self, generation: Generation, ticket: bytes | None, deadline_s: float
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[Row]: ...

    async def cancel(self) -> None: ...


class Decode(Protocol):
    """Continues outputs."""

    def open(self, rank: Rank, key: Key) -> DecodeCall: ...

    async def reserve(
        self, rank: Rank, key: Key, capacity: int, deadline_s: float
    ) -> DecodeCall: ...


@dataclass(frozen=True, slots=True)
class Hops:
    """All of them."""

    router: Router
    prefill: Prefill
    decode: Decode
