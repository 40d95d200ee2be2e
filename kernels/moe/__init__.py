"""Routed experts with FP4 weights: sum over slots of down(swiglu(gate x, up x) * weight)."""

from torch import Tensor

from diptych.kernels.moe import reference
from diptych.kernels.moe.packing import PackedExperts, pack, wide_rows
from diptych.kernels.moe.reference import Experts

__all__ = ["Experts", "PackedExperts", "pack", "routed_experts", "wide_rows"]


def routed_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    experts: Experts | PackedExperts,
    shared: Tensor | None = None,
) -> Tensor:
    """x: [tokens, hidden] bf16; ids: [tokens, slots] int32; weights: [tokens, slots] float32;
    shared: [tokens, hidden] bf16, added with the slots -> [tokens, hidden] bf16.

    Packed experts run on the GPU kernels; checkpoint experts on the reference, or, on a GPU, on the
    plain kernel (for weights that `pack` refuses). A row's bits do not depend on its batch.
    """
    if not isinstance(experts, PackedExperts) and not x.is_cuda:
        return reference.routed_experts(x, ids, weights, experts, shared)
    from diptych.kernels.moe import launch, plain  # triton is there where a GPU is

    if isinstance(experts, PackedExperts):
        return launch.routed_experts(x, ids, weights, experts, shared)
    settings = launch.settings_for(ids.numel(), experts.count)
    pairs = plain.expert_pairs(x, ids, weights, experts)
    return launch.sum_slots(pairs, ids, shared, experts.first, experts.count, settings)
