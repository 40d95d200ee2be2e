"""Launch the kernels of `kernel.py`: scores, candidate blocks, selection."""

import torch
import triton
from torch import Tensor

from diptych.kernels.indexer import kernel

TILE = 128
GROUPS = 64  # of queries, from which on a program scores several tiles with one load of them
CHUNK = 4096
ROW = 16384  # places up to which one program selects a whole row


def split_queries(q: Tensor) -> Tensor:
    """[rows, heads, dim] -> [rows, 2, heads, dim / 2] float16, even channels first; exact."""
    return torch.stack((q[..., 0::2], q[..., 1::2]), 1).half().contiguous()


def index_scores(
    q: Tensor,
    weights: Tensor,
    pages: Tensor,
    table: Tensor,
    visible: Tensor,
    width: int,
    page: int,
    group: int = 8,
    queries: int = 1,
    blocks: Tensor | None = None,
    maxima: bool = False,
    asm: bool = True,
    tiles: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Scores [rows, width] and block maxima [rows, width / group], if asked for.

    q: [rows, heads, dim] FP4 values; table: [rows / queries, pages] int32, one a group of `queries`
    rows; with blocks [rows, n] (candidates, queries = 1) width is n * group and places are compact.
    """
    rows, heads, dim = q.shape
    if blocks is not None and queries != 1:
        raise ValueError("candidate blocks differ by row: score one row a program")
    out = torch.empty(rows, width, dtype=torch.float32, device=q.device)
    best = torch.empty(rows, width // group if maxima else 0, device=q.device)
    if tiles is None:
        tiles = 8 if rows // queries >= GROUPS and blocks is None else 1
    kernel.score[(triton.cdiv(width, TILE * tiles), rows // queries)](
        split_queries(q),
        weights,
        pages,
        table,
        visible,
        visible if blocks is None else blocks,
        out,
        best,
        width,
        table.shape[-1],
        0 if blocks is None else blocks.shape[1],
        QUERIES=queries,
        HEADS=heads,
        HALF=dim // 2,
        PAGE=page,
        TILE=TILE,
        TILES=tiles,
        GROUP=group,
        RESTRICTED=blocks is not None,
        MAXIMA=maxima,
        STAGES=3,
        ASM=asm,
        num_warps=4,
    )
    return out, best if maxima else None


def select(
    scores: Tensor,
    sizes: Tensor,
    present: Tensor,
    k: int,
    blocks: Tensor | None = None,
    group: int = 8,
    chunk: int = CHUNK,
    one_program: bool | None = None,
) -> Tensor:
    """Ascending places (entries, with `blocks`) of the k largest, -1 padded: [rows, k] int32.

    scores: [rows, width] float32; sizes: [rows] int32 places to look at; present: [rows] int32, how
    many of these are above -inf. `one_program` a row: by default as far as ROW; the same result.
    """
    rows, width = scores.shape
    if width <= ROW if one_program is None else one_program:
        return select_rows(scores, sizes, present, k, blocks, group)
    chunks = triton.cdiv(width, chunk)
    counts = torch.zeros(rows, 4, 256, dtype=torch.int32, device=scores.device)
    taken = torch.empty(rows, chunks, 2, dtype=torch.int32, device=scores.device)
    out = torch.full((rows, k), -1, dtype=torch.int32, device=scores.device)
    state = torch.empty(rows, 4, 2, dtype=torch.int64, device=scores.device)
    grid = (chunks, rows)
    for digit in range(4):
        kernel.count_digits[grid](
            scores, sizes, counts, state, width, PASS=digit, CHUNK=chunk, num_warps=8
        )
        kernel.narrow[(rows,)](counts, present, state, k, PASS=digit)
    kernel.count_selected[grid](scores, sizes, state, taken, width, CHUNK=chunk, num_warps=8)
    kernel.emit[grid](
        scores,
        sizes,
        state,
        taken,
        sizes if blocks is None else blocks,
        out,
        width,
        k,
        0 if blocks is None else blocks.shape[1],
        CHUNK=chunk,
        CHUNKS=triton.next_power_of_2(chunks),
        GROUP=group,
        RESTRICTED=blocks is not None,
        num_warps=8,
    )
    return out


def select_rows(
    scores: Tensor, sizes: Tensor, present: Tensor, k: int, blocks: Tensor | None, group: int
) -> Tensor:
    """`select` with one program a row."""
    rows, width = scores.shape
    out = torch.empty(rows, k, dtype=torch.int32, device=scores.device)
    padded = max(256, triton.next_power_of_2(width))
    kernel.select_row[(rows,)](
        scores,
        sizes,
        present,
        sizes if blocks is None else blocks,
        out,
        width,
        k,
        0 if blocks is None else blocks.shape[1],
        WIDTH=padded,
        SELECTED=triton.next_power_of_2(k),
        GROUP=group,
        RESTRICTED=blocks is not None,
        num_warps=4 if padded <= 4096 else 8,
    )
    return out
