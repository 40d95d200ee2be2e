"""How exactly a forward computes: in which precision, and where it rounds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.quant import FP8_G32, MXFP4_G32, round_bf16


@dataclass(frozen=True, slots=True)
class Numerics:
    """A mode of arithmetic. All four run the same model code and differ only at these points."""

    name: str
    dtype: torch.dtype
    rounds_records: bool  # cache records and index queries pass through the released formats
    rounds_activations: bool  # tensors between operations are bf16; quantised products see FP8

    def bf16(self, x: Tensor) -> Tensor:
        """x as the next operation sees it, where the release keeps a bf16 tensor."""
        return round_bf16(x) if self.rounds_activations else x

    def fp8(self, x: Tensor) -> Tensor:
        """x as a product with quantised weights sees it: FP8 in groups of 32."""
        return FP8_G32.round(x) if self.rounds_activations else x

    def index_query(self, x: Tensor) -> Tensor:
        """x as index scores see a query: FP4 in groups of 32, like the keys."""
        return MXFP4_G32.round(x) if self.rounds_records else x


NUMERICS = {
    n.name: n
    for n in (
        Numerics("exact", torch.float32, rounds_records=False, rounds_activations=False),
        Numerics("exact64", torch.float64, rounds_records=False, rounds_activations=False),
        Numerics("cache", torch.float32, rounds_records=True, rounds_activations=False),
        Numerics("served", torch.float32, rounds_records=True, rounds_activations=True),
    )
}
