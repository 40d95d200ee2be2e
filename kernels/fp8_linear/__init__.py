"""Dense projection with FP8 weights in 32 x 32 blocks and FP8 activations per 32."""

import torch
from torch import Tensor

from diptych.kernels.fp8_linear import reference
from diptych.kernels.fp8_linear.packing import PackedLinear, pack

__all__ = ["PackedLinear", "fp8_linear", "pack"]


def fp8_linear(x: Tensor, weight: Tensor | PackedLinear, scale: Tensor | None = None) -> Tensor:
    """x: [rows, k] bf16 -> [rows, n] bf16.

    Packed weights run on the GPU kernel; checkpoint bytes [n, k] with their scale [n / 32, k / 32]
    on the reference.
    """
    if isinstance(weight, PackedLinear):
        from diptych.kernels.fp8_linear import launch  # triton is there where a GPU is

        return launch.fp8_linear(x, weight)
    if scale is None:
        raise ValueError("checkpoint weights come with their block scales")
    return reference.fp8_linear(x, weight, scale).to(torch.bfloat16)
