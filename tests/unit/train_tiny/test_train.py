"""Training goes on where it stopped, and a loss falls."""

from pathlib import Path

import torch
from train_tiny import train
from train_tiny.shards import Batch
from train_tiny.train import Plan, Trainer

PLAN = Plan(seconds=100.0, rows=768, warm_up=1)


def test_a_restored_run_takes_the_same_next_step(tmp_path: Path, folder: Path, bins: Batch) -> None:
    torch.manual_seed(0)
    first = Trainer(train.build(folder, "cpu", seed=0), PLAN, "cpu")
    losses = [first.advance(bins).loss.item() for _ in range(3)]
    assert losses[2] < losses[0]
    first.save(tmp_path / "state.pt")
    second = Trainer(train.build(folder, "cpu", seed=1), PLAN, "cpu")
    second.restore(tmp_path / "state.pt")
    random = torch.get_rng_state()
    loss = first.advance(bins).loss.item()
    torch.set_rng_state(random)
    assert second.advance(bins).loss.item() == loss
    assert second.step == first.step == 4


def test_rates_rise_once_and_fall_to_nothing() -> None:
    plan = Plan(seconds=100.0)
    assert plan.rate(0, 0.0) < plan.rate(plan.warm_up, 0.1) == 1.0
    assert plan.rate(1000, 0.7) < 1.0
    assert plan.rate(1000, 1.0) == 0.0
