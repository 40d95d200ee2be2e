"""In front of the endpoints: who asks, may they, and is it too often? Before any body is read."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from diptych.core.errors import Broken, DiptychError, Overloaded
from diptych.core.request import RETENTIONS
from diptych.gateway.body import check_size
from diptych.gateway.errors import ClientGone, is_anthropic
from diptych.gateway.playground import PREFIX
from diptych.gateway.tenancy.authentication import Authentication
from diptych.gateway.tenancy.book import Book
from diptych.gateway.tenancy.clerk import Clerk
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.meters import Rate, Reading
from diptych.gateway.tenancy.peers import Peers
from diptych.gateway.tenancy.refusals import kind_of
from diptych.gateway.tenancy.visit import IN_SCOPE, Visit

HEADERS_IN_SCOPE = "diptych.headers"  # a dict that the front adds to whatever answer is sent
OPEN_PATHS = frozenset(
    ("/", "/livez", "/health", "/readyz", "/ping", "/version", "/openapi.json", "/metrics")
)  # and the files of the page at /

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Door:
    """Lets a request through to an ASGI application as a Visit, and sees it out."""

    def __init__(
        self,
        authentication: Authentication,
        book: Book,
        clerk: Clerk,
        peers: Peers,
        user_key: bytes,
        routes: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._authentication = authentication
        self._book = book
        self._clerk = clerk
        self._peers = peers
        self._user_key = user_key
        self._routes = routes  # pattern of paths, retention class
        self.is_held = False  # an operator lets nobody in

    async def pass_through(self, app: App, scope: Message, receive: Receive, send: Send) -> None:
        """Do what `app` does, for those who may."""
        if scope["type"] != "http" or is_open(scope["path"]):
            return await app(scope, receive, send)
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        check_size(headers)
        caller = await self._authentication.identify(headers, self._peers.address_of(scope))
        path = scope["path"]
        caller = replace(caller, retention=retention_of(path, caller.retention, self._routes))
        visit = Visit(caller, self._book, scope["request_id"], path, self.hash_user)
        scope[IN_SCOPE] = visit
        self._clerk.open(visit)
        try:
            try:
                await visit.enter()
                if self.is_held:
                    raise Overloaded("this gateway drains", code="draining", retry_after_s=5)
                visit.permit(Scope.INFERENCE)
            finally:
                scope[HEADERS_IN_SCOPE] = limit_headers(visit, is_anthropic(path))
            await app(scope, receive, _Watched(visit, scope, send))
            visit.finish = visit.finish or "done"
        except DiptychError as error:
            visit.fail(error)
            raise
        except (ClientGone, asyncio.CancelledError):
            visit.finish = visit.finish or "aborted"
            raise
        finally:
            if not visit.finish:
                visit.fail(Broken("a bug behind the door"))
            self._clerk.close(visit)
        return None

    def hash_user(self, user: str) -> str:
        """What usage records keep of a user_id."""
        return hmac.digest(self._user_key, user.encode(), "sha256")[:16].hex()


def retention_of(path: str, of_key: str, routes: Sequence[tuple[str, str]]) -> str:
    """Of cached KV: the key's class, unless that is the usual one and a route has its own."""
    if of_key != RETENTIONS[0]:
        return of_key
    return next((kept for pattern, kept in routes if fnmatchcase(path, pattern)), of_key)


class _Watched:
    """A send that tells the visit what has left, and adds the state of limits to the headers."""

    def __init__(self, visit: Visit, scope: Message, send: Send) -> None:
        self._visit = visit
        self._scope = scope
        self._send = send

    async def __call__(self, message: Message) -> None:
        visit = self._visit
        if message["type"] == "http.response.start":
            visit.status = message["status"]
            is_theirs = is_anthropic(visit.endpoint)
            self._scope[HEADERS_IN_SCOPE] = limit_headers(visit, is_theirs)
        elif visit.first_byte_ms is None:
            visit.first_byte_ms = round(visit.age_s * 1000)
        await self._send(message)


def is_open(path: str) -> bool:
    """Whether anybody may ask for it."""
    return path in OPEN_PATHS or path.startswith(PREFIX)


def limit_headers(visit: Visit, is_theirs: bool = False) -> dict[str, str]:
    """The tightest of the caller's limits, as clients read it (api.md 2.3)."""
    headers: dict[str, str] = {}
    for kind, what in (("rpm", "requests"), ("tpm", "tokens")):
        rates = [r for r in visit.readings.values() if kind_of(r.meter) == kind]
        if not rates:
            continue
        tightest = min(rates, key=lambda reading: reading.remaining)
        assert isinstance(tightest.meter, Rate)
        if is_theirs:
            names = [
                f"anthropic-ratelimit-{what}-{part}" for part in ("limit", "remaining", "reset")
            ]
            reset = _moment(tightest)
        else:
            names = [f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset")]
            reset = duration(tightest.reset_us)
        values = (str(tightest.meter.limit), str(tightest.remaining), reset)
        headers |= dict(zip(names, values, strict=True))
    return headers


def duration(time_us: int) -> str:
    """As OpenAI spells it: `6m0s`, `1.2s`, `20ms`."""
    ms = -(-time_us // 1000)
    if ms < 1000:
        return f"{ms}ms"
    minutes, ms = divmod(ms, 60_000)
    seconds = f"{ms / 1000:g}s"
    return f"{minutes}m{seconds}" if minutes else seconds


def _moment(reading: Reading) -> str:
    then = datetime.now(UTC) + timedelta(microseconds=reading.reset_us)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")
