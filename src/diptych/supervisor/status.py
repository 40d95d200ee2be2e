"""`diptych status`: the supervisor's processes and the routers' fleet, as one value."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diptych.core.errors import DiptychError
from diptych.core.phases import Role, WorkerState
from diptych.router import client as router
from diptych.router.client import Fleet
from diptych.supervisor.folder import State
from diptych.transport.tls import Credentials, operator_dial

ROUTER_TIMEOUT_S = 3.0


def gather(data_dir: Path, given: Credentials | None = None) -> dict[str, Any] | None:
    """JSON-ready; None if no platform runs on the folder.

    Keys: data_dir, pid, base_url, processes (with state, where they are members), ready, reasons,
    model, queued, leases, members (each with join, load, ready, not_ready_reason, leases,
    silent_s), policy, desired (workers by role),
    decisions (the newest), routers (each with address, router_id, error, queued, leases, peers,
    stale_peers). Without an answer from any router there are no members and `reasons` says why.
    """
    state = State.read(data_dir)
    if state is None:
        return None
    dial = operator_dial(given, state.certificates_folder)
    asking = router.status(state.router, ROUTER_TIMEOUT_S, dial=dial)
    try:
        return describe(state, data_dir, asyncio.run(asking))
    except DiptychError as error:
        return describe(state, data_dir, error)


def describe(state: State, data_dir: Path, heard: Fleet | DiptychError) -> dict[str, Any]:
    """The same from what the routers said, or why none said anything."""
    known = asdict(state)
    known["data_dir"] = str(data_dir)
    for process in known["processes"]:
        process["alive"] = process["pid"] != 0 and _is_alive(process["pid"])
    if isinstance(heard, DiptychError):
        reasons = [f"no router answers at {state.router}: {heard.message}"]
        nothing = {"queued": 0, "leases": 0, "members": [], "routers": []}
        return known | {"ready": False, "reasons": reasons} | nothing
    states = {member.join.member_id: member.state for member in heard.members}
    for process in known["processes"]:
        is_member = process["role"] not in (Role.ROUTER, Role.STORE)
        coming = WorkerState.STARTING if is_member and process["alive"] else ""
        process["state"] = str(states.get(process["id"], coming))
    known |= asdict(heard) | {"model": heard.model or state.model}
    return {key: _plain(value) for key, value in known.items()}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value
