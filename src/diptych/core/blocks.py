"""Identity of KV blocks: one chain hash over everything that determines their bytes.

namespace = H('root/v1', model, weights, tokenizer, layout, grain, numerics, adapter)
h_0       = H('scope/v1', namespace, HMAC(master key, tenant, user, salt))
h_i       = H('blk/v1', h_{i-1}, the block's token ids, its image spans)
slot      = H('slot/v1', h_i, first position of the decoder's windows)

H is BLAKE2b-128 over length-prefixed fields, so no field can be mistaken for another. Only full
blocks have a hash. Test vectors: docs/block-identity.md.
"""

import hashlib
import hmac
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.core.ids import BlockHash

HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Part of an image inside a block."""

    position: int  # first position of the span inside the block
    digest: bytes  # of the preprocessed pixels
    offset: int  # position inside the image's own span
    length: int


def _hash(label: str, *fields: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=HASH_BYTES)
    for field in (label.encode(), *fields):
        state.update(len(field).to_bytes(8, "little"))
        state.update(field)
    return state.digest()


def namespace(
    *,
    model: str,
    weights: bytes,
    tokenizer: bytes,
    layout: bytes,
    grain: int,
    numerics: str,
    adapter: str = "",
) -> bytes:
    """Root of all chains that may share bytes; 16 bytes."""
    return _hash(
        "root/v1",
        model.encode(),
        weights,
        tokenizer,
        layout,
        grain.to_bytes(4, "little"),
        numerics.encode(),
        adapter.encode(),
    )


def scope(
    namespace: bytes, master_key: bytes, tenant: str, user: str = "", salt: str = ""
) -> bytes:
    """h_0 of a tenant's chains. The key stays with the platform, so a scope cannot be guessed."""
    mac = hmac.new(master_key, digestmod=hashlib.sha256)
    for part in (tenant, user, salt):
        encoded = part.encode()
        mac.update(len(encoded).to_bytes(8, "little") + encoded)
    return _hash("scope/v1", namespace, mac.digest())


def block_hash(
    parent: bytes, token_ids: Sequence[int], images: Sequence[ImageSpan] = ()
) -> BlockHash:
    """Hash of one full block."""
    spans = b"".join(
        span.position.to_bytes(4, "little")
        + len(span.digest).to_bytes(4, "little")
        + span.digest
        + span.offset.to_bytes(4, "little")
        + span.length.to_bytes(4, "little")
        for span in images
    )
    return BlockHash(_hash("blk/v1", parent, pack_ids(token_ids), spans))


def chain(scope: bytes, token_ids: Sequence[int], grain: int) -> list[BlockHash]:
    """Hashes of the full blocks of a sequence, first to last."""
    hashes: list[BlockHash] = []
    parent = scope
    for start in range(0, len(token_ids) - grain + 1, grain):
        parent = block_hash(parent, token_ids[start : start + grain])
        hashes.append(BlockHash(parent))
    return hashes


def fingerprint(scope: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of a whole prompt inside its scope, however short: to know one that kills workers."""
    return _hash("prompt/v1", scope, pack_ids(token_ids))


def part_hash(ticket_id: bytes, kind: str) -> BlockHash:
    """Name of a ticket's tail block or slot, which belong to one request and have no chain hash."""
    return BlockHash(hashlib.blake2b(ticket_id + kind.encode(), digest_size=HASH_BYTES).digest())


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Token ids as packed little-endian u32, as they travel and as they are hashed."""
    packed = array("I", token_ids)
    if packed.itemsize != 4:
        raise AssertionError("array('I') is not 32 bit on this machine")
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """Inverse of pack_ids; ValueError unless whole ids."""
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def slot_name(block: BlockHash, floor: int) -> BlockHash:
    """Of the state of a sequence at the end of a block.

    The decoder's windows depend on where bounded replay began: the same text with its prompt cut
    elsewhere has the same blocks and another slot.
    """
    return BlockHash(_hash("slot/v1", block, floor.to_bytes(4, "little")))
