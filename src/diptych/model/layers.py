"""Small operations that every part is built from.

A row's bits must not depend on which rows stand beside it. On the CPU that takes some care:
products run on contiguous inputs of 32 k rows and a multiple of 8 outputs, and sigmoid, silu and
softplus are composed from exp, log1p and division (the library's own treat the last elements of
an array differently).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_GROUP = 32  # a forward's rows are padded to a multiple of this
PADDING = -1  # in place of the number of a row
_OUTPUT_GROUP = 8
EXP_LIMIT = 80.0  # exp stays finite below, also squared with its neighbours in a gradient


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, in], weight [out, in] -> [T, out]."""
    outputs = weight.shape[0]
    if outputs % _OUTPUT_GROUP:
        padded = F.pad(weight, (0, 0, 0, -outputs % _OUTPUT_GROUP))
        return F.linear(x.contiguous(), padded)[:, :outputs]
    return F.linear(x.contiguous(), weight)


def take(values: Tensor, rows: Tensor) -> Tensor:
    """Some rows of values [T, ...]: [K, ...]. PADDING gives row 0, whose copy is never read."""
    return values.index_select(0, rows.clamp_min(0))


def mean_square(x: Tensor) -> Tensor:
    """Mean of squares over the last dimension, kept."""
    return (x * x).mean(-1, keepdim=True)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight * x / rms(x) over the last dimension."""
    return x * torch.rsqrt(mean_square(x) + eps) * weight


def sigmoid(x: Tensor) -> Tensor:
    return torch.reciprocal(1 + torch.exp(-x.clamp_min(-EXP_LIMIT)))


def silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp x); x itself above 20."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(-EXP_LIMIT, 20))))
