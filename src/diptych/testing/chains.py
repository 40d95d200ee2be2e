"""Chains of KV blocks whose bytes follow from their names: a wrong block betrays itself."""

import hashlib
import random
from collections.abc import Sequence

from diptych.core.blocks import block_hash
from diptych.core.ids import BlockHash
from diptych.kvcache_store.items import Item, Origin
from diptych.transport.frames import PartKind, checksum


def payload_of(kind: PartKind, name: bytes, size_bytes: int) -> bytes:
    """What a part of this name must hold."""
    return hashlib.shake_128(bytes([kind]) + name).digest(size_bytes)


def origin_of(tenant: str, namespace: str = "model") -> Origin:
    """A tenant's, as short as can be."""
    return Origin(
        namespace=_digest(f"namespace {namespace}"),
        layout_hash=_digest(f"layout {namespace}"),
        scope=_digest(f"scope {namespace} {tenant}"),
        group=_digest(f"group {tenant}"),
    )


def names_of(origin: Origin, tokens: Sequence[int]) -> list[BlockHash]:
    """The chain over blocks of one token each."""
    names: list[BlockHash] = []
    parent = origin.scope
    for token in tokens:
        parent = block_hash(parent, [token])
        names.append(BlockHash(parent))
    return names


def items_of(
    origin: Origin, tokens: Sequence[int], *, size_bytes: int = 1000, start: int = 0
) -> list[Item]:
    """The chain's blocks from index `start` on."""
    names = names_of(origin, tokens)
    return [
        item_of(origin, PartKind.BLOCK, name, names[i - 1] if i else origin.scope, i, size_bytes)
        for i, name in enumerate(names)
        if i >= start
    ]


def anchor_of(block: Item, size_bytes: int = 1000) -> Item:
    """The anchor at a block's end."""
    return item_of(block.origin, PartKind.ANCHOR, block.name, block.name, block.index, size_bytes)


def item_of(
    origin: Origin, kind: PartKind, name: BlockHash, parent: bytes, index: int, size_bytes: int
) -> Item:
    data = payload_of(kind, name, size_bytes)
    return Item(origin, kind, name, parent, index, True, checksum(data), memoryview(data))


def is_right(item: Item) -> bool:
    """Whether a part's bytes are those of its name."""
    return bytes(item.payload) == payload_of(item.kind, item.name, len(item.payload))


def conversations(draw: random.Random, num: int, longest: int) -> list[list[int]]:
    """Token lists of which many share a beginning."""
    found: list[list[int]] = []
    for _ in range(num):
        begin = draw.choice(found)[: draw.randrange(longest)] if found else []
        found.append(begin + [draw.randrange(1000) for _ in range(draw.randint(1, longest))])
    return found


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
