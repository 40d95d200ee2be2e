"""Muon for matrices, Adam for the rest.

Muon steps by the momentum with all its singular values made equal (five Newton-Schulz iterations,
in bfloat16; Jordan et al., 2024). Matrices of one shape go together, so hundreds of small ones cost
a few products.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ADAM_ONLY = ("embed.weight", "head.weight", "hc_", "norm", "_weight", "attn_sink", "gate.weight")


def orthogonal(x: Tensor) -> Tensor:
    """About U V' of each matrix U S V' in x [n, rows, columns]."""
    a, b, c = _COEFFICIENTS
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if tall else x).float()


class Optimiser:
    """Both, with the rates of a step given to it."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._groups: dict[torch.Size, list[Tensor]] = {}
        others = []
        for name, parameter in parameters.items():
            if parameter.dim() != 2 or any(part in name for part in _ADAM_ONLY):
                others.append(parameter)
            else:
                self._groups.setdefault(parameter.shape, []).append(parameter)
        self._momenta = {
            shape: torch.zeros(len(group), *shape, device=group[0].device)
            for shape, group in self._groups.items()
        }
        self._adam = torch.optim.Adam(others, betas=(0.9, 0.98), eps=1e-10, foreach=True)

    @torch.no_grad()
    def step(self, adam_rate: float, muon_rate: float, momentum: float = 0.95) -> None:
        """Move every parameter against its gradient, which all must have, and forget those."""
        for group in self._adam.param_groups:
            group["lr"] = adam_rate
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        for shape, parameters in self._groups.items():
            gradient = torch.stack([p.grad for p in parameters if p.grad is not None])
            kept = self._momenta[shape].lerp_(gradient, 1 - momentum)
            update = orthogonal(gradient.lerp(kept, momentum))
            rate = muon_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            torch._foreach_add_(parameters, list(update.unbind()), alpha=-rate)
            for parameter in parameters:
                parameter.grad = None

    def state(self) -> dict[str, object]:
        """What `restore` takes."""
        return {"adam": self._adam.state_dict(), "momenta": list(self._momenta.values())}

    def restore(self, state: dict[str, object]) -> None:
        """Go on where `state` was taken."""
        self._adam.load_state_dict(state["adam"])  # type: ignore[arg-type]
        for mine, theirs in zip(self._momenta.values(), state["momenta"], strict=True):  # type: ignore[call-overload]
            mine.copy_(theirs)
