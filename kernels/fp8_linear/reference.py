"""Dense projection with FP8 weights in 32 x 32 blocks, in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from diptych.kernels.formats import decode_e4m3, decode_ue8m0, fake_fp8


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    """weight: [n, k] uint8 E4M3, scale: [ceil(n / 32), ceil(k / 32)] uint8 UE8M0 -> float32."""
    n, k = weight.shape
    wide = decode_ue8m0(scale).repeat_interleave(32, 0)[:n].repeat_interleave(32, 1)[:, :k]
    return decode_e4m3(weight) * wide


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    rounded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """x: [rows, k] bf16 -> [rows, n] of `dtype`; `rounded` quantises x to FP8 per 32."""
    x = (fake_fp8(x) if rounded else x).to(dtype)
    return F.linear(x, dequantise(weight, scale).to(dtype))
