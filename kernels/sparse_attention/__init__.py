"""Sparse attention over cache records: one softmax over window, selected entries and a sink."""

from torch import Tensor

from diptych.kernels.sparse_attention import reference

__all__ = ["sparse_attention"]


def sparse_attention(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor,
    entry_index: Tensor,
    sink: Tensor,
) -> Tensor:
    """Arguments as in `reference.sparse_attention` -> [rows, heads, dim] bf16."""
    if not q.is_cuda:
        return reference.sparse_attention(
            q, window, window_index, entries, entry_index, sink
        ).bfloat16()
    from diptych.kernels.sparse_attention import launch  # triton is there where a GPU is

    return launch.sparse_attention(q, window, window_index, entries, entry_index, sink)
