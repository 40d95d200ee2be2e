"""Repack FP4 experts once at load, so that the kernel widens them to FP8 and scales nothing.

An E2M1 magnitude written as E4M3, with the exponent field of 1/2 set to E, is 0 or 8E + (0, 8,
12, 16, 20, 24, 28): a group's power-of-two scale is only another E. A row keeps one power of two,
for the epilogue, and an E of 1 ... 12 per group of 32. That is exact while the scales of a row
span at most 11 binades.

Layout of a product with n rows and depth k, for one expert:

- data [k / 64, n, 32] uint8: eight 32-bit words per row and pair of groups (A, B). Word j holds the
  magnitudes of values 4j ... 4j+3 of A in nibbles 0-3 and of B in nibbles 4-7, signs of A in bits
  7, 15, 23, 31 and of B in bits 3, 11, 19, 27.
- exponents [k / 128, n] int32: the E of four groups, one a byte.
- scale [n] float32.

Gate and up rows alternate by eight, so that a thread's accumulators hold both halves of a SwiGLU.
The packed form has the size of the checkpoint's (4.25 bits a weight, plus 4 bytes a row).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.kernels.moe.reference import Experts

MAX_SPAN = 11
TOP = 12  # the E of a row's largest scale


@dataclass(frozen=True, slots=True)
class Packed:
    """One product of all experts; shapes in the module docstring, with experts in front."""

    data: Tensor
    exponents: Tensor
    scale: Tensor

    @property
    def rows(self) -> int:
        return self.data.shape[2]

    @property
    def depth(self) -> int:
        return self.data.shape[1] * 64


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """gate_up: 2 * width rows, hidden deep; down: hidden rows, width deep."""

    gate_up: Packed
    down: Packed
    first: int = 0
    limit: float = 10.0

    @property
    def count(self) -> int:
        return self.gate_up.data.shape[0]


def wide_rows(weight: Tensor, scale: Tensor) -> int:
    """How many rows span too many binades to be packed. Groups of zeros do not count."""
    low, high = _span(weight, scale)
    return int((high - low > MAX_SPAN).sum())


def _span(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    used = (weight.unflatten(-1, (-1, 16)) & 0x77).amax(-1) != 0
    s = scale.int()
    high = torch.where(used, s, 0).amax(-1)
    low = torch.where(used, s, 255).amin(-1)
    return torch.minimum(low, high), high


def pack_product(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """weight: [n, k / 2] uint8, scale: [n, k / 32] uint8 -> one expert's data, exponents, scale."""
    n, half = weight.shape
    if half % 64 or n % 16:
        raise ValueError(f"packing needs n % 16 == 0 and k % 128 == 0, not n = {n}, k = {half * 2}")
    low, high = _span(weight, scale)
    if bool((high - low > MAX_SPAN).any()):
        raise ValueError(f"{int((high - low > MAX_SPAN).sum())} rows span more than 11 binades")
    codes = torch.stack((weight & 15, weight >> 4), dim=-1).view(n, half // 32, 2, 8, 4).int()
    nibble = torch.arange(4, device=weight.device, dtype=torch.int32) * 4
    magnitude = ((codes & 7) << nibble).sum(-1)  # [n, pairs, 2, words]
    sign = ((codes >> 3) << (nibble * 2)).sum(-1)
    word = magnitude[:, :, 0] + (magnitude[:, :, 1] << 16) + (sign[:, :, 0] << 7)
    word = (word + (sign[:, :, 1] << 3)).to(torch.int32)
    data = word.permute(1, 0, 2).contiguous().view(torch.uint8)  # [pairs, n, 32]
    e = (TOP - high[:, None] + scale.int()).clamp(1, TOP).view(n, -1, 4)
    shift = torch.arange(4, device=weight.device, dtype=torch.int32) * 8
    exponents = (e << shift).sum(-1).to(torch.int32).t().contiguous()
    row = torch.exp2((high - TOP - 121).double()).float()
    return data, exponents, row


def _interleave(gate: Tensor, up: Tensor) -> Tensor:
    """[n, ...] twice -> [2n, ...], alternating by eight rows."""
    return torch.stack((gate.unflatten(0, (-1, 8)), up.unflatten(0, (-1, 8))), 1).flatten(0, 2)


def _stack(parts: list[tuple[Tensor, Tensor, Tensor]]) -> Packed:
    return Packed(*(torch.stack(column) for column in zip(*parts, strict=True)))


def pack(experts: Experts) -> PackedExperts:
    """Repack all experts of a shard."""
    gate_up = [
        pack_product(
            _interleave(experts.w1[e], experts.w3[e]), _interleave(experts.s1[e], experts.s3[e])
        )
        for e in range(experts.count)
    ]
    down = [pack_product(experts.w2[e], experts.s2[e]) for e in range(experts.count)]
    return PackedExperts(_stack(gate_up), _stack(down), experts.first, experts.limit)
