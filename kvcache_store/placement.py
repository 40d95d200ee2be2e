"""Which node keeps which part of a chain: rendezvous hashing with a ramp. Pure.

A chain is cut into segments of 16 blocks; the first block's hash is a segment's key, so that
conversations with the same beginning agree. A node that returns empty takes writes slowly, and so
does not pull all load to itself; while it ramps, a segment is looked for at its two best nodes.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Final

from diptych.core.ids import BlockHash

SEGMENT_BLOCKS: Final = 16
RAMP_S: Final = 600.0
SMALLEST_WEIGHT: Final = 0.05
LOOKED_AT: Final = 2  # nodes a segment is looked for


def segment_key(chain: Sequence[BlockHash], index: int) -> BlockHash:
    """Of the segment that a block of the chain lies in."""
    return chain[index - index % SEGMENT_BLOCKS]


def weight(age_s: float, *, was_empty: bool) -> float:
    """Of a node: 1, or less while it ramps."""
    if not was_empty:
        return 1.0
    return min(1.0, max(SMALLEST_WEIGHT, age_s / RAMP_S))


def ranked(weights: Mapping[str, float], key: bytes) -> list[str]:
    """Nodes for a key, the best first. One that comes or goes moves only its own share."""
    return sorted(weights, key=lambda node: (-_score(node, key, weights[node]), node))


def _score(node: str, key: bytes, node_weight: float) -> float:
    digest = hashlib.blake2b(key, key=node.encode()[:64], digest_size=8).digest()
    uniform = (int.from_bytes(digest, "little") + 1) / (2**64 + 1)
    return node_weight / -math.log(uniform)
