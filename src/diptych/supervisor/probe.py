"""Questions to our own gateway over HTTP, as a client would ask them."""

import asyncio
import http.client
import json
import ssl
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from diptych.core.errors import Broken, Expired
from diptych.supervisor.plan import Plan

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
class Gateway:
    """Where to ask, and what opens it."""

    base_url: str
    canary: str = field(default="", repr=False)
    certificate: Path | None = None

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(plan.base_url, plan.canary, plan.certificate)

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        url = urlsplit(self.base_url)
        assert url.hostname is not None
        if self.certificate is None:
            return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False  # it names the public host; we come by loopback
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # our own certificate is enough
        return http.client.HTTPSConnection(
            url.hostname, url.port, timeout=timeout_s, context=context
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; status 0 if there was none."""

    status: int
    text: str


async def wait_until_ready(gateway: Gateway) -> None:
    """Until the gateway says that a request can be served. The caller bounds it."""
    while True:
        reply = await asyncio.to_thread(_ask, gateway, "GET", "/readyz", None, PROBE_TIMEOUT_S)
        if reply.status == 200:
            return
        await asyncio.sleep(ASK_AGAIN_S)  # HTTP has no event to wait for


async def wait_for_answer(gateway: Gateway, model_name: str) -> None:
    """Until tokens came the whole way; Broken if the gateway takes the request for wrong."""
    body = json.dumps({"model": model_name, **CANARY})
    while True:
        reply = await asyncio.to_thread(
            _ask, gateway, "POST", "/v1/chat/completions", body, CANARY_TIMEOUT_S
        )
        if reply.status == 200:
            return
        if 400 <= reply.status < 500:
            raise Broken(f"the canary request was answered with {reply.status}: {reply.text}")
        await asyncio.sleep(ASK_AGAIN_S)


async def within(timeout_s: float, gateway: Gateway, model_name: str) -> None:
    """Ready and answering within `timeout_s`, or Expired saying what is missing."""
    try:
        async with asyncio.timeout(timeout_s):
            await wait_until_ready(gateway)
            await wait_for_answer(gateway, model_name)
    except TimeoutError:
        why = await asyncio.to_thread(_ask, gateway, "GET", "/readyz", None, PROBE_TIMEOUT_S)
        said = f"{why.status} {why.text}" if why.status else "nothing"
        raise Expired(f"not ready within {timeout_s:g} s; /readyz answers: {said}") from None


def _ask(gateway: Gateway, method: str, path: str, body: str | None, timeout_s: float) -> Reply:
    headers = {"Authorization": f"Bearer {gateway.canary}"} if gateway.canary else {}
    if body:
        headers["Content-Type"] = "application/json"
    try:
        with closing(gateway.connect(timeout_s)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Reply(response.status, response.read().decode(errors="replace")[:500])
    except (OSError, http.client.HTTPException):
        return Reply(0, "")
