"""Who may call the admin API: a key with an admin scope, always for what changes something.

While no key was ever made, reading is free on loopback. A page in the operator's browser cannot
call: it may send no JSON across origins, and a name that points here is not ours.
"""

import re
from urllib.parse import urlsplit

from fastapi import Request

from diptych.core.errors import BadRequest
from diptych.gateway.errors import HttpError
from diptych.gateway.tenancy import refusals
from diptych.gateway.tenancy.authentication import Authentication
from diptych.gateway.tenancy.desk import Actor
from diptych.gateway.tenancy.keys import ANONYMOUS, Principal, Scope
from diptych.gateway.tenancy.peers import Peers

_LITERAL = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*|localhost", re.IGNORECASE)
_NO_KEY_YET = (
    "This needs an API key with the scope `admin:write`. Make the first one with "
    "`diptych keys create --name operator --scope admin:write`."
)


class Entrance:
    """Turns a request into an actor, or away."""

    def __init__(self, authentication: Authentication, peers: Peers, is_local: bool) -> None:
        self._authentication = authentication
        self._peers = peers
        self._is_local = is_local

    async def reader(self, request: Request) -> Actor:
        """May see everything but secrets."""
        return await self._admit(request, Scope.ADMIN_READ)

    async def writer(self, request: Request) -> Actor:
        """May change things."""
        return await self._admit(request, Scope.ADMIN_WRITE)

    async def accountant(self, request: Request) -> Actor:
        """May see who used what."""
        return await self._admit(request, Scope.USAGE_READ)

    async def _admit(self, request: Request, scope: Scope) -> Actor:
        if self._is_local and not _LITERAL.fullmatch(_host(request)):
            raise BadRequest("The Host header must be an address or localhost.", param="host")
        media_type = request.headers.get("content-type", "application/json").partition(";")[0]
        if media_type.strip().lower() != "application/json":
            text = "The content type must be application/json."
            raise HttpError(415, "unsupported_media_type", text)
        address = self._peers.address_of(request.scope)
        caller = await self._authentication.identify(dict(request.headers), address)
        _check(caller, scope)
        return Actor(caller.key_id, address)


def _check(caller: Principal, scope: Scope) -> None:
    if scope in caller.scopes:
        return
    if caller is ANONYMOUS:
        raise HttpError(401, "invalid_api_key", _NO_KEY_YET, {"www-authenticate": "Bearer"})
    raise refusals.no_scope(scope)


def _host(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""
