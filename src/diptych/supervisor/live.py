"""`diptych status --watch`: the tables, drawn again whenever the router says something."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from diptych.core.errors import DiptychError, NotFound
from diptych.router import client as router
from diptych.supervisor.console import TABLE_WIDTH, picture
from diptych.supervisor.folder import State
from diptych.supervisor.status import describe
from diptych.transport.channel import Backoff
from diptych.transport.tls import Credentials, operator_dial

PERIOD_S = 1.0
SHOWN_DECISIONS = 8


def run(data_dir: Path, given: Credentials | None, *, as_json: bool) -> None:
    """Until Ctrl-C, or the platform ends; NotFound if there is none."""
    found = statuses(data_dir, given=given)
    with suppress(KeyboardInterrupt):
        asyncio.run(_print(found) if as_json else _draw(found))


async def statuses(
    data_dir: Path, period_s: float = PERIOD_S, *, given: Credentials | None = None
) -> AsyncIterator[dict[str, Any]]:
    """What `gather` makes, as long as a platform runs on the folder."""
    if State.read(data_dir) is None:
        raise NotFound(f"nothing is running on {data_dir}")
    backoff = Backoff(first_s=0.5, cap_s=2.0)
    while (state := State.read(data_dir)) is not None:
        dial = operator_dial(given, state.certificates_folder)
        try:
            async for fleet in router.watch(state.router, period_s, dial=dial):
                backoff.succeeded()
                if (now := State.read(data_dir)) is None:
                    return
                yield describe(now, data_dir, fleet)
        except DiptychError as error:
            yield describe(state, data_dir, error)
        await asyncio.sleep(backoff.failed())


async def _draw(found: AsyncIterator[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, TABLE_WIDTH)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        async for status in found:
            live.update(picture(status, num_decisions=SHOWN_DECISIONS), refresh=True)


async def _print(found: AsyncIterator[dict[str, Any]]) -> None:
    """A line each: for programs."""
    async for status in found:
        sys.stdout.write(json.dumps(status) + "\n")
        sys.stdout.flush()
