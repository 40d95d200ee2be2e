"""Engram: a hashed n-gram memory. Table rows become keys and a value, gated into the streams."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.layers import linear, mean_square, sigmoid
from diptych.model.numerics import Numerics
from diptych.model.quant import FP8_G32

GATE_FLOOR = 1e-6  # of |dot product| under the square root
EPS = 1e-20  # of the norms inside the gate


@dataclass(frozen=True, slots=True)
class Table:
    """Rows as they are stored; only gathered ones are dequantised."""

    rows: Tensor  # [R, w] floats, or uint8 (E4M3)
    scales: Tensor | None  # [R, w / 32] uint8 (E8M0), with quantised rows
    dtype: torch.dtype  # of gathered values

    def gather(self, ids: Tensor) -> Tensor:
        """ids [T, k] -> the rows side by side [T, k * w]."""
        rows = self.rows.index_select(0, ids.reshape(-1))
        if self.scales is not None:
            rows = FP8_G32.decode(rows, self.scales.index_select(0, ids.reshape(-1)))
        return rows.to(self.dtype).view(ids.shape[0], -1)


@dataclass(frozen=True, slots=True)
class EngramWeights:
    """Of a layer that reads an n-gram table."""

    table: Table
    wkv: Tensor  # [(M + 1) D, rows a token * row width]
    q_weight: Tensor  # [M, D]
    k_weight: Tensor  # [M, D]


def look_up(weights: EngramWeights, numerics: Numerics, ids: Tensor) -> Tensor:
    """ids [T, k] -> a key for each stream and a value: [T, M + 1, D]."""
    rows = weights.table.gather(ids)
    projected = numerics.bf16(linear(numerics.fp8(rows), weights.wkv))
    return projected.view(len(ids), -1, weights.q_weight.shape[1])


def gate(weights: EngramWeights, streams: Tensor, keys: Tensor) -> Tensor:
    """How far each stream opens: streams and keys [T, M, D] -> [T, M, 1]."""
    scale = streams.shape[-1] ** -0.5
    dot = (streams * (weights.q_weight * weights.k_weight) * keys).sum(-1, keepdim=True)
    dot = dot * torch.rsqrt(mean_square(streams) + EPS) * torch.rsqrt(mean_square(keys) + EPS)
    dot = dot * scale
    return sigmoid(torch.copysign(dot.abs().clamp_min(GATE_FLOOR).sqrt(), dot))


def write(
    weights: EngramWeights,
    numerics: Numerics,
    streams: Tensor,
    looked_up: Tensor,
    image: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Streams [T, M, D] with the gated value added, and the gates [T, M].

    Where `image` [T] says that a row is part of an image, gates are zero and streams unchanged.
    """
    keys, value = looked_up[:, :-1], looked_up[:, -1:]
    gates = gate(weights, streams, keys)
    if image is not None:
        gates = gates.masked_fill(image.view(-1, 1, 1), 0.0)
    return numerics.bf16(streams + gates * value), gates.squeeze(-1)
