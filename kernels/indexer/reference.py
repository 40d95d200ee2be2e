"""Index scores, candidate blocks and top-k selection in plain torch."""

import torch
from torch import Tensor

from diptych.kernels.formats import decode_e2m1, decode_ue8m0


def decode_pages(pages: Tensor, table: Tensor, entries: int, page: int) -> Tensor:
    """Keys [entries, dim] float32 of a sequence.

    pages: [n, page * (dim / 2 + dim / 32)] uint8, data of all entries, then their UE8M0 scales per
    32; table: [pages of the sequence] int.
    """
    dim = pages.shape[1] // page * 32 // 17
    own = pages[table.long()]
    data = own[:, : page * dim // 2].reshape(-1, dim // 2)
    scale = own[:, page * dim // 2 :].reshape(-1, dim // 32)
    keys = decode_e2m1(data) * decode_ue8m0(scale).repeat_interleave(32, -1)
    return keys[:entries]


def index_scores(q: Tensor, weights: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
    """Sum over heads of relu(q . k) * w, -inf from entry `visible` on.

    q: [rows, heads, dim]; weights: [rows, heads]; keys: [n, dim]; visible: [rows] int -> [rows, n].
    """
    dots = torch.einsum("rhd,nd->rnh", q.to(keys.dtype), keys).relu()
    scores = (dots * weights.to(keys.dtype)[:, None]).sum(-1)
    place = torch.arange(keys.shape[0], device=keys.device)
    return scores.masked_fill(place >= visible[:, None], -torch.inf)


def block_maxima(scores: Tensor, visible: Tensor, group: int) -> Tensor:
    """[rows, n] -> [rows, ceil(n / group)]; the newest visible block gets +inf."""
    rows, n = scores.shape
    padded = torch.nn.functional.pad(scores, (0, -n % group), value=-torch.inf)
    best = padded.view(rows, -1, group).amax(-1)
    return best.scatter(1, ((visible - 1) // group).long()[:, None], torch.inf)


def select(scores: Tensor, k: int) -> Tensor:
    """Places of the k largest scores above -inf, ties to the lower place, ascending, -1 padded.

    scores: [rows, n] -> [rows, k] int32.
    """
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]
    kept = scores.gather(1, order) != -torch.inf
    n = scores.shape[1]
    places = torch.where(kept, order, n).sort(1).values
    places = torch.nn.functional.pad(places, (0, k - places.shape[1]), value=n)
    return torch.where(places < n, places, -1).int()


def restrict(scores: Tensor, blocks: Tensor, group: int) -> Tensor:
    """Scores outside of candidate blocks [rows, b] (-1 absent) become -inf."""
    rows, n = scores.shape
    allowed = torch.zeros(rows, -(-n // group) + 1, dtype=torch.bool, device=scores.device)
    allowed.scatter_(1, blocks.long() % allowed.shape[1], True)  # -1 lands in the spare column
    mask = allowed[:, :-1].repeat_interleave(group, 1)[:, :n]
    return scores.masked_fill(~mask, -torch.inf)
