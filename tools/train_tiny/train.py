"""Train the tiny model: `python -m train_tiny.train --data DIR --out DIR --seconds N`.

Stops by the clock: rates fall to zero at the end of the given time, whatever the machine reached.
With a state in --out that was not finished it goes on there.
"""

import argparse
import itertools
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from diptych.model.ngrams import Hashing, compression_map
from diptych.model.spec import ModelSpec
from train_tiny import parameters, shards
from train_tiny.operations import Sinkhorn
from train_tiny.optimiser import Optimiser
from train_tiny.shards import Document, Feed
from train_tiny.step import Model, Outcome, on, run
from train_tiny.team import Team

STATE = "state.pt"
ROWS = 32_768  # tokens a step


@dataclass(frozen=True, slots=True)
class Plan:
    """Rates and phases; shares are of the whole time."""

    seconds: float
    rows: int = ROWS
    warm_up: int = 60  # steps
    adam_rate: float = 4e-3
    muon_rate: float = 2e-2
    decay_from: float = 0.45
    rounded_from: float = 0.5
    explore_until: float = 0.8
    explore: int = 16  # random entries a selection
    index_share: float = 0.1  # of the index loss in what is minimised
    bias_rate: float = 2e-3  # of the experts' biases, a step
    clip: float = 1.0

    def rate(self, step: int, share: float) -> float:
        """The factor of both rates."""
        warm = min(1.0, (step + 1) / self.warm_up)
        left = (1 - share) / (1 - self.decay_from)
        return warm * min(1.0, max(left, 0.0))


class Trainer:
    """Parameters, optimiser, and the steps taken."""

    def __init__(self, model: Model, plan: Plan, device: str, team: Team | None = None) -> None:
        self.model, self.plan, self.device = model, plan, device
        self.team = team or Team()
        self.trained = {n: p for n, p in model.parameters.items() if parameters.is_trained(n)}
        self.optimiser = Optimiser(self.trained)
        self.step, self.spent_s = 0, 0.0

    def advance(self, batch: shards.Batch) -> Outcome:
        """One step on one batch."""
        plan, share = self.plan, self.share
        outcome = run(
            self.model,
            batch,
            self.device,
            rounded=share >= plan.rounded_from,
            explore=plan.explore if share < plan.explore_until else 0,
        )
        (outcome.loss + plan.index_share * outcome.index_loss).backward()  # type: ignore[no-untyped-call]
        for parameter in self.trained.values():
            if parameter.grad is None:  # of an expert nobody was sent to
                parameter.grad = torch.zeros_like(parameter)
        self.team.average(p.grad for p in self.trained.values() if p.grad is not None)
        torch.nn.utils.clip_grad_norm_(self.trained.values(), plan.clip, foreach=True)
        factor = plan.rate(self.step, share)
        self.optimiser.step(plan.adam_rate * factor, plan.muon_rate * factor)
        self._balance(outcome.experts, plan.bias_rate * factor)
        self.step += 1
        return outcome

    @property
    def share(self) -> float:
        """Of the time that is spent."""
        return min(self.spent_s / self.plan.seconds, 1.0)

    @torch.no_grad()
    def _balance(self, experts: dict[int, Tensor], rate: float) -> None:
        """Send more to experts that got less than their part."""
        self.team.average(experts.values())
        for layer, got in experts.items():
            for name in ("bias", "bias_vl"):
                bias = self.model.parameters[f"layers.{layer}.ffn.gate.{name}"]
                bias.add_(torch.sign(got.mean() - got), alpha=rate)

    def save(self, path: Path) -> None:
        state = {
            "parameters": {n: p.detach() for n, p in self.model.parameters.items()},
            "optimiser": self.optimiser.state(),
            "step": self.step,
            "spent_s": self.spent_s,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)

    def restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for name, value in state["parameters"].items():
                self.model.parameters[name].copy_(value)
        self.optimiser.restore(state["optimiser"])
        self.step, self.spent_s = state["step"], state["spent_s"]


def build(spec_folder: Path, device: str, seed: int, begin: Path | None = None) -> Model:
    """A fresh model of a folder's config and tokenizer, or with the values of a checkpoint."""
    spec = ModelSpec.load(spec_folder)
    assert spec.engram
    hashing = Hashing.of(spec.engram, compression_map(spec_folder, spec))
    tensors = {}
    first = parameters.stored(spec, begin) if begin else parameters.initial(spec, seed)
    for name, value in first.items():
        tensors[name] = value.to(device).requires_grad_(parameters.is_trained(name))
    iterations: Sinkhorn | None = None
    if device == "cuda":
        from train_tiny.sinkhorn import sinkhorn  # needs Triton and a GPU

        iterations = sinkhorn
    return Model(spec, tensors, on(hashing, device), iterations)


@torch.no_grad()
def judge(
    model: Model, held_out: dict[str, list[Document]], device: str, *, rounded: bool, rows: int
) -> str:
    """Loss and hit rate on each held-out shard, over `rows` tokens of it; one line."""
    parts = []
    for name, documents in held_out.items():
        length = next(n for n in shards.LENGTHS if all(len(d.ids) <= n for d in documents[:64]))
        bins = shards.pack(documents, length)[: max(rows // length, 1)]
        outcome = run(model, shards.batch(bins, length), device, rounded=rounded)
        parts.append(f"{name} {outcome.said.item():.2f} {100 * outcome.right.item():.0f}%")
    return " | ".join(parts)


def load_shards(folder: Path) -> tuple[list[Document], dict[str, list[Document]]]:
    """Documents to train on, and those held out, by the name of their shard."""
    train, held_out = [], {}
    for path in sorted(folder.glob("*.npz")):
        if path.name.startswith(shards.HELD_OUT):
            held_out[path.stem.removeprefix(shards.HELD_OUT)] = shards.load(path)
        else:
            train += shards.load(path)
    return train, held_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of config and tokenizer")
    parser.add_argument("--data", type=Path, required=True, help="folder of shards")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of training, all runs")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds of this run")
    parser.add_argument("--begin", type=Path, help="checkpoint folder to begin with, not at random")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the peak rates")
    parser.add_argument("--rows", type=int, default=ROWS, help="tokens a step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    team = Team(options.device)
    plan = Plan(options.seconds, rows=options.rows // team.size)
    if options.begin:  # what is learnt is refined: rounded from the start
        plan = replace(plan, rounded_from=0.0, decay_from=0.2)
    plan = replace(
        plan, adam_rate=plan.adam_rate * options.rate, muon_rate=plan.muon_rate * options.rate
    )
    model = build(options.model, options.device, options.seed, options.begin)
    trainer = Trainer(model, plan, options.device, team)
    state = options.out / STATE
    if state.exists():
        trainer.restore(state)
    train, held_out = load_shards(options.data)
    tokens = sum(len(d.ids) for d in train)
    console = Console(width=160, quiet=not team.is_first)
    count = sum(p.numel() for p in trainer.trained.values())
    console.print(f"{count:,} parameters; {len(train):,} documents, {tokens:,} tokens")
    feed = Feed(train, plan.rows, options.seed)
    follow(trainer, feed, held_out, console, options.stop_after, state)
    if team.is_first:
        trainer.save(state)
    team.close()


def follow(
    trainer: Trainer,
    feed: Feed,
    held_out: dict[str, list[Document]],
    console: Console,
    stop_after_s: float,
    state: Path,
) -> None:
    """Step until the time is spent, with a bar; judge and save the state at every tenth of it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    began_s, before_s = time.monotonic(), trainer.spent_s
    judged = int(10 * trainer.share)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=trainer.plan.seconds)
        team = trainer.team
        first = trainer.step * team.size + team.rank
        for batch in itertools.islice(feed.batches(first), 0, None, team.size):
            if trainer.share >= 1 or trainer.spent_s - before_s > stop_after_s:
                break
            outcome = trainer.advance(batch)
            if trainer.step % 20 == 0:
                loss, index = outcome.loss.item(), outcome.index_loss.item()  # waits for the device
                assert math.isfinite(loss), f"the loss is {loss} at step {trainer.step}"
                trainer.spent_s = before_s + team.firsts(time.monotonic() - began_s)
                text = f"step {trainer.step} loss {loss:.3f} index {index:.2f}"
                progress.update(task, completed=trainer.spent_s, description=text)
                if int(10 * trainer.share) > judged:
                    judged = int(10 * trainer.share)
                    rounded = trainer.share >= trainer.plan.rounded_from
                    rows = trainer.plan.rows
                    said = judge(
                        trainer.model, held_out, trainer.device, rounded=rounded, rows=rows
                    )
                    speed = rows * team.size * trainer.step / trainer.spent_s
                    console.print(f"{text} ({speed:,.0f} tokens/s) {said}")
                    console.print(load_line(outcome))
                    if team.is_first:
                        trainer.save(state)


def load_line(outcome: Outcome) -> str:
    """The least and the most used expert of each layer, in parts of the mean."""
    loads = [got / got.mean() for got in outcome.experts.values()]
    return "experts " + " ".join(f"{g.min().item():.2f}-{g.max().item():.2f}" for g in loads)


if __name__ == "__main__":
    main()
