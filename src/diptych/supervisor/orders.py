"""`diptych drain` and `diptych scale`: what a person tells a running platform."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from diptych.config import Common, DrainSettings, secrets_of
from diptych.core.errors import BadRequest, NotFound
from diptych.gateway.admin import supervisor
from diptych.router import client as router
from diptych.supervisor.folder import State
from diptych.supervisor.plan import WORKER_ROLES
from diptych.transport import tls
from diptych.transport.channel import Dial

ORDER_S = 5.0
HAND_BACK_S = 15.0

Tell = Callable[[str], None]


def drain(settings: DrainSettings, worker: str, *, undo: bool, waits: bool, tell: Tell) -> None:
    """Give a worker nothing new, and wait until it holds nothing; or give it work again."""
    address, folder = settings.router, None
    if address is None:
        state = _running(settings)
        address, folder = state.router, state.certificates_folder
    dial = tls.operator_dial(tls.load(settings), folder)
    wish = router.Drain(not undo, 0 if undo else settings.limit_s)
    asyncio.run(_drain(address, worker, wish, dial, waits=waits and not undo, tell=tell))


async def _drain(
    address: str, worker: str, wish: router.Drain, dial: Dial, *, waits: bool, tell: Tell
) -> None:
    await router.drain(address, worker, wish, ORDER_S, dial=dial)
    if not wish.is_on:
        tell(f"{worker} is given requests again")
        return
    tell(f"{worker} is given nothing new")
    if waits:
        limit_s = wish.limit_s + HAND_BACK_S if wish.limit_s else 86_400.0
        await router.drained(address, worker, limit_s, dial=dial)
        tell(f"{worker} is drained")


def scale(settings: Common, wishes: Sequence[str]) -> dict[str, Any]:
    """Change the size of pools; what was added and removed, and how large they are now."""
    counts = read_counts(wishes)
    state = _running(settings)
    if not state.control:
        raise BadRequest("this platform takes no orders; start it again with this version")
    cluster_secret, _ = secrets_of(settings)
    token = supervisor.control_token(cluster_secret)
    return asyncio.run(supervisor.scale(state.control, token, counts))


def read_counts(wishes: Sequence[str]) -> dict[str, int]:
    """From `prefill=2 decode=3`."""
    counts: dict[str, int] = {}
    for wish in wishes:
        role, _, count = wish.partition("=")
        if role not in WORKER_ROLES or not (count.isascii() and count.isdigit()):
            roles = ", ".join(WORKER_ROLES)
            raise BadRequest(f"{wish}: expected ROLE=N, with a role of {roles}")
        counts[role] = int(count)
    return counts


def _running(settings: Common) -> State:
    state = State.read(settings.data_dir)
    if state is None:
        raise NotFound(f"nothing is running on {settings.data_dir}")
    return state
