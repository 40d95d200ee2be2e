"""Certificates for stations of a test, of an authority that is made for it."""

import asyncio
from pathlib import Path

import grpc
import grpc.aio

from diptych.core.errors import DiptychError
from diptych.router import client as router
from diptych.transport.authority import LOOPBACK, Authority, Files
from diptych.transport.channel import Dial
from diptych.transport.roles import Holder
from diptych.transport.tls import Credentials

ANSWER_S = 5.0


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


def shown(files: Files, ca: Path | None = None) -> Dial:
    """How somebody dials who looks at nothing that `Credentials` looks at."""
    own = grpc.ssl_channel_credentials(
        (ca or files.ca).read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    return lambda address: grpc.aio.secure_channel(address, own)


async def refusal(address: str, dial: Dial) -> DiptychError:
    """What becomes of a question to a router that must not be answered."""
    async with asyncio.timeout(ANSWER_S):
        try:
            await router.status(address, ANSWER_S, dial=dial)
        except DiptychError as error:
            return error
    raise AssertionError("it was answered")
