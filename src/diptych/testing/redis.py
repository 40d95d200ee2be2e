"""A real Redis for tests, on a free port, that can be stopped and started again."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

INSTALL = "redis-server is not installed; these tests need it: apt-get install redis-server"
START_S = 10.0


@dataclass
class RedisServer:
    """One process that keeps nothing on disk."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """And wait until it answers."""
        binary = shutil.which("redis-server")
        assert binary is not None, INSTALL
        options = {"port": self.port, "bind": "127.0.0.1", "save": "", "dir": self.folder}
        flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None, "redis-server ended at once"
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """As if the machine were gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """It accepts, and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """Started; stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = RedisServer(port, folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
