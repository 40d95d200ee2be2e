"""Load `product.cu`, built at its first use, and call its two products."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from diptych.kernels import nvcc
from diptych.kernels.moe.packing import Packed, PackedExperts

SOURCE = Path(__file__).with_name("product.cu")
PLACES = 144  # at most so many of one expert in a tile of `many`
MAX_DEPTH = 5120  # a thread quantises its part of a row in registers

log = logging.getLogger(__name__)


@cache
def library() -> ctypes.CDLL:
    """Build and load once a process."""
    loaded = ctypes.CDLL(str(nvcc.build(SOURCE)))
    pointer, real, number = ctypes.c_void_p, ctypes.c_float, ctypes.c_int
    loaded.product_many.argtypes = [*[pointer] * 9, real, *[number] * 5, pointer]
    loaded.product_few.argtypes = [*[pointer] * 7, real, *[number] * 7, pointer]
    loaded.quantise_many.argtypes = [*[pointer] * 3, number, number, pointer]
    for function in (loaded.product_many, loaded.product_few, loaded.quantise_many):
        function.restype = number
    return loaded


@cache
def is_available() -> bool:
    """Whether the library builds and loads here; says once why not."""
    try:
        library()
    except (RuntimeError, OSError) as error:
        log.warning("routed experts run on the slower Triton kernels: %s", error)
        return False
    return True


def takes(experts: PackedExperts) -> bool:
    """Whether the compiled products can multiply these experts, on the GPU they are on."""
    products = experts.gate_up, experts.down
    device = experts.down.data.device
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) == (9, 0)
        and all(p.rows % 256 == 0 and 1024 <= p.depth <= MAX_DEPTH for p in products)
        and is_available()
    )


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """`activations.quantise` in the order that `many` wants.

    x: [rows, width] bf16 -> E4M3 [rows, width], scale [rows] float32. Of a group's eight words of
    four bytes the even ones come first.
    """
    _check(x)
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    _call(library().quantise_many, (x, out, scale), rows, width)
    return out, scale


def many(
    x: tuple[Tensor, Tensor],
    packed: Packed,
    weights: Tensor,
    order: Tensor,
    tiles: Tensor,
    out: Tensor,
    experts: PackedExperts,
) -> None:
    """`kernel.expert_product` of what `quantise` gives, in equal tiles of at most PLACES."""
    if weights.numel() * packed.depth >= 2**32:
        raise ValueError("too many activations for 32-bit offsets")
    _call(
        library().product_many,
        (*x, packed.data, packed.exponents, packed.scale, weights, order, tiles, out),
        experts.limit,
        weights.shape[1],
        packed.rows,
        packed.depth,
        packed is experts.gate_up,
        torch.cuda.get_device_properties(out.device).multi_processor_count,
    )


def few(
    x: Tensor, packed: Packed, weights: Tensor, ids: Tensor, out: Tensor, experts: PackedExperts
) -> None:
    """The same for pairs as they come, x in bf16: every pair reads its expert's weights."""
    _check(x)
    _call(
        library().product_few,
        (x, packed.data, packed.exponents, packed.scale, weights, ids, out),
        experts.limit,
        weights.shape[1],
        packed.rows,
        packed.depth,
        experts.first,
        experts.count,
        ids.numel(),
        packed is experts.gate_up,
    )


def _check(x: Tensor) -> None:
    if x.data_ptr() % 16 or x.shape[1] % 32 or x.shape[1] > MAX_DEPTH:
        raise ValueError(f"needs rows of whole groups up to {MAX_DEPTH}, 16-byte aligned")


def _call(function: Callable[..., int], tensors: tuple[Tensor, ...], *numbers: float) -> None:
    if not all(t.is_contiguous() for t in tensors):
        raise ValueError("tensors must be contiguous")
    with torch.cuda.device(tensors[0].device):
        stream = torch.cuda.current_stream().cuda_stream
        failed = function(*(t.data_ptr() for t in tensors), *numbers, stream)
    if failed:
        raise RuntimeError(f"{SOURCE.name}: CUDA error {failed}")
