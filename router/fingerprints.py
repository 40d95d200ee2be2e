"""A set of blocks in fixed memory, for a tier that holds more than an exact index may.

Buckets of eight 32-bit fingerprints, the newest first. A full bucket forgets its oldest, so the set
may know too little; that it knows what is not there has odds of 8 in 2**32. Adding twice is adding
once, and what went is removed: that is why it is no Bloom filter.
"""

from array import array

BUCKET = 8
SLOTS = 1 << 22  # 16 MiB: of two million blocks (230 GB of the released size) 0.7 % are forgotten


class Fingerprints:
    """Keys are 64 bits that look random."""

    def __init__(self, num_slots: int = SLOTS) -> None:
        assert num_slots % BUCKET == 0 and num_slots & (num_slots - 1) == 0
        self._mask = num_slots // BUCKET - 1
        self._slots = array("I", [0]) * num_slots  # 0: free
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: int) -> bool:
        at = (key & self._mask) * BUCKET
        return (key >> 32 or 1) in self._slots[at : at + BUCKET]

    def add(self, key: int) -> bool:
        """Whether another one had to go for it."""
        at = (key & self._mask) * BUCKET
        bucket = self._slots[at : at + BUCKET]
        mark = key >> 32 or 1
        if mark in bucket:
            return False
        is_full = 0 not in bucket
        if is_full:
            bucket.pop()
        else:
            bucket.remove(0)
            self._size += 1
        bucket.insert(0, mark)
        self._slots[at : at + BUCKET] = bucket
        return is_full

    def discard(self, key: int) -> None:
        at = (key & self._mask) * BUCKET
        bucket = self._slots[at : at + BUCKET]
        mark = key >> 32 or 1
        if mark in bucket:
            bucket.remove(mark)
            bucket.append(0)
            self._slots[at : at + BUCKET] = bucket
            self._size -= 1
