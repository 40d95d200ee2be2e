"""The number formats of the release: FP8 and FP4 values that share a scale in groups.

Three quantisers act on activations and cache records, groups along the last dimension:

| name        | group | scale                            | element |
| ----------- | ----- | -------------------------------- | ------- |
| `fp8_g32`   | 32    | power of two, byte E8M0          | E4M3    |
| `mxfp4_g32` | 32    | power of two, byte E8M0          | E2M1    |
| `nvfp4_g16` | 16    | E4M3, rounded to nearest         | E2M1    |

Each has `encode` (values to bytes), `decode` (bytes to values) and `round` (what decode(encode(x))
gives, bit for bit, without bytes between). `round` passes gradients straight through.
All arithmetic here is float32; whatever comes in is converted first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

E4M3_MAX = 448.0
E2M1_MAX = 6.0
_EXPONENT_BITS = 0x7F800000  # of a float32


def _e4m3_table() -> Tensor:
    """The value of each of the 256 bytes; 0x7F and 0xFF are NaN."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def _e8m0_table() -> Tensor:
    """2 ** (byte - 127); 255 is NaN."""
    table = torch.ldexp(torch.ones(256, dtype=torch.float64), torch.arange(256) - 127).float()
    table[255] = torch.nan
    return table


E4M3_VALUES = _e4m3_table()
E8M0_VALUES = _e8m0_table()
E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] * 2)
E2M1_VALUES[8:] = -E2M1_VALUES[8:]
_E2M1_PAIRS = torch.stack(  # [256, 2]: the even element lies in the low nibble
    (E2M1_VALUES.repeat(16), E2M1_VALUES.repeat_interleave(16)), dim=1
)
_E2M1_CODES = torch.zeros(13, dtype=torch.uint8)  # by twice the magnitude
_E2M1_CODES[[0, 1, 2, 3, 4, 6, 8, 12]] = torch.arange(8, dtype=torch.uint8)


def power_of_two_above(x: Tensor) -> Tensor:
    """The smallest power of two >= x, as its biased exponent (int32), from the bits of x > 0."""
    bits = x.view(torch.int32)
    return (bits + 0x7FFFFF) >> 23


def _from_exponent(exponent: Tensor) -> Tensor:
    """2 ** (exponent - 127) for biased exponents of 1..254."""
    return (exponent << 23).view(torch.float32)


def _amax(groups: Tensor, least: float) -> Tensor:
    return groups.abs().amax(-1, keepdim=True).clamp_min(least)


def _grouped(x: Tensor, size: int) -> Tensor:
    return x.view(*x.shape[:-1], x.shape[-1] // size, size)


def _round_e2m1(x: Tensor) -> Tensor:
    """Nearest E2M1 value of |x| <= 6, ties to the even code; the sign of zero is kept."""
    power = (x.abs().clamp_min(1).view(torch.int32) & _EXPONENT_BITS).view(torch.float32)
    step = power * 0.5  # between neighbouring values: 0.5 below 2, 1 below 4, 2 above
    return torch.round(x / step) * step


@dataclass(frozen=True, slots=True)
class Quantiser:
    """One of the formats above."""

    name: str
    group: int
    element_max: float
    packed: bool  # two elements a byte
    scales_of: Callable[[Tensor], tuple[Tensor, Tensor]]  # groups -> scale values, scale bytes
    scale_values: Tensor  # by byte

    def data_bytes(self, width: int) -> int:
        return width // 2 if self.packed else width

    def scale_bytes(self, width: int) -> int:
        return width // self.group

    def _elements(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Elements [..., groups, group], and the scales [..., groups, 1] as values and bytes."""
        groups = _grouped(x.detach().float(), self.group)
        scale, scale_bytes = self.scales_of(groups)
        elements = (groups / scale).clamp(-self.element_max, self.element_max)
        elements = _round_e2m1(elements) if self.packed else elements.to(torch.float8_e4m3fn)
        return elements, scale, scale_bytes

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [..., n] -> data bytes [..., n or n / 2] and scale bytes [..., n / group]."""
        elements, _, scale_bytes = self._elements(x)
        elements = elements.flatten(-2)
        if not self.packed:
            return elements.view(torch.uint8), scale_bytes.squeeze(-1)
        codes = _E2M1_CODES[(elements.abs() * 2).int()]
        codes = codes | (torch.signbit(elements).to(torch.uint8) << 3)
        return codes[..., 0::2] | (codes[..., 1::2] << 4), scale_bytes.squeeze(-1)

    def decode(self, data: Tensor, scales: Tensor) -> Tensor:
        """The inverse of `encode`, as float32."""
        values = unpack_e2m1(data) if self.packed else take(E4M3_VALUES, data)
        scale = take(self.scale_values, scales).unsqueeze(-1)
        return (_grouped(values, self.group) * scale).flatten(-2)

    def round(self, x: Tensor, *, straight_through: bool = True) -> Tensor:
        """decode(encode(x)) in x's dtype, with the gradient of the identity, or with none."""
        if straight_through and torch.is_grad_enabled() and x.requires_grad:
            return _straight_through(x, self._round)
        return self._round(x)

    def _round(self, x: Tensor) -> Tensor:
        elements, scale, _ = self._elements(x)
        return (elements.float() * scale).flatten(-2).to(x.dtype)


class _StraightThrough(torch.autograd.Function):
    """Any rounding, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: object, x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        return rounding(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _straight_through(x: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
    rounded: Tensor = _StraightThrough.apply(x, rounding)  # type: ignore[no-untyped-call]
    return rounded


def round_bf16(x: Tensor) -> Tensor:
    """x as a bfloat16 tensor would hold it, in x's dtype; gradients pass straight through."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _straight_through(x, _round_bf16)
    return _round_bf16(x)


def _round_bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def _fp8_scales(groups: Tensor) -> tuple[Tensor, Tensor]:
    exponent = power_of_two_above(_amax(groups, 1e-4) * (1 / E4M3_MAX))
    return _from_exponent(exponent), exponent.to(torch.uint8)


def _mxfp4_scales(groups: Tensor) -> tuple[Tensor, Tensor]:
    exponent = power_of_two_above(_amax(groups, 6 * 2.0**-126) * (1 / E2M1_MAX))
    return _from_exponent(exponent), exponent.to(torch.uint8)


def _nvfp4_scales(groups: Tensor) -> tuple[Tensor, Tensor]:
    scale = (_amax(groups, 6 * 2.0**-9) / E2M1_MAX).clamp_max(E4M3_MAX).to(torch.float8_e4m3fn)
    return scale.float(), scale.view(torch.uint8)


FP8_G32 = Quantiser("fp8_g32", 32, E4M3_MAX, False, _fp8_scales, E8M0_VALUES)
MXFP4_G32 = Quantiser("mxfp4_g32", 32, E2M1_MAX, True, _mxfp4_scales, E8M0_VALUES)
NVFP4_G16 = Quantiser("nvfp4_g16", 16, E2M1_MAX, True, _nvfp4_scales, E4M3_VALUES)


def take(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for a one-dimensional table and byte indices; quicker than indexing."""
    return table.index_select(0, index.reshape(-1).int()).view(index.shape)


def unpack_e2m1(data: Tensor) -> Tensor:
    """Packed bytes [..., n / 2] -> values [..., n]."""
    pairs = _E2M1_PAIRS.index_select(0, data.reshape(-1).int())
    return pairs.view(*data.shape[:-1], -1)


def decode_fp8_blocks(data: Tensor, scales: Tensor, block: int = 32) -> Tensor:
    """An FP8 matrix [out, in] with a scale byte a block x block square; edges may be partial."""
    rows, columns = data.shape
    scale = take(E8M0_VALUES, scales)
    scale = scale.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
    return take(E4M3_VALUES, data) * scale


def encode_fp8_blocks(x: Tensor, block: int = 32) -> tuple[Tensor, Tensor]:
    """The inverse: bytes [out, in] and scale bytes [ceil(out / block), ceil(in / block)]."""
    elements, exponent = _fp8_tiles(x, block)
    data = elements.view(torch.uint8).flatten(2).flatten(0, 1)
    rows, columns = x.shape
    return data[:rows, :columns].contiguous(), exponent[:, 0, :, 0].to(torch.uint8)


def round_fp8_blocks(x: Tensor, block: int = 32) -> Tensor:
    """decode(encode(x)) of an FP8 matrix, on any device; gradients pass straight through."""

    def rounding(x: Tensor) -> Tensor:
        elements, exponent = _fp8_tiles(x, block)
        values = (elements.float() * _from_exponent(exponent)).flatten(2).flatten(0, 1)
        return values[: x.shape[0], : x.shape[1]].to(x.dtype)

    return _straight_through(x, rounding) if x.requires_grad else rounding(x)


def _fp8_tiles(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Elements [rows, block, columns, block] and biased exponents [rows, 1, columns, 1]."""
    rows, columns = x.shape
    padded = torch.nn.functional.pad(x.detach().float(), (0, -columns % block, 0, -rows % block))
    tiles = padded.view(-(-rows // block), block, -(-columns // block), block)
    amax = tiles.abs().amax((1, 3), keepdim=True).clamp_min(1e-4)
    exponent = power_of_two_above(amax * (1 / E4M3_MAX))
    elements = (tiles / _from_exponent(exponent)).clamp(-E4M3_MAX, E4M3_MAX)
    return elements.to(torch.float8_e4m3fn), exponent
