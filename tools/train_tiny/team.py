"""Processes that train one model together: each takes other batches, all make the same step.

Begun by `torchrun --nproc-per-node N -m train_tiny.train …`; a process that was begun alone is a
team of one. N processes of one thread are quicker on a CPU than one process of N threads.
"""

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class Team:
    """This process among its peers."""

    def __init__(self, device: str = "cpu") -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self._device = device
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if self.size > 1:
            dist.init_process_group("nccl" if device == "cuda" else "gloo")

    @property
    def is_first(self) -> bool:
        """Whether it is the one that speaks and saves."""
        return self.rank == 0

    def average(self, gradients: Iterable[Tensor]) -> None:
        """Everybody's mean, in place; all must have the same tensors."""
        tensors = list(gradients)
        if self.size == 1 or not tensors:
            return
        whole = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(whole)
        parts = torch.split(whole / self.size, [t.numel() for t in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def firsts(self, value: float) -> float:
        """What the first one has."""
        if self.size == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64, device=self._device)
        dist.broadcast(told, 0)
        return told.item()

    def close(self) -> None:
        """Part from the others."""
        if self.size > 1:
            dist.destroy_process_group()
