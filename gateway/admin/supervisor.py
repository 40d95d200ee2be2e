"""Orders to the supervisor of this machine, if the platform was started by `diptych up`."""

import hmac
from collections.abc import Mapping
from typing import Any

import httpx

from diptych.core.errors import BadRequest, Lost, Overloaded

SCALE_S = 1200.0  # starting loads weights, and a drain may take its time
CONNECT_S = 3.0


def control_token(cluster_secret: bytes) -> str:
    """What opens the supervisor to who knows the secret."""
    return f"control-{hmac.digest(cluster_secret, b'diptych control v1', 'sha256').hex()}"


async def scale(address: str, token: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Change the size of pools: what was added and removed, and how large they are now."""
    timeout = httpx.Timeout(SCALE_S, connect=CONNECT_S)
    headers = {"authorization": f"Bearer {token}"}
    try:
        async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:
            url = f"http://{address}/scale"
            reply = await client.post(url, json=dict(counts), headers=headers)
    except httpx.HTTPError as error:
        raise Lost(f"the supervisor at {address} does not answer") from error
    if reply.status_code == 200:
        done: dict[str, Any] = reply.json()
        return done
    said = reply.json().get("error", {}) if reply.content[:1] == b"{" else {}
    message = said.get("message", f"the supervisor answered with {reply.status_code}")
    if reply.status_code == 400:
        raise BadRequest(message, code=said.get("code"))
    raise Overloaded(f"scaling failed: {message}", code="scale_failed")
