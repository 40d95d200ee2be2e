"""Recorded decisions come out the same again, bit for bit."""

import random
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from diptych import cli
from diptych.core.errors import Misconfigured
from diptych.core.ids import BlockHash
from diptych.core.phases import Phase
from diptych.router.decisions import Recorder, replay
from diptych.router.messages import BlockChanges, BlockTier, DecodeAt, PrefillAt, Progress
from diptych.testing.house import House

LAST_CHUNK = Progress(Phase.PREFILL, 10, last_chunk_started=True)


def block(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "little"))


def record(path: Path, *, max_bytes: int = 2**20, wants: int = 120) -> int:
    """A busy hour of a small fleet; how many decisions were placements."""
    chance = random.Random("record")
    recorder = Recorder(path, max_bytes)
    names = ("prefill-1", "prefill-2", "prefill-3", "decode-1", "decode-2", "hybrid-1")
    house = House(*names, slots=16, on_decision=recorder.record)
    for name in names[:3]:
        held = tuple(map(block, range(chance.randint(0, 30))))
        change = BlockChanges(0, held, (True,) * len(held))
        found = house.registry.find(name)
        assert found is not None
        house.dispatcher.announced(name, found.join.incarnation, change)
    index = house.dispatcher.index
    index.stocked("store 1", BlockTier.HOST, tuple(map(block, range(12))), came=True)
    index.stocked("store 2", BlockTier.DISK, tuple(map(block, range(40))), came=True)
    placed, leases = 0, []
    for number in range(wants):
        length = chance.randint(10, 900)
        hashes = tuple(map(block, range(length // 16)))
        classes = ("interactive", "", "batch")
        leases.append(
            house.want(length, hashes=hashes, priority_class=classes[number % 3], tenant="t")
        )
        for lease, answer in house.answers(chance.random() / 50).items():
            placed += 1
            if isinstance(answer, PrefillAt):
                house.progress(lease, LAST_CHUNK)
            elif isinstance(answer, DecodeAt) and chance.random() < 0.7:
                house.dispatcher.close(lease)
        for name in names:
            house.report(name)
    recorder.close()
    return placed


def test_every_recorded_decision_comes_out_the_same(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    assert record(path) > 100
    lines = path.read_bytes().splitlines()
    outcomes = list(replay(lines))
    assert len(outcomes) == len(lines) > 100
    assert outcomes == [None] * len(lines)
    asks = [orjson.loads(line)["ask"] for line in lines]
    assert any(0 < ask["on_disk"] < ask["shared"] for ask in asks)
    kinds = {orjson.loads(line)["namespace"] is None for line in lines}
    assert kinds == {True, False}  # prompts and outputs


def test_a_decision_that_would_be_another_today_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    record(path, wants=5)
    line = orjson.loads(path.read_bytes().splitlines()[0])
    taken = line["outcome"]["rank"]["worker_id"]
    for candidate in line["candidates"]:
        if candidate["rank"]["worker_id"] == taken:
            candidate["queue_ms"] = 99.0
            candidate["prompts"] = 1
    (difference,) = replay([orjson.dumps(line)])
    assert difference is not None
    assert difference.line == 1
    assert difference.recorded["rank"]["worker_id"] == taken
    assert difference.decided["rank"]["worker_id"] != taken


def test_the_record_is_bounded_and_the_older_part_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    record(path, max_bytes=50_000)
    older = tmp_path / "decisions.jsonl.1"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, older.name}
    assert path.stat().st_size <= 50_000
    assert older.stat().st_size <= 50_000
    assert list(replay(older.read_bytes().splitlines())).count(None) > 5


def test_nothing_of_a_users_name_or_text_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    record(path, wants=5)
    assert set(orjson.loads(path.read_bytes().splitlines()[0])) == {
        "request", "attempt", "ask", "candidates", "pending", "namespace", "outcome",
    }  # fmt: skip
    assert b"tenant" not in path.read_bytes()


@pytest.mark.parametrize("line", [b"nonsense", b"{}", b"[1]", b'{"ask": 3}'])
def test_a_file_of_something_else_is_refused_with_the_line(line: bytes) -> None:
    with pytest.raises(Misconfigured, match="line 1 is not a recorded decision"):
        list(replay([line]))


def test_a_file_that_cannot_be_written_stops_the_router_by_name(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no-such-folder"):
        Recorder(tmp_path / "no-such-folder" / "file")


def test_the_command_replays_a_file_and_fails_when_something_differs(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    record(path, wants=10)
    count = len(path.read_bytes().splitlines())
    result = CliRunner().invoke(cli.app, ["router", "replay", str(path)])
    assert (result.exit_code, result.output) == (0, f"{count} decisions, 0 came out otherwise\n")
    lines = path.read_bytes().splitlines()
    changed = orjson.loads(lines[0])
    changed["outcome"]["expected_ms"] += 1e-9
    path.write_bytes(b"\n".join([orjson.dumps(changed), *lines[1:]]))
    result = CliRunner().invoke(cli.app, ["router", "replay", str(path)])
    assert result.exit_code == 1
    assert f"{count} decisions, 1 came out otherwise" in result.output
