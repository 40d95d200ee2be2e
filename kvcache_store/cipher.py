"""AES-256-GCM over the parts of a segment.

A segment's key is BLAKE2b-256 of its id under the tenant's key; the nonce is the extent's offset
and the part's position, which an append-only file uses once. The part's name is authenticated, so
bytes of another part are refused even with a matching checksum.
"""

import hashlib
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = struct.Struct("<QI")


class SegmentCipher:
    """Encrypts and decrypts parts of one segment."""

    def __init__(self, tenant_key: bytes, segment_id: int) -> None:
        number = segment_id.to_bytes(8, "little")
        self._aes = AESGCM(
            hashlib.blake2b(number, key=tenant_key, digest_size=32, person=b"segment/v1").digest()
        )

    def encrypt(self, offset: int, position: int, name: bytes, data: memoryview) -> bytes:
        """Longer by the tag."""
        return self._aes.encrypt(_NONCE.pack(offset, position), data, name)

    def decrypt(
        self, offset: int, position: int, name: bytes, data: memoryview
    ) -> memoryview | None:
        """None if it is not what was encrypted, or the key is another one."""
        try:
            return memoryview(self._aes.decrypt(_NONCE.pack(offset, position), data, name))
        except InvalidTag:
            return None
