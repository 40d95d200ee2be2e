"""Mixture of experts: a router chooses a few of many small networks for each row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.layers import ROW_GROUP, linear, silu, softplus
from diptych.model.numerics import Numerics
from diptych.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Router, routed experts (stacked), shared expert; w1 gate, w3 up, w2 down."""

    gate: Tensor  # [E, D]
    bias: Tensor  # [E]
    bias_vl: Tensor  # [E], for image positions
    w1: Tensor  # [E, F, D]
    w2: Tensor  # [E, D, F]
    w3: Tensor  # [E, F, D]
    shared_w1: Tensor  # [F, D]
    shared_w2: Tensor  # [D, F]
    shared_w3: Tensor  # [F, D]


def route(
    weights: MoeWeights, spec: ModelSpec, x: Tensor, image: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x [T, D] -> chosen experts [T, k] by falling biased score, and their weights [T, k].

    The bias (another one for image rows) only selects; weights come from the unbiased scores.
    """
    k = spec.experts_per_token
    scores = torch.sqrt(softplus(linear(x, weights.gate)))
    bias = weights.bias
    if image is not None:
        bias = torch.where(image.unsqueeze(1), weights.bias_vl, bias)
    order = torch.sort(scores.detach() + bias, dim=1, descending=True, stable=True).indices
    chosen = order[:, :k].contiguous()
    picked = scores.gather(1, chosen)
    if k > 1:
        picked = picked / (picked.sum(1, keepdim=True) + 1e-20)
    return chosen, picked * spec.routed_scale


def expert(
    numerics: Numerics,
    limit: float,
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    w3: Tensor,
    weight: Tensor | None,
) -> Tensor:
    """One expert on x [T, D], already as its products see it; `weight` [T, 1] before w2."""
    gate = numerics.bf16(linear(x, w1)).clamp_max(limit)
    up = numerics.bf16(linear(x, w3)).clamp(-limit, limit)
    inner = silu(gate) * up
    if weight is not None:
        inner = inner * weight
    return numerics.bf16(linear(numerics.fp8(numerics.bf16(inner)), w2))


def mixture(
    weights: MoeWeights,
    spec: ModelSpec,
    numerics: Numerics,
    x: Tensor,
    chosen: Tensor,
    picked: Tensor,
) -> Tensor:
    """x [T, D] through its chosen experts [T, k] with weights [T, k], plus the shared expert."""
    rows, k = chosen.shape
    limit = spec.swiglu_limit
    x = numerics.fp8(x)
    shared = expert(
        numerics, limit, x, weights.shared_w1, weights.shared_w2, weights.shared_w3, None
    )
    # 1. Sort the (row, choice) pairs by expert, and cut them into one run an expert.
    order = torch.argsort(chosen.flatten(), stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=spec.num_experts).tolist()
    # 2. Each run through its expert, padded to whole row groups with copies of any row.
    outputs, start = [], 0
    for index, count in enumerate(counts):
        if not count:
            continue
        run = torch.nn.functional.pad(order[start : start + count], (0, -count % ROW_GROUP))
        start += count
        output = expert(
            numerics,
            limit,
            x.index_select(0, run // k),
            weights.w1[index],
            weights.w2[index],
            weights.w3[index],
            picked.reshape(-1, 1).index_select(0, run),
        )
        outputs.append(output[:count])
    # 3. Back to (row, choice) order, and add up in the order of choice.
    results = torch.cat(outputs).index_select(0, torch.argsort(order)).view(rows, k, -1)
    total = results[:, 0]
    for choice in range(1, k):
        total = total + results[:, choice]
    return numerics.bf16(total + shared)
