"""Cases of the indexer: tests and the benchmark walk the same list."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Case:
    """`rows` consecutive queries of one sequence, the last of which sees all `entries`."""

    name: str
    rows: int
    entries: int
    heads: int = 32
    dim: int = 128
    page: int = 128
    k: int = 512
    group: int = 8
    blocks: int = 2048
    queries: int = 1
    ties: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def width(self) -> int:
        return -(-self.entries // self.page) * self.page

    def make(self, device: str = "cpu") -> tuple[Tensor, ...]:
        """q [rows, heads, dim] float32 of FP4 values, weights, pages, table, visible."""
        g = torch.Generator(device).manual_seed(zlib.crc32(self.name.encode()))
        shape = (self.rows, self.heads, self.dim)
        code = torch.randint(0, 8, shape, generator=g, device=device)
        sign = torch.randint(0, 2, shape, generator=g, device=device) * 2 - 1
        q = torch.tensor(CODES, device=device)[code] * sign * 0.5
        weights = torch.randn(self.rows, self.heads, generator=g, device=device) * 128**-0.5 / 6
        count = self.width // self.page
        data = torch.randint(
            0,
            256,
            (count, self.page * self.dim // 2),
            generator=g,
            device=device,
            dtype=torch.uint8,
        )
        if self.ties:  # every page repeats the first
            data[:] = data[:1]
        scale = torch.randint(
            124,
            128,
            (count, self.page * self.dim // 32),
            generator=g,
            device=device,
            dtype=torch.uint8,
        )
        if self.ties:
            scale[:] = scale[:1]
        table = torch.randperm(count, generator=g, device=device).int()
        visible = self.entries - self.rows + 1 + torch.arange(self.rows, device=device)
        return q, weights, torch.cat((data, scale), 1), table, visible.int()


def small(name: str, rows: int, entries: int, queries: int = 1, ties: bool = False) -> Case:
    return Case(name, rows, entries, 16, 64, 16, 24, 8, 6, queries, ties)


SMALL = (
    small("few-entries", 1, 10),
    small("one-row", 1, 150),
    small("several-rows", 4, 200, queries=2),
    small("many-ties", 2, 180, ties=True),
)
RELEASED = (
    *(Case(f"decode-{n >> 10}k", 1, n) for n in (1 << 10, 1 << 14, 1 << 17, 1 << 20)),
    Case("verify-6-rows-128k", 6, 1 << 17, queries=2),
    Case("prefill-1024-rows-16k", 1024, 1 << 14, queries=4),
)
