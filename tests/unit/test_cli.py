"""The command line as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diptych.testing.platform import environment

HELP_LIMIT_S = 0.5


def diptych(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diptych.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment() | variables,
        check=False,
    )


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "status",
        "doctor",
        "drain",
        "scale",
        "chat",
        "certs",
        "gateway",
        "router",
        "prefill",
        "decode",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    done = diptych(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "--data-dir" in done.stdout
    assert "Undefined" not in done.stdout


def test_help_is_there_at_once_and_needs_no_torch() -> None:
    code = (
        "import sys; from diptych.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'grpc', 'fastapi') if m in sys.modules])"
    )
    timed = "import time\n" + code + "\nprint(time.process_time())"
    done = subprocess.run(
        [sys.executable, "-c", timed], capture_output=True, text=True, env=environment(), check=True
    )
    *_, loaded, cpu_s = done.stdout.strip().splitlines()
    assert loaded == "[]"
    assert float(cpu_s) < 2 * HELP_LIMIT_S


def test_version_is_the_packages() -> None:
    from diptych import __version__

    assert diptych("version").stdout.strip() == __version__


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["up", "--port", "abc"], {}, "--port 'abc'"),
        (["up"], {"DIPTYCH_PORTS": "1"}, "DIPTYCH_PORTS='1': no such setting"),
        (["up", "--decode", "0"], {}, "at least one decode worker"),
        (["up", "--prefill", "0"], {}, "at least one prefill worker"),
        (["decode", "--checkpoint", "/nowhere"], {}, "--checkpoint '/nowhere'"),
        (["prefill"], {}, "--checkpoint is missing"),
        (["router", "--listen", "nonsense"], {}, "expected host:port"),
        (["status", "--config", "/nowhere.toml"], {}, "/nowhere.toml"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], words: str
) -> None:
    done = diptych(*arguments, DIPTYCH_DATA_DIR=str(tmp_path), **variables)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_decode_is_not_prefill(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = diptych("decode", "--role", "prefill", "--checkpoint", str(tmp_path))
    assert done.returncode == 2
    assert "expected decode or hybrid" in done.stderr


def test_a_key_is_made_shown_rotated_and_revoked(tmp_path: Path) -> None:
    def keys(*arguments: str) -> subprocess.CompletedProcess[str]:
        return diptych("keys", *arguments, "--data-dir", str(tmp_path))

    made = keys("create", "--name", "app", "--tenant", "acme", "--concurrency", "3")
    secret = made.stdout.strip()
    key_id = secret.split("-")[1]
    assert made.stdout.count("\n") == 1  # the secret alone, to be piped
    assert key_id in made.stderr
    listed = keys("list")
    assert secret not in listed.stdout
    for words in (key_id, "app", "acme", "concurrency=3", "active"):
        assert words in listed.stdout.replace("\n", " ")
    rotated = keys("rotate", key_id, "--json")
    assert json.loads(rotated.stdout)["key"].split("-")[1] == key_id
    assert "revoked" in keys("revoke", key_id).stdout
    again = keys("rotate", key_id)
    assert again.returncode == 1
    assert again.stderr == "diptych: this key was revoked; make a new one\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--name", ""], "name: expected"),
        (["create", "--name", "n", "--scope", "root"], "--scope: expected one of inference"),
        (["create", "--name", "n", "--network", "here"], "networks: expected"),
        (["create", "--name", "n", "--requests-per-min", "0"], "limits.requests_per_min"),
        (["revoke", "nosuchkey"], "no such key"),
    ],
)
def test_a_wrong_wish_for_a_key_is_one_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = diptych("keys", *arguments, "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_status_of_nothing_says_so_and_fails(tmp_path: Path, flags: list[str]) -> None:
    done = diptych("status", *flags, "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"nothing is running on {tmp_path}\n"
