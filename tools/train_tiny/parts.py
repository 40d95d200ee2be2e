"""What each part of the architecture is worth: `python -m train_tiny.parts`.

Loss on held-out answers, and the share of tokens hit, while one part of the model is replaced.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from diptych.model import engram, indexer, mhc, moe
from diptych.model.indexer import NOTHING
from diptych.model.mhc import Mix
from diptych.offline import LLM
from train_tiny import shards
from train_tiny.evaluate import HELD_OUT
from train_tiny.shards import Document

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
    *arguments: object, route: Callable[..., tuple[Tensor, Tensor]] = moe.route
) -> tuple[Tensor, Tensor]:
    """`moe.route`: other experts, with the weights of those it chose."""
    chosen, picked = route(*arguments)
    count = int(chosen.max()) + 1
    drawn = torch.rand(len(chosen), max(count, chosen.shape[1])).argsort(1)
    return drawn[:, : chosen.shape[1]], picked


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


def measure(llm: LLM, documents: Sequence[Document]) -> tuple[float, float]:
    """Mean loss, and share of tokens hit, over what the assistant says."""
    losses, hits = [], []
    for document in documents:
        ids = torch.from_numpy(document.ids.astype("int64"))
        logits = llm.logits(ids.tolist())[:-1]
        said = torch.from_numpy(document.learn[1:]).bool()
        losses.append(F.cross_entropy(logits, ids[1:], reduction="none")[said])
        hits.append((logits.argmax(1) == ids[1:])[said])
    return torch.cat(losses).mean().item(), torch.cat(hits).float().mean().item()


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
                loss, hit = measure(llm, some)
                row += [f"{loss:.3f}", f"{100 * hit:.1f} %"]
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
