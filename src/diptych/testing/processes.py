"""Processes that live as long as a block of a test or a benchmark."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from diptych.testing.platform import environment

END_S = 10.0  # then they are killed


@contextlib.contextmanager
def running(*commands: Sequence[str], folder: Path) -> Iterator[None]:
    """Start them all, their output in `servers.log` of the folder; end them with the block."""
    with (folder / "servers.log").open("ab") as log:
        processes = [
            subprocess.Popen(command, stdout=log, stderr=log, env=environment())
            for command in commands
        ]
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(timeout=END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
