"""Ports of this machine."""

import errno
import socket

from diptych.core.errors import Misconfigured
from diptych.supervisor.plan import LOOPBACK


class FreePorts:
    """Hands out loopback ports that nobody listens on, each once."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def __call__(self) -> int:
        while True:
            with socket.socket() as probe:
                probe.bind((LOOPBACK, 0))
                port: int = probe.getsockname()[1]
            if port not in self._given:
                self._given.add(port)
                return port


def claim(host: str, port: int) -> int:
    """The port to serve HTTP on, a free one for 0; Misconfigured if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is no owner
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Misconfigured(
                    f"port {port} on {host} is taken; choose another with --port"
                ) from None
            raise Misconfigured(f"cannot serve on {host}:{port}: {error.strerror}") from None
        claimed: int = probe.getsockname()[1]
        return claimed
