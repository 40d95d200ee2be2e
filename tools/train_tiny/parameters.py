"""What is trained: a parameter a tensor of the released inventory, and how each begins.

Weights see the rounding of their storage class once `rounded` is asked for, with the gradient of
the identity: what is exported then is what was trained.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from diptych.model.checkpoint import Checkpoint
from diptych.model.engram import Table
from diptych.model.inventory import Entry, Storage, inventory
from diptych.model.ngrams import Hashing
from diptych.model.quant import FP8_G32, MXFP4_G32, round_bf16, round_fp8_blocks
from diptych.model.spec import ModelSpec
from diptych.model.weights import Weights, assemble, dequantise

NOT_TRAINED = "*.gate.bias*"  # moved by the load of the experts, not by a gradient
_EXPERT_BIAS = "*.gate.bias"

# The first pattern that fits gives (mean, standard deviation); others have 1 / sqrt(inputs).
_BEGINNINGS: dict[str, tuple[float, float]] = {
    "*norm*.weight": (1.0, 0.0),
    "*.[qk]_weight": (1.0, 0.0),
    "*.engram.embed.weight": (0.0, 0.3),
    "embed.weight": (0.0, 0.5),
    "head.weight": (0.0, 0.02),
    "*.attn_sink": (0.0, 0.0),
    "*.gate.bias*": (0.0, 0.0),
    "*hc_*_scale": (0.1, 0.0),
    "*hc_*_fn": (0.0, 0.02),
    "*.wo_b.weight": (0.0, 0.02),
    "*.w2.weight": (0.0, 0.02),
}


def initial(spec: ModelSpec, seed: int) -> dict[str, Tensor]:
    """Every trained tensor and the experts' biases, by name; the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: _begin(name, entry, spec, random)
        for name, entry in inventory(spec).items()
        if entry.loaded
    }


def stored(spec: ModelSpec, folder: Path) -> dict[str, Tensor]:
    """The same, as a checkpoint has it."""
    checkpoint = Checkpoint.open(folder)
    return {
        name: dequantise(checkpoint, name, entry, quantised=spec.quantised).clone()
        for name, entry in inventory(spec).items()
        if entry.loaded
    }


def _begin(name: str, entry: Entry, spec: ModelSpec, random: torch.Generator) -> Tensor:
    normal = torch.randn(entry.shape, generator=random)
    if fnmatchcase(name, "*hc_*_base"):
        return _mix_base(normal, spec.streams)
    for pattern, (mean, spread) in _BEGINNINGS.items():
        if fnmatchcase(name, pattern):
            return normal * spread + mean
    return normal * float(entry.shape[-1] ** -0.5)


def _mix_base(normal: Tensor, streams: int) -> Tensor:
    """Streams that mostly keep to themselves, and each read and written a little differently."""
    base = 0.5 * normal
    base[:streams] -= 1.0
    base[2 * streams :] += 4.0 * torch.eye(streams).flatten()
    return base


def is_trained(name: str) -> bool:
    """Whether gradients move it."""
    return not fnmatchcase(name, NOT_TRAINED)


def is_expert_bias(name: str) -> bool:
    """Whether it is what the load of the experts moves."""
    return fnmatchcase(name, _EXPERT_BIAS)


_ROUNDINGS: Mapping[Storage, Callable[[Tensor], Tensor]] = {
    Storage.FP8: round_fp8_blocks,
    Storage.FP4: MXFP4_G32.round,
    Storage.TABLE: FP8_G32.round,
    Storage.BF16: round_bf16,
    Storage.F32: lambda x: x,
}


def rounded(value: Tensor, storage: Storage) -> Tensor:
    """A tensor as its storage class keeps it."""
    return _ROUNDINGS[storage](value)


def weights_of(
    spec: ModelSpec, parameters: Mapping[str, Tensor], hashing: Hashing | None, *, as_stored: bool
) -> Weights:
    """The model of these parameters, rounded as the release stores them or not."""
    entries = inventory(spec)

    def dense(name: str) -> Tensor:
        value = parameters[name]
        return rounded(value, entries[name].storage) if as_stored else value

    return assemble(spec, dense, lambda name: Table(dense(name), None, torch.float32), hashing)
