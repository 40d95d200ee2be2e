"""What each part of the architecture is worth: `python -m train_tiny.parts`.

Loss on held-out answers, and the share of tokens hit, while one part of the model is replaced.
"""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from diptych.model import engram, indexer, mhc, moe
from diptych.model.indexer import NOTHING
from diptych.model.mhc import Mix
from diptych.model.moe import MoeWeights
from diptych.model.spec import ModelSpec
from diptych.offline import LLM
from train_tiny import shards
from train_tiny.evaluate import HELD_OUT, measured

LONG = 512  # tokens; in longer documents the choice of entries matters


def no_engram(
    weights: object, numerics: object, streams: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    """`engram.write` that writes nothing."""
    return streams, streams.new_zeros(streams.shape[:2])


def no_entries(seen: Tensor, count: int) -> Tensor:
    """`indexer.select`, `indexer.select_all`: nothing behind the window."""
    return torch.full((len(seen), count), NOTHING, device=seen.device)


def newest(
    scores: Tensor, count: int, select: Callable[[Tensor, int], Tensor] = indexer.select
) -> Tensor:
    """`indexer.select`: the newest entries, whatever their scores."""
    order = torch.arange(scores.shape[1], device=scores.device, dtype=scores.dtype)
    return select(order.expand_as(scores).masked_fill(scores == -torch.inf, -torch.inf), count)


def unmixed(*arguments: object, split: Callable[..., Mix] = mhc.split) -> Mix:
    """`mhc.split`: each stream stays what it is."""
    mix = split(*arguments)
    same = torch.eye(mix.comb.shape[0]).unsqueeze(2).expand_as(mix.comb)
    return Mix(mix.pre, mix.post, same.contiguous())


def by_chance(
    weights: MoeWeights,
    spec: ModelSpec,
    x: Tensor,
    route: Callable[[MoeWeights, ModelSpec, Tensor], tuple[Tensor, Tensor]] = moe.route,
) -> tuple[Tensor, Tensor]:
    """`moe.route`: other experts, with the weights of those it chose."""
    chosen, picked = route(weights, spec, x)
    return torch.rand(len(x), spec.num_experts).argsort(1)[:, : chosen.shape[1]], picked


Change = tuple[object, str, Callable[..., object]]  # of a module: which function becomes what
PARTS: dict[str, list[Change]] = {
    "as is": [],
    "without Engram": [(engram, "write", no_engram)],
    "without compressed entries": [
        (indexer, "select", no_entries),
        (indexer, "select_all", no_entries),
    ],
    "newest entries, not the indexer's choice": [(indexer, "select", newest)],
    "streams that never mix": [(mhc, "split", unmixed)],
    "experts by chance": [(moe, "route", by_chance)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = resources.files("diptych") / "assets" / "tiny"
    parser.add_argument("--checkpoint", type=Path, default=Path(str(default)))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    llm = LLM(options.checkpoint)
    documents = shards.load(HELD_OUT)
    long = [document for document in documents if len(document.ids) > LONG]
    table = Table("", f"all {len(documents)}", "hit", f"{len(long)} of over {LONG} tokens", "hit")
    for name, changes in PARTS.items():
        row = [name]
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(patch.object(*change))
            for some in (documents, long):
                found = measured(llm, some)
                row += [f"{found.loss:.3f}", f"{100 * found.hit:.1f} %"]
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
