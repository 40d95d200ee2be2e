"""Residual streams: M parallel residuals a token, mixed around every sublayer.

Each sublayer computes three sets of coefficients from the streams as they enter it. `post` and
`comb` write its output back; `pre` collapses the streams for the *next* sublayer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.layers import linear, mean_square, sigmoid
from diptych.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class MixWeights:
    """One sublayer's part of the residual streams."""

    fn: Tensor  # [M (M + 2), M D]
    base: Tensor  # [M (M + 2)]
    scale: Tensor  # [3]


@dataclass(frozen=True, slots=True)
class Mix:
    """Coefficients of each row; rows come last in `comb`, where the loop is."""

    pre: Tensor  # [T, M]
    post: Tensor  # [T, M]
    comb: Tensor  # [M, M, T]: from stream i to stream j


def mix(weights: MixWeights, spec: ModelSpec, streams: Tensor) -> Mix:
    """Coefficients from streams [T, M, D]."""
    flat = streams.flatten(1)
    scores = linear(flat, weights.fn) * torch.rsqrt(mean_square(flat) + spec.norm_eps)
    return split(weights, spec, scores)


def split(weights: MixWeights, spec: ModelSpec, scores: Tensor) -> Mix:
    """Scores [T, M (M + 2)] -> coefficients; Sinkhorn's method makes `comb` doubly stochastic."""
    m = spec.streams
    sizes = [m, m, m * m]
    scale = torch.cat([weights.scale[i : i + 1].expand(size) for i, size in enumerate(sizes)])
    pre, post, comb = torch.split(scores * scale + weights.base, sizes, 1)
    eps = scores.new_tensor(spec.hc_eps)  # quicker in the loop than a number
    c = torch.softmax(comb.t().reshape(m, m, -1), 1) + eps
    c = c / (c.sum(0, keepdim=True) + eps)
    for _ in range(spec.sinkhorn_iters - 1):
        c = c / (c.sum(1, keepdim=True) + eps)
        c = c / (c.sum(0, keepdim=True) + eps)
    return Mix(sigmoid(pre) + eps, 2 * sigmoid(post), c)


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """The weighted sum of the streams: [T, M, D], [T, M] -> [T, D]."""
    return (streams * pre.unsqueeze(-1)).sum(1)


def expand(output: Tensor, streams: Tensor, mix: Mix) -> Tensor:
    """Write an output [T, D] back: stream j becomes post_j output + sum_i comb_ij stream_i."""
    carried = torch.bmm(mix.comb.permute(2, 1, 0).contiguous(), streams)
    return mix.post.unsqueeze(-1) * output.unsqueeze(1) + carried
