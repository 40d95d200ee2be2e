"""Certificates for stations of a test, of an authority that is made for it."""

from pathlib import Path

from diptych.transport.authority import LOOPBACK, Authority, Files
from diptych.transport.roles import Holder
from diptych.transport.tls import Credentials


class Papers:
    """An authority and what it gave out."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)

    def issue(self, holder: str, days: float = 1.0) -> Files:
        """A new certificate for ROLE/NAME, on loopback."""
        return self.authority.issue(Holder.read(holder), LOOPBACK, days)

    def of(self, holder: str) -> Credentials:
        """What a station has that was given one."""
        return Credentials(self.issue(holder))
