"""Names for the things that travel between stations."""

from dataclasses import dataclass
from typing import NewType

WorkerId = NewType("WorkerId", str)
Incarnation = NewType("Incarnation", int)  # random 64 bits, new at every start of a worker
BlockHash = NewType("BlockHash", bytes)  # 16 bytes


@dataclass(frozen=True, slots=True)
class Key:
    """One try at one request. Attempts count from 1; a higher attempt outdates all lower ones."""

    request_id: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel rank of one life of a worker, and where its gRPC server listens."""

    worker_id: WorkerId
    address: str  # host:port
    incarnation: Incarnation
    dp_rank: int = 0
