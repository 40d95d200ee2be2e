"""Pools for recorded traffic, by the formulas that a router shows."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diptych import cli
from diptych.core.errors import Misconfigured
from diptych.core.phases import Role
from diptych.router.simulation import traces
from diptych.router.simulation.sizes import needed


def written(path: Path, *, every_s: float, prompt: int, output: int) -> Path:
    """A minute of traffic, nothing of it cached."""
    rows = [
        {
            "timestamp": round(1000 * every_s * n), "input_length": prompt,
            "output_length": output, "hash_ids": [],
        }
        for n in range(round(60 / every_s))
    ]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_pools_are_as_large_as_the_traffic_asks(tmp_path: Path) -> None:
    heavy = written(tmp_path / "heavy.jsonl", every_s=0.5, prompt=30_000, output=4)
    found = needed(traces.load(heavy, 1000))
    # 60,000 tokens a second, of which a worker computes some 27,700; 0.65 of its time is used.
    assert found.sizes == {Role.PREFILL: 4, Role.DECODE: 1}
    assert found.refused == 0 and found.p90_ms < 2500


def test_the_command_prints_pools_and_names_what_is_no_trace(tmp_path: Path) -> None:
    light = written(tmp_path / "light.jsonl", every_s=2, prompt=500, output=10)
    shown = CliRunner().invoke(cli.app, ["router", "plan", "--trace", str(light)])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[:2] == [
        "prefill: 1 workers, 1 at the most",
        "decode: 1 workers, 1 at the most",
    ]
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "odd.jsonl").write_text("{}\n")
    for name, words in (("none", "No such file"), ("empty", "no requests"), ("odd", "is no trace")):
        with pytest.raises(Misconfigured, match=words):
            traces.load(tmp_path / f"{name}.jsonl", 10)
