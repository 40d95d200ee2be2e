"""Cases of sparse attention: tests and the benchmark walk the same list."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """`absent`: share of the index lists that is -1; `empty`: row 0 has no keys at all."""

    name: str
    rows: int
    heads: int = 64
    dim: int = 512
    window: int = 128
    selected: int = 512
    records: int = 4096
    entries: int = 65536
    absent: float = 0.0
    empty: bool = False

    def __str__(self) -> str:
        return self.name

    def make(
        self, device: str = "cpu", salt: int = 0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, window, window_index, entries, entry_index, sink, as `reference.sparse_attention`."""
        g = torch.Generator(device).manual_seed(zlib.crc32(self.name.encode()) + salt)

        def integers(low: int, high: int, *shape: int, dtype: torch.dtype) -> Tensor:
            return torch.randint(low, high, shape, generator=g, device=device, dtype=dtype)

        def choose(count: int, width: int) -> Tensor:
            index = torch.rand(self.rows, count, generator=g, device=device).topk(width, 1).indices
            gone = torch.rand(self.rows, width, generator=g, device=device) < self.absent
            index = torch.where(gone, -1, index.sort(1).values).int()
            if self.empty:
                index[0] = -1
            return index

        u8 = torch.uint8
        q = torch.randn(self.rows, self.heads, self.dim, generator=g, device=device) * 2
        values = torch.randn(self.records, self.dim, generator=g, device=device) * 100
        window = torch.cat(
            (
                values.clamp(-448, 448).to(torch.float8_e4m3fn).view(u8),
                integers(117, 122, self.records, self.dim // 32, dtype=u8),
            ),
            1,
        )
        scales = torch.rand(self.entries, self.dim // 16, generator=g, device=device) + 0.1
        entries = torch.cat(
            (
                integers(0, 256, self.entries, self.dim // 2, dtype=u8),
                (scales * 0.6).to(torch.float8_e4m3fn).view(u8),
            ),
            1,
        )
        sink = torch.randn(self.heads, generator=g, device=device)
        window_index = choose(self.records, self.window)
        entry_index = choose(min(self.entries, 8192), self.selected)
        return q.bfloat16(), window, window_index, entries, entry_index, sink


def small(name: str, rows: int, absent: float = 0.0, empty: bool = False) -> Case:
    return Case(name, rows, 16, 64, 32, 64, 50, 100, absent, empty)


SMALL = (
    small("one-row", 1),
    small("some-keys-absent", 3, absent=0.4),
    small("a-row-without-keys", 2, empty=True),
)
DECODE = tuple(Case(f"decode-{n}", n) for n in (1, 8, 32, 64, 128, 256))
PREFILL = (Case("prefill-4096", 4096, records=8192, entries=32768),)
