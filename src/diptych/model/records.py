"""Cache records: how a window key, a compressed entry, an index key lie in memory, as bytes.

The engine's layout table is made from this. In `exact` and `exact64` a record is the raw bytes of
the floats; in `cache` and `served` it is what the release stores, all channels quantised alike:

| record    | released form                  | bytes at the released sizes |
| --------- | ------------------------------ | --------------------------- |
| window    | fp8_g32, data then scales      | 512 + 16 = 528              |
| entry     | nvfp4_g16, data then scales    | 256 + 32 = 288              |
| index key | mxfp4_g32, two sections        | 64 and 4                    |
| carry     | always raw: value, then score  | 2 x 2048                    |
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.model.numerics import Numerics
from diptych.model.quant import FP8_G32, MXFP4_G32, NVFP4_G16, Quantiser
from diptych.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """One kind of record. Sections are stored apart from each other; bytes within one, together."""

    width: int  # values
    dtype: torch.dtype  # of the decoded values
    quantiser: Quantiser | None  # None: raw
    split: bool  # data and scales are two sections

    @property
    def section_bytes(self) -> tuple[int, ...]:
        """Bytes a record takes in each section: data and scales, or everything in one."""
        if self.quantiser is None:
            return (self.width * self.dtype.itemsize,)
        data = self.quantiser.data_bytes(self.width)
        scales = self.quantiser.scale_bytes(self.width)
        return (data, scales) if self.split else (data + scales,)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        """Values [..., width] -> one uint8 tensor [..., bytes] a section."""
        if self.quantiser is None:
            return (x.detach().to(self.dtype).contiguous().view(torch.uint8),)
        sections = self.quantiser.encode(x)
        return sections if self.split else (torch.cat(sections, -1),)

    def decode(self, *sections: Tensor) -> Tensor:
        """The inverse of `encode`: values [..., width]. Zero bytes decode to zeros."""
        if self.quantiser is None:
            return sections[0].contiguous().view(self.dtype)
        if self.split:
            data, scales = sections
        else:
            size = self.quantiser.data_bytes(self.width)
            data, scales = sections[0][..., :size], sections[0][..., size:]
        return self.quantiser.decode(data, scales).to(self.dtype)

    def round(self, x: Tensor) -> Tensor:
        """decode(encode(x)), bit for bit; gradients pass straight through."""
        return x if self.quantiser is None else self.quantiser.round(x)


@dataclass(frozen=True, slots=True)
class Records:
    """The record formats of a model under some numerics."""

    window: RecordFormat
    entry: RecordFormat
    index_key: RecordFormat
    carry: RecordFormat  # a compressor's inputs of one token: value then score

    @classmethod
    def of(cls, spec: ModelSpec, numerics: Numerics) -> "Records":
        entry = NVFP4_G16 if spec.fp4_entries else FP8_G32
        rounds, dtype = numerics.rounds_records, numerics.dtype
        return cls(
            window=RecordFormat(spec.head_dim, dtype, FP8_G32 if rounds else None, False),
            entry=RecordFormat(spec.head_dim, dtype, entry if rounds else None, False),
            index_key=RecordFormat(spec.index_head_dim, dtype, MXFP4_G32 if rounds else None, True),
            carry=RecordFormat(2 * spec.head_dim, dtype, None, False),
        )
