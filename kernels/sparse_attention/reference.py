"""Sparse attention with a sink in plain torch, over records as the caches keep them."""

import torch
from torch import Tensor

from diptych.kernels.formats import decode_e2m1, decode_e4m3, decode_ue8m0


def decode_window(records: Tensor) -> Tensor:
    """[n, dim + dim / 32] uint8 (E4M3 bytes, UE8M0 per 32) -> [n, dim] float32."""
    dim = records.shape[-1] * 32 // 33
    scale = decode_ue8m0(records[..., dim:].contiguous())
    return decode_e4m3(records[..., :dim].contiguous()) * scale.repeat_interleave(32, -1)


def decode_entries(records: Tensor) -> Tensor:
    """[n, dim / 2 + dim / 16] uint8 (E2M1 pairs, E4M3 per 16) -> [n, dim] float32."""
    dim = records.shape[-1] * 16 // 9
    scale = decode_e4m3(records[..., dim // 2 :].contiguous())
    return decode_e2m1(records[..., : dim // 2]) * scale.repeat_interleave(16, -1)


def sparse_attention(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor,
    entry_index: Tensor,
    sink: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """One softmax over a row's window records, selected entries and a sink without a value.

    q: [rows, heads, dim] bf16; window: [n, 528] uint8; window_index: [rows, w] int32 records,
    -1 absent; entries: [m, 288] uint8; entry_index: [rows, k] int32; sink: [heads] float32
    -> [rows, heads, dim] of `dtype`. Keys are the values; a row without keys gives 0.
    """
    keys_w, keys_e = decode_window(window).to(dtype), decode_entries(entries).to(dtype)
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    for row in range(q.shape[0]):
        w = window_index[row][window_index[row] >= 0].long()
        e = entry_index[row][entry_index[row] >= 0].long()
        keys = torch.cat((keys_w[w], keys_e[e]))
        scores = q[row].to(dtype) @ keys.T * q.shape[-1] ** -0.5
        scores = torch.cat((scores, sink[:, None].to(dtype)), 1)
        out[row] = scores.softmax(1)[:, :-1].nan_to_num() @ keys
    return out
