"""Cases of the dense projection: tests and the benchmark walk the same list."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """[rows, k] times [n, k] transposed."""

    name: str
    rows: int
    n: int
    k: int

    def __str__(self) -> str:
        return self.name

    def make(self, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
        """x bf16, weight uint8 E4M3, scale uint8 UE8M0 spread over four binades."""
        g = torch.Generator(device).manual_seed(zlib.crc32(self.name.encode()))
        x = torch.randn(self.rows, self.k, generator=g, device=device).bfloat16()
        w = torch.randn(self.n, self.k, generator=g, device=device) * 100
        w = w.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
        shape = (-(-self.n // 32), self.k // 32)
        drop = torch.randint(0, 4, shape, generator=g, device=device, dtype=torch.uint8)
        return x, w, 120 - self.k.bit_length() // 2 - drop


SMALL = (
    Case("one-row", 1, 80, 256),
    Case("shares", 5, 96, 1024),
    Case("several-tiles", 70, 200, 256),
)
SHAPES = {
    "wq_a": (1280, 5120),
    "wkv": (512, 5120),
    "wq_b": (32768, 1280),
    "wo_b": (5120, 8192),
}
RELEASED = tuple(
    Case(f"{name}-{rows}-rows", rows, n, k)
    for rows in (1, 64, 4096)
    for name, (n, k) in SHAPES.items()
)
