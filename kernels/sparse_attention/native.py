"""Load `prefill.cu`, built at its first use, and call it."""

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diptych.kernels import nvcc

SOURCE = Path(__file__).with_name("prefill.cu")
HEADS, DIM, BLOCK = 64, 512, 64

log = logging.getLogger(__name__)


def load(library: Path) -> ctypes.CDLL:
    """Load a built library and declare its one function."""
    loaded = ctypes.CDLL(str(library))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    loaded.sparse_prefill.argtypes = [*[pointer] * 8, ctypes.c_float, *[number] * 6, pointer]
    loaded.sparse_prefill.restype = number
    return loaded


@cache
def library() -> ctypes.CDLL:
    """Build and load once a process."""
    return load(nvcc.build(SOURCE))


@cache
def is_available() -> bool:
    """Whether the library builds and loads here; says once why not."""
    try:
        library()
    except (RuntimeError, OSError) as error:
        log.warning("prefill attention runs on the slower Triton kernel: %s", error)
        return False
    return True


def sparse_attention(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor,
    entry_index: Tensor,
    sink: Tensor,
    out: Tensor,
    loaded: ctypes.CDLL | None = None,
) -> Tensor:
    """Arguments as in `reference.sparse_attention`, 64 heads of 512 channels -> out, bf16."""
    arguments = (q, window, window_index, entries, entry_index, sink, out)
    widths = window_index.shape[1], entry_index.shape[1]
    if q.shape[1:] != (HEADS, DIM) or not all(t.is_contiguous() for t in arguments):
        raise ValueError(f"needs {HEADS} heads of {DIM} channels, everything contiguous")
    if any(width % BLOCK for width in widths) or sum(widths) < 2 * BLOCK:
        raise ValueError(f"index lists must be a multiple of {BLOCK} wide, {2 * BLOCK} in all")
    if any(t.data_ptr() % 16 for t in arguments[:-2]):
        raise ValueError("tensors must start at a multiple of 16 bytes")
    if not len(q):
        return out
    table = torch.empty(len(window) + len(entries), DIM, dtype=torch.float16, device=q.device)
    with torch.cuda.device(q.device):
        failed = (loaded or library()).sparse_prefill(
            *(t.data_ptr() for t in arguments),
            table.data_ptr(),
            DIM**-0.5 * 1.4426950408889634 * 128,
            len(q),
            len(window),
            len(entries),
            *widths,
            torch.cuda.get_device_properties(q.device).multi_processor_count,
            torch.cuda.current_stream().cuda_stream,
        )
    if failed:
        raise RuntimeError(f"{SOURCE.name}: CUDA error {failed}")
    return out
