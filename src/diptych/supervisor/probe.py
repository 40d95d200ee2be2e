"""Questions to our own gateway over HTTP, as a client would ask them."""

import asyncio
import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from diptych.core.errors import Broken, Expired

ASK_AGAIN_S = 0.1
PROBE_TIMEOUT_S = 5.0
CANARY_TIMEOUT_S = 60.0
CANARY = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 2,  # the second one comes from a decode worker
    "ignore_eos": True,
    "thinking": {"type": "disabled"},
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; status 0 if there was none."""

    status: int
    text: str


async def wait_until_ready(base_url: str) -> None:
    """Until the gateway says that a request can be served. The caller bounds it."""
    while True:
        reply = await asyncio.to_thread(_ask, base_url, "GET", "/readyz", None, PROBE_TIMEOUT_S)
        if reply.status == 200:
            return
        await asyncio.sleep(ASK_AGAIN_S)  # HTTP has no event to wait for


async def wait_for_answer(base_url: str, model_name: str) -> None:
    """Until tokens came the whole way; Broken if the gateway takes the request for wrong."""
    body = json.dumps({"model": model_name, **CANARY})
    while True:
        reply = await asyncio.to_thread(
            _ask, base_url, "POST", "/v1/chat/completions", body, CANARY_TIMEOUT_S
        )
        if reply.status == 200:
            return
        if 400 <= reply.status < 500:
            raise Broken(f"the canary request was answered with {reply.status}: {reply.text}")
        await asyncio.sleep(ASK_AGAIN_S)


async def within(timeout_s: float, base_url: str, model_name: str) -> None:
    """Ready and answering within `timeout_s`, or Expired saying what is missing."""
    try:
        async with asyncio.timeout(timeout_s):
            await wait_until_ready(base_url)
            await wait_for_answer(base_url, model_name)
    except TimeoutError:
        why = await asyncio.to_thread(_ask, base_url, "GET", "/readyz", None, PROBE_TIMEOUT_S)
        said = f"{why.status} {why.text}" if why.status else "nothing"
        raise Expired(f"not ready within {timeout_s:g} s; /readyz answers: {said}") from None


def _ask(base_url: str, method: str, path: str, body: str | None, timeout_s: float) -> Reply:
    url = urlsplit(base_url)
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Reply(response.status, response.read().decode(errors="replace")[:500])
    except (OSError, http.client.HTTPException):
        return Reply(0, "")
    finally:
        connection.close()
