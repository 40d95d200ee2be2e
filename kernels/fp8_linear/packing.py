"""Fold 32 x 32 block scales into one power of two a row, once at load."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.kernels.formats import decode_ue8m0
from diptych.kernels.fp8_linear.reference import dequantise


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """data: [n, k] E4M3; scale: [n] float32. The weight is data * scale."""

    data: Tensor
    scale: Tensor


def pack(weight: Tensor, scale: Tensor) -> PackedLinear:
    """weight: [n, k] uint8 E4M3, scale: [ceil(n / 32), ceil(k / 32)] uint8 UE8M0.

    A value keeps all its bits unless it falls below 2^-6 of its row's scale; then it is rounded by
    at most 2^-10 of that scale, where the row's largest value may be 448 times the scale.
    """
    n = weight.shape[0]
    row = decode_ue8m0(scale.amax(1)).repeat_interleave(32)[:n].contiguous()
    data = (dequantise(weight, scale) / row[:, None]).to(torch.float8_e4m3fn)
    return PackedLinear(data, row)
