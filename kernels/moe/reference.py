"""Routed experts in plain torch, as the model defines them: the judge of the kernels."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from diptych.kernels.formats import decode_e2m1, decode_ue8m0, fake_fp8


@dataclass(frozen=True, slots=True)
class Experts:
    """FP4 weights of consecutive experts as the checkpoint stores them.

    w1, w3: [experts, width, hidden / 2] uint8; w2: [experts, hidden, width / 2] uint8, all E2M1
    pairs. s1, s3: [experts, width, hidden / 32] uint8; s2: [experts, hidden, width / 32] uint8,
    UE8M0. A shard holds the experts first ... first + experts - 1.
    """

    w1: Tensor
    s1: Tensor
    w3: Tensor
    s3: Tensor
    w2: Tensor
    s2: Tensor
    first: int = 0
    limit: float = 10.0

    @property
    def count(self) -> int:
        return self.w1.shape[0]


def dequantise(weight: Tensor, scale: Tensor) -> Tensor:
    """weight: [..., n, k / 2] uint8, scale: [..., n, k / 32] uint8 -> [..., n, k] float32."""
    return decode_e2m1(weight) * decode_ue8m0(scale).repeat_interleave(32, dim=-1)


def expert_pairs(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: Experts,
    rounded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """One output row per (token, slot); zero where the expert is not held here.

    x: [tokens, hidden]; ids: [tokens, slots] int; weights: [tokens, slots] float32
    -> [tokens, slots, hidden] of `dtype`. `rounded` quantises activations to FP8 per 32 (the
    trained function) and rounds u to bfloat16; without it the products see x as it is.
    """

    def activation(v: Tensor) -> Tensor:
        return (fake_fp8(v) if rounded else v).to(dtype)

    xq = activation(x)
    out = torch.zeros(*ids.shape, x.shape[1], dtype=dtype, device=x.device)
    for local in range(experts.count):
        token, slot = torch.where(ids == local + experts.first)
        if token.numel() == 0:
            continue
        w1 = dequantise(experts.w1[local], experts.s1[local]).to(dtype)
        w3 = dequantise(experts.w3[local], experts.s3[local]).to(dtype)
        w2 = dequantise(experts.w2[local], experts.s2[local]).to(dtype)
        gate = F.linear(xq[token], w1).clamp(max=experts.limit)
        up = F.linear(xq[token], w3).clamp(-experts.limit, experts.limit)
        u = gate * torch.sigmoid(gate) * up * weights[token, slot, None].to(dtype)
        out[token, slot] = F.linear(activation(u.bfloat16() if rounded else u), w2)
    return out


def routed_experts(
    x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, shared: Tensor | None = None
) -> Tensor:
    """Sum over slots, plus the shared expert's output: [tokens, hidden] bfloat16."""
    total = expert_pairs(x, ids, weights, experts).bfloat16().float().sum(1)
    return (total if shared is None else total + shared.float()).bfloat16()
