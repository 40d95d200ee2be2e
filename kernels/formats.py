"""Number formats of the checkpoint and the caches, in plain torch: what the references decode with.

E2M1 pairs hold element 2i in the low nibble. A UE8M0 byte b means 2^(b - 127).
"""

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP8_MAX = 448.0


def decode_e2m1(packed: Tensor) -> Tensor:
    """packed: [..., n / 2] uint8 -> [..., n] float32."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()
    table = torch.tensor(E2M1 + tuple(-v for v in E2M1), device=packed.device)
    return table[codes]


def decode_ue8m0(scale: Tensor) -> Tensor:
    """scale: uint8 -> float32 powers of two, exact (ldexp would round small ones to zero)."""
    return (scale.int() << 23).view(torch.float32)


def decode_e4m3(data: Tensor) -> Tensor:
    """data: uint8 -> float32."""
    return data.view(torch.float8_e4m3fn).float()


def ceil_power_of_two(x: Tensor) -> Tensor:
    """Smallest power of two >= x, read off the float32 bits. x: positive, normal."""
    bits = x.float().contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


def fake_fp8(x: Tensor, group: int = 32) -> Tensor:
    """Round x to E4M3 with a power-of-two scale per group: x [..., n] -> float32 of that shape."""
    g: Tensor = x.float().unflatten(-1, (-1, group))
    scale = ceil_power_of_two(g.abs().amax(-1, keepdim=True).clamp_min(1e-4) / FP8_MAX)
    q = (g / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    rounded: Tensor = q.float() * scale
    return rounded.flatten(-2)
