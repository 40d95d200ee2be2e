"""docker-compose.yml without containers: the commands of its services as processes."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import yaml

from diptych.testing.platform import environment

IMAGE = "diptych:latest"
VOLUME = "/var/lib/diptych"
LOOPBACK = "127.0.0.1"
STOP_S = 30.0
DRAW_S = 120.0
_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")
_ADDRESS = re.compile(r"(?<![\w./-])([a-z0-9.-]+):(\d+)\b")


@dataclass(frozen=True, slots=True)
class Service:
    """One container that runs our image."""

    name: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    is_once: bool  # ends by itself, before the others start


def services(path: Path) -> list[Service]:
    """Ours, in the order of the file; defaults in the place of variables."""
    content: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(r"\1", path.read_text()))
    return [
        Service(
            name,
            tuple(map(str, fields["command"])),
            {key: str(value) for key, value in fields.get("environment", {}).items()},
            fields["restart"] == "no",
        )
        for name, fields in content["services"].items()
        if fields.get("image") == IMAGE and "profiles" not in fields  # that is for people
    ]


class Translation:
    """Names of a compose network as ports of this machine, its volume as a folder."""

    def __init__(self, folder: Path, free_port: Callable[[], int], redis_url: str) -> None:
        self._folder = folder
        self._free_port = free_port
        self._redis_url = redis_url
        self._ports: dict[tuple[str, str], int] = {}

    def address(self, owner: str, host: str, port: str) -> str:
        """Where a service's port is here; 0.0.0.0 is the owner itself."""
        name = owner if host in ("0.0.0.0", LOOPBACK) else host
        key = (name, port)
        if key not in self._ports:
            self._ports[key] = self._free_port()
        return f"{LOOPBACK}:{self._ports[key]}"

    def word(self, owner: str, word: str) -> str:
        """A word of a command, or a variable's value."""
        if word.startswith("redis://"):
            return self._redis_url
        if word.startswith(VOLUME):
            return str(self._folder) + word.removeprefix(VOLUME)
        return _ADDRESS.sub(lambda found: self.address(owner, found[1], found[2]), word)

    def command(self, service: Service) -> list[str]:
        """What to run here."""
        program, *words = service.command
        run = [sys.executable] if program == "python" else [sys.executable, "-m", "diptych.cli"]
        if "--port" in words:  # of HTTP, given without its host
            at = words.index("--port") + 1
            address = self.address(service.name, LOOPBACK, words[at])
            words[at] = address.rpartition(":")[2]
        said = [self.word(service.name, word) if program != "python" or word.startswith(VOLUME)
                else word for word in words]  # fmt: skip
        return [*run, *(LOOPBACK if word == "0.0.0.0" else word for word in said)]


@contextmanager
def running(path: Path, folder: Path, translation: Translation) -> Iterator[dict[str, Path]]:
    """All of ours, started in order; the log of each by name. They end with exit code 0."""
    logs: dict[str, Path] = {}
    with ExitStack() as stack:
        for service in services(path):
            logs[service.name] = folder / f"{service.name}.log"
            log = stack.enter_context(logs[service.name].open("wb"))
            process = _start(service, folder, translation, log)
            if service.is_once:
                code = process.wait(timeout=DRAW_S)
                assert code == 0, logs[service.name].read_text()[-2000:]
            else:
                stack.callback(_stop, service.name, process)
        yield logs


def run_again(path: Path, name: str, folder: Path, translation: Translation) -> None:
    """A service that ends by itself, while the others run."""
    [service] = [each for each in services(path) if each.name == name]
    with (folder / f"{name}.log").open("ab") as log:
        assert _start(service, folder, translation, log).wait(timeout=DRAW_S) == 0


def _start(
    service: Service, folder: Path, translation: Translation, log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    variables = {
        "DIPTYCH_DATA_DIR": str(folder),
        **{key: translation.word(service.name, v) for key, v in service.variables.items()},
    }
    return subprocess.Popen(
        translation.command(service),
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**environment(), **variables},
        cwd=os.fspath(folder),
    )


def _stop(name: str, process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        code = process.wait(timeout=STOP_S)
    finally:
        process.kill()
        process.wait()
    assert code == 0, f"{name} ended with {code}"
