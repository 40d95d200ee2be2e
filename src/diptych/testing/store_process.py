"""The store as a process of its own, on one address over all its lives."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from diptych.testing.platform import environment, free_port

START_S = 20.0


@dataclass
class StoreProcess:
    """`diptych store` on a folder, on one address over all its lives."""

    folder: Path
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    running: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "diptych.cli", "store", "--listen", self.address]
        self.running = subprocess.Popen(
            [*command, "--data-dir", str(self.folder), *self.flags],
            env=environment(),
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.running.poll() is None, "the store ended at once"
                assert time.monotonic() < deadline_s, "the store does not answer"
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self.running is not None
        self.running.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        self.send(number)
        assert self.running is not None
        code = self.running.wait(20)
        self.running = None
        return code


@contextmanager
def store_process(folder: Path, *flags: str) -> Iterator[StoreProcess]:
    one = StoreProcess(folder, flags)
    one.start()
    try:
        yield one
    finally:
        if one.running is not None:
            one.end(signal.SIGKILL)
