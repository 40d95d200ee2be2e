"""`diptych trace`: the newest engine steps of running workers, as one Chrome trace."""

import http.client
import json
from collections.abc import Sequence
from typing import Any

from diptych.core.errors import BadRequest, Lost

TIMEOUT_S = 30.0


def collect(status: dict[str, Any], names: Sequence[str], seconds: float | None) -> dict[str, Any]:
    """What `names`, or all workers, did in the last seconds; their clocks are this machine's."""
    addresses = _addresses(status)
    unknown = [name for name in names if name not in addresses]
    if unknown:
        raise BadRequest(
            f"{', '.join(unknown)}: no such worker; there are {', '.join(addresses) or 'none'}"
        )
    path = "/trace" if seconds is None else f"/trace?seconds={seconds:g}"
    chosen = names or addresses
    events = [event for name in chosen for event in _fetch(name, addresses[name], path)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _addresses(status: dict[str, Any]) -> dict[str, str]:
    joins = [member["join"] for member in status["members"]]
    return {
        join["member_id"]: join["metrics_address"]
        for join in joins
        if join["num_slots"] and join["metrics_address"]
    }


def _fetch(name: str, address: str, path: str) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        content = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise Lost(f"{name} at {address} does not answer: {error}") from error
    finally:
        connection.close()
    if reply.status != 200:
        raise Lost(f"{name} at {address} answers {reply.status}: {content.decode().strip()}")
    events: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    return events
