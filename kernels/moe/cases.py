"""Cases of routed experts: tests and the benchmark walk the same list."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from diptych.kernels.moe.reference import Experts


@dataclass(frozen=True, slots=True)
class Case:
    """`hot`: every token routes to the first expert, too. `held`: shard size, all by default."""

    name: str
    tokens: int
    hidden: int = 5120
    width: int = 2304
    experts: int = 384
    slots: int = 6
    first: int = 0
    held: int | None = None
    hot: bool = False
    outlier: float = 1.0

    def __str__(self) -> str:
        return self.name

    @property
    def local(self) -> int:
        return self.experts if self.held is None else self.held

    def generator(self, device: str = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(zlib.crc32(self.name.encode()))

    def route(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """ids [tokens, slots] int32, distinct in a row; weights [tokens, slots], sum 1.5."""
        g = self.generator(device)
        noise = torch.rand(self.tokens, self.experts, generator=g, device=device)
        if self.hot:
            noise[:, self.first] = 2.0
        ids = noise.topk(self.slots, dim=1).indices.int()
        weights = torch.rand(self.tokens, self.slots, generator=g, device=device) + 0.1
        return ids, weights / weights.sum(1, keepdim=True) * 1.5

    def activations(self, device: str = "cpu") -> Tensor:
        """x: [tokens, hidden] bf16, a few columns `outlier` times as large."""
        g = self.generator(device)
        x = torch.randn(self.tokens, self.hidden, generator=g, device=device)
        x[:, :: max(self.hidden // 4, 1)] *= self.outlier
        return x.bfloat16()

    def weights(self, device: str = "cpu") -> Experts:
        """Random codes; scales spread over five binades, like those of trained weights."""
        g = self.generator(device)

        def product(n: int, k: int) -> tuple[Tensor, Tensor]:
            shape = (self.local, n, k // 2)
            codes = torch.randint(0, 256, shape, generator=g, device=device, dtype=torch.uint8)
            # a typical |code| is 2.5: this makes outputs of the size of the inputs
            top = 127 - k.bit_length() // 2
            shape = (self.local, n, k // 32)
            drop = torch.randint(0, 5, shape, generator=g, device=device, dtype=torch.uint8)
            return codes, top - drop

        w1, s1 = product(self.width, self.hidden)
        w3, s3 = product(self.width, self.hidden)
        w2, s2 = product(self.hidden, self.width)
        return Experts(w1, s1, w3, s3, w2, s2, first=self.first)


def small(name: str, tokens: int, **changes: int | bool | float) -> Case:
    sizes: dict[str, int | bool | float] = {
        "hidden": 256,
        "width": 128,
        "experts": 8,
        "slots": 2,
    }
    return Case(name, tokens, **(sizes | changes))  # type: ignore[arg-type]  # mixed field types


SMALL = (
    small("one-token", 1),
    small("a-few-tokens", 5),
    small("several-column-tiles", 40, experts=4, slots=3),
    small("one-hot-expert", 24, hot=True),
    small("a-shard-with-empty-experts", 4, experts=16, first=6, held=5),
    small("outliers", 9, outlier=100.0),
)
RELEASED = tuple(Case(f"{n}-tokens", n) for n in (1, 4, 16, 64, 256, 1024, 4096, 16384))
SHARDS = (
    Case("shard-of-48", 256, first=96, held=48),
    Case("shard-of-6", 512, first=378, held=6),
    Case("shard-of-48-one-hot", 1024, first=0, held=48, hot=True),
)
