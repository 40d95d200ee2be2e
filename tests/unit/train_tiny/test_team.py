"""Processes that train together make the same step."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from train_tiny.team import Team

ROOT = Path(__file__).parents[3]
MEMBER = """
import sys
import torch
from train_tiny.team import Team
team = Team()
gradients = [torch.full((2, 3), float(team.rank)), torch.arange(4.0) * team.rank]
team.average(gradients)
assert torch.equal(gradients[0], torch.full((2, 3), 0.5)), gradients
assert torch.equal(gradients[1], torch.arange(4.0) / 2), gradients
assert team.firsts(team.rank + 7.0) == 7.0
sys.stdout.write(f"agreed {team.size}\\n")  # at once: both write here
team.close()
"""


def test_all_have_the_mean_of_their_gradients_and_the_time_of_the_first(tmp_path: Path) -> None:
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/src:{ROOT}/tools"}
    done = subprocess.run(
        [*launch, str(script)], env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("agreed 2") == 2


def test_who_is_alone_keeps_its_own() -> None:
    team, gradient = Team(), torch.ones(3)
    team.average([gradient])
    assert team.is_first and torch.equal(gradient, torch.ones(3)) and team.firsts(2.5) == 2.5
