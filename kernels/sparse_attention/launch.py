"""Choose the number of shares and launch the kernels of `kernel.py`."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from diptych.kernels.sparse_attention import kernel, native

WIDENED = 1024  # rows from which the Triton kernel gains by widening all records first
WIDENED_PER_ROW = 256  # so many records in all a row: up to here `prefill.cu` gains by it


@dataclass(frozen=True, slots=True)
class Settings:
    """`shares`: programs over a row's keys; a fixed number gives a row the same bits anywhere.

    `explicit` runs `hopper.attend`, `widened` the prefill form of it in `wide.py`, `native` that in
    `prefill.cu` (both one share); the rest of the fields is for `kernel.attend`.
    """

    shares: int
    explicit: bool = False
    widened: bool = False
    native: bool = False
    block: int = 32
    warps: int = 4
    stages: int = 2
    asm: bool = True


def settings_for(q: Tensor, num_records: int) -> Settings:
    """Fill the chip with few rows, avoid partial sums with many; measured on one H200."""
    rows = q.shape[0]
    if q.shape[1:] != (64, 512) or torch.cuda.get_device_capability(q.device) != (9, 0):
        return Settings(shares_for(rows))
    if num_records <= WIDENED_PER_ROW * rows and native.is_available():
        return Settings(1, native=True, block=64)
    return Settings(shares_for(rows), explicit=True, widened=rows >= WIDENED, block=64)


def shares_for(rows: int) -> int:
    return 10 if rows <= 8 else 5 if rows <= 16 else 2 if rows <= 64 else 1


def widened(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor,
    entry_index: Tensor,
    sink: Tensor,
    out: Tensor,
    block: int,
) -> Tensor:
    """The prefill form: one pass over all records, then one program a row."""
    from diptych.kernels.sparse_attention import wide  # cannot be imported when interpreting

    half = q.shape[2] // 2
    table = torch.empty(len(window) + len(entries), 2 * half, dtype=torch.float16, device=q.device)
    for records, place, fp4 in (
        (window.view(torch.int16), table[: len(window)], False),
        (entries, table[len(window) :], True),
    ):
        wide.widen_records[(triton.cdiv(len(records), 16),)](
            records, place, len(records), HALF=half, BLOCK=16, FP4=fp4, ASM=True
        )
    wide.attend[(q.shape[0],)](
        q.view(torch.int32),
        table,
        window_index,
        entry_index,
        sink,
        out.view(torch.int32),
        q.shape[2] ** -0.5 * 1.4426950408889634 * 128,
        len(window),
        HEADS=q.shape[1],
        HALF=half,
        WINDOW=window_index.shape[1],
        ENTRIES=entry_index.shape[1],
        BLOCK=block,
        num_warps=8,
    )
    return out


def sparse_attention(
    q: Tensor,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor,
    entry_index: Tensor,
    sink: Tensor,
    settings: Settings | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Arguments as in `reference.sparse_attention`; -> [rows, heads, dim] bf16."""
    rows, heads, dim = q.shape
    s = settings or settings_for(q, len(window) + len(entries))
    if window_index.shape[1] % s.block or entry_index.shape[1] % s.block:
        raise ValueError(f"index lists must be a multiple of {s.block} wide")
    out = torch.empty_like(q) if out is None else out
    if s.native:
        return native.sparse_attention(q, window, window_index, entries, entry_index, sink, out)
    if s.widened:
        return widened(q, window, window_index, entries, entry_index, sink, out, s.block)
    split = s.shares > 1
    f32 = torch.float32
    partial = torch.empty(
        rows * s.shares if split else 0, 2, heads, dim // 2, dtype=f32, device=q.device
    )
    stats = torch.empty(rows * s.shares if split else 0, 2, heads, dtype=f32, device=q.device)
    shape: dict[str, int] = {"SHARES": s.shares, "HEADS": heads, "HALF": dim // 2}
    lists = {"WINDOW": window_index.shape[1], "ENTRIES": entry_index.shape[1], "BLOCK": s.block}
    scale = dim**-0.5 * 1.4426950408889634 * 128
    pairs, words = window.view(torch.int16), q.view(torch.int32)
    if s.explicit:
        from diptych.kernels.sparse_attention import hopper  # cannot be imported when interpreting

        hopper.attend[(s.shares, rows)](
            words, pairs, window, window_index, entries, entry_index, sink,
            out.view(torch.int32), partial, stats, scale, num_warps=8, **shape, **lists,
        )  # fmt: skip
    else:
        kernel.attend[(2 * s.shares, rows)](
            words, pairs, window_index, entries, entry_index, sink, out, partial, stats, scale,
            STAGES=s.stages, ASM=s.asm, num_warps=s.warps, **shape, **lists,
        )  # fmt: skip
    if split:
        kernel.combine[(heads, rows)](partial, stats, sink, out, ASM=s.asm, num_warps=4, **shape)
    return out
