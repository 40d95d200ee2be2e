"""Memory for frames: kept by the process once it has it.

A frame is nearly a megabyte. The C library gives such pieces back to the kernel as soon as they
are free, and every next frame pays for fresh pages, zeroed one by one: half of the time that a
transfer takes.
"""

import ctypes
import sys

KEPT_BYTES = 256 << 20
LARGEST_PIECE_BYTES = 32 << 20  # larger ones are mapped and given back as before
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, malloc.h


def keep_freed_memory() -> bool:
    """Call once in a process that moves blocks; False where the C library cannot do it."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_MMAP_THRESHOLD, LARGEST_PIECE_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    )
