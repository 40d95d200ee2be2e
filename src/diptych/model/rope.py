"""Rotary positions: adjacent pairs of the last channels of a vector turn by an angle."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.layers import take
from diptych.model.spec import RopeSpec


@dataclass(frozen=True, slots=True)
class Turn:
    """The rotation of each row of a forward: cos and sin [T, dim / 2]."""

    cos: Tensor
    sin: Tensor

    def rotate(self, x: Tensor) -> Tensor:
        """Turn the last `dim` channels of x: [T, n] or [T, heads, n]."""
        return _rotate(x, self.cos, self.sin)

    def unrotate(self, x: Tensor) -> Tensor:
        """The inverse of `rotate`."""
        return _rotate(x, self.cos, -self.sin)

    def narrow(self, kept: Tensor) -> "Turn":
        """That of the kept rows."""
        return Turn(take(self.cos, kept), take(self.sin, kept))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    still = x[..., : x.shape[-1] - 2 * cos.shape[-1]]
    turned = x[..., still.shape[-1] :]
    u, v = turned[..., 0::2], turned[..., 1::2]
    pairs = torch.stack((u * cos - v * sin, u * sin + v * cos), -1)
    return torch.cat((still, pairs.flatten(-2)), -1)


def frequencies(rope: RopeSpec, *, compressed: bool) -> Tensor:
    """Radians a position, [dim / 2] float32.

    Layers with a compressed cache use their own base and YaRN: frequencies that turn less than
    `beta_slow` times within the original length are divided by `factor`, those that turn more than
    `beta_fast` times are kept, with a ramp between. There is no magnitude factor.
    """
    half = torch.arange(rope.dim // 2, dtype=torch.float64)
    base = rope.compress_theta if compressed else rope.theta
    plain = base ** (-2 * half / rope.dim)
    if not compressed:
        return plain.float()

    def channel(turns: float) -> float:
        length = rope.original_length / (turns * 2 * math.pi)
        return rope.dim * math.log(length) / (2 * math.log(base))

    low = max(math.floor(channel(rope.beta_fast)), 0)
    high = min(math.ceil(channel(rope.beta_slow)), rope.dim - 1)
    ramp = ((half - low) / max(high - low, 1e-3)).clamp(0, 1)
    return (plain / rope.factor * ramp + plain * (1 - ramp)).float()


def turn(frequency: Tensor, positions: Tensor, dtype: torch.dtype) -> Turn:
    """The rotation of rows at `positions` [T]: float32 angles, as the model was trained with."""
    angle = (positions.float().unsqueeze(1) * frequency).double()
    return Turn(torch.cos(angle).to(dtype), torch.sin(angle).to(dtype))
