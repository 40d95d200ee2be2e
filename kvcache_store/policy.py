"""What goes first when the disk is short. Pure.

Expired and dead bytes go before anything is asked here. Then namespaces that nobody uses, then
tenants and classes above their quota, and last what was promised; inside each rank leaves before
parents, and of leaves the one that is worth least: milliseconds saved by a hit times its
probability, a byte, seen with its segment. Parents never go before their children: a chain is read
from its root.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from diptych.core.ids import BlockHash
from diptych.kvcache_store.retention import Retention

MS_A_TOKEN: Final = 0.031  # of a prefill node: 73,700 tokens/s, 44 % of them computed
TWICE_AT_TOKENS: Final = 65_536  # attention doubles the cost of a token about here
MUCH_BETTER: Final = 2.0
USABLE: Final = 0.8  # of the capacity, for promises
HALF_AFTER_S: Final = 3_600.0  # idle; then as one over the time, since turns come in bursts


class Rank(IntEnum):
    """Why an extent may go; lower ones go first."""

    FOREIGN = 0  # of a namespace that no worker uses any more
    OVER_QUOTA = 1
    PROMISED = 2  # counted as a violation


@dataclass(frozen=True, slots=True)
class Candidate:
    """An extent that may be evicted."""

    key: int
    rank: Rank
    value: float
    size_bytes: int
    parents: frozenset[bytes]  # what its parts continue or belong to
    names: frozenset[BlockHash]  # blocks that others may continue


def value(*, tokens: int, index_tokens: int, size_bytes: int, reads: int, idle_s: float) -> float:
    """Milliseconds that keeping a byte is expected to save."""
    ms = tokens * MS_A_TOKEN * (1.0 + index_tokens / TWICE_AT_TOKENS)
    probability = (1.0 + reads) / (2.0 + reads) / (1.0 + max(0.0, idle_s) / HALF_AFTER_S)
    return ms * probability / max(1, size_bytes)


def with_its_segment(own: float, mean: float) -> float:
    """The value that counts in a segment of this mean value: what is not much better than its
    neighbours goes with them. So bytes die side by side, and little has to be moved."""
    return max(mean, own / MUCH_BETTER)


def shown_days(
    ttl_days: Mapping[Retention, int], bytes_a_day: Mapping[Retention, float], capacity_bytes: int
) -> dict[Retention, float]:
    """What can be promised at these rates of new bytes: less than the TTL, openly, when what
    would pile up is more than the usable part of the capacity."""
    piled = sum(days * bytes_a_day.get(kind, 0.0) for kind, days in ttl_days.items())
    share = min(1.0, USABLE * capacity_bytes / piled) if piled > 0 else 1.0
    return {kind: days * share for kind, days in ttl_days.items()}


def eviction_order(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Leaves first; a parent follows when its last child has gone."""
    owner = {name: c for c in candidates for name in c.names}
    children: Counter[int] = Counter()
    for c in candidates:
        children.update(o.key for o in _owners(c, owner))
    heap = [
        (c.rank, c.value, number, c) for number, c in enumerate(candidates) if not children[c.key]
    ]
    heapq.heapify(heap)
    number = len(candidates)
    while heap:
        *_, leaf = heapq.heappop(heap)
        yield leaf
        for parent in _owners(leaf, owner):
            children[parent.key] -= 1
            if not children[parent.key]:
                number += 1
                heapq.heappush(heap, (parent.rank, parent.value, number, parent))


def _owners(c: Candidate, owner: dict[BlockHash, Candidate]) -> list[Candidate]:
    found = {o.key: o for p in c.parents if (o := owner.get(BlockHash(p))) is not None}
    found.pop(c.key, None)
    return list(found.values())
