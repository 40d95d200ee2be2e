"""What the supervisor asks the router, each in a process of its own.

A supervisor forks whenever it starts a process, and a fork is not safe beside the threads of gRPC.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from diptych.core.errors import DiptychError, Lost
from diptych.router import client as router
from diptych.supervisor.child import dies_with
from diptych.transport.channel import Dial
from diptych.transport.tls import operator_dial

ORDER_S = 5.0
HAND_BACK_S = 15.0
FAILED_EXIT = 1


Folder = Path | None  # of certificates; None: no TLS between stations


async def joined(
    address: str, name: str, environment: Mapping[str, str], certificates: Folder = None
) -> None:
    """Wait until the router gives a worker requests; Lost if the router does not answer."""
    await _run(environment, "joined", str(certificates or ""), address, name)


async def drain(
    address: str,
    name: str,
    limit_s: float,
    environment: Mapping[str, str],
    certificates: Folder = None,
) -> None:
    """Drain a worker and wait until it holds nothing; Lost with why that cannot be."""
    await _run(environment, "drain", str(certificates or ""), address, name, str(limit_s))


async def _run(environment: Mapping[str, str], *words: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=dies_with(os.getpid()),
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise Lost((output.decode(errors="replace").strip().splitlines() or ["no answer"])[-1])


async def _join(dial: Dial, address: str, name: str) -> None:
    async for fleet in router.watch(address, dial=dial):
        if any(member.join.member_id == name and member.ready for member in fleet.members):
            return


async def _drain(dial: Dial, address: str, name: str, limit_s: float) -> None:
    await router.drain(address, name, router.Drain(True, limit_s), ORDER_S, dial=dial)
    await router.drained(address, name, limit_s + HAND_BACK_S, dial=dial)


def main(errand: str, certificates: str, address: str, name: str, *more: str) -> int:
    """Do it; an error is the last line that is said."""
    try:
        dial = operator_dial(None, Path(certificates) if certificates else None)
        if errand == "joined":
            asyncio.run(_join(dial, address, name))
        else:
            asyncio.run(_drain(dial, address, name, float(*more)))
    except DiptychError as error:
        sys.stdout.write(f"{error.message}\n")
        return FAILED_EXIT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
