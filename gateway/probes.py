"""Small GET endpoints: health, readiness, version, models."""

import platform
from collections.abc import Callable
from datetime import UTC, datetime

import orjson
from fastapi import Request, Response

from diptych import __version__
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import visit_of
from diptych.gateway.traffic import Traffic

AGAIN = {"retry-after": "1"}


class Probes:
    """Answers from what the gateway knows; nobody is asked."""

    def __init__(
        self,
        served: Served,
        traffic: Traffic,
        is_connected: Callable[[], bool],
        is_held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._served = served
        self._traffic = traffic
        self._is_connected = is_connected
        self._is_held = is_held

    async def live(self, request: Request) -> Response:
        """The event loop answers; workers do not matter: a restart would cure nothing there."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """A request can be served from end to end."""
        reasons = self._not_ready()
        if not reasons:
            return _json({"status": "ready"})
        body = {"status": "not_ready", "reasons": reasons}
        return _json(body, status=503, headers=AGAIN)

    async def ping(self, request: Request) -> Response:
        """The same for those who look at the status only."""
        return Response(status_code=503, headers=AGAIN) if self._not_ready() else Response()

    async def version(self, request: Request) -> Response:
        """What runs here."""
        body = {
            "version": __version__,
            "git": self._served.policy.git_commit or None,
            "model": self._served.model_name,
            "api": "1",
            "build": {"python": platform.python_version(), "model": self._served.version},
        }
        return _json(body)

    async def models(self, request: Request) -> Response:
        """The model by all of its names, or nothing for a key that may not use it."""
        caller = visit_of(request.scope).caller
        name = self._served.model_name
        may_use = not caller.models or name in caller.models
        aliases = (a.name for a in self._served.policy.aliases if not a.is_pattern)
        names = [name, *aliases] if may_use else []
        if not _is_anthropic(request):
            return _json({"object": "list", "data": [self._model(name) for name in names]})
        ends = {"first_id": names[0], "last_id": names[-1]} if names else {}
        data = [self._their_model(name) for name in names]
        return _json({"data": data, "has_more": False, "first_id": None, "last_id": None} | ends)

    async def model(self, request: Request) -> Response:
        """The model, by any name of it; it may contain slashes."""
        name = request.path_params["name"]
        visit_of(request.scope).choose(self._served.check_model(name))
        return _json(self._their_model(name) if _is_anthropic(request) else self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        root = self._served.model_name
        aliases = [alias.name for alias in self._served.policy.aliases]
        return {
            "id": name,
            "object": "model",
            "created": self._served.created,
            "owned_by": "diptych",
            "max_model_len": self._served.max_model_len,
            "root": root,
            "parent": None,
            "aliases": aliases if name == root else [],
        }

    def _their_model(self, name: str) -> dict[str, object]:
        """As Anthropic's clients read it."""
        created = datetime.fromtimestamp(self._served.created, UTC)
        moment = created.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"type": "model", "id": name, "display_name": name, "created_at": moment}

    def _not_ready(self) -> list[dict[str, str]]:
        if self._traffic.is_draining or self._is_held():
            return [{"component": "gateway", "reason": "draining"}]
        fleet = self._served.fleet()
        if fleet is None or not self._is_connected():
            return [{"component": "router", "reason": "not heard"}]
        if fleet.ready:
            return []
        return [{"component": "fleet", "reason": reason} for reason in fleet.reasons or ("empty",)]


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")
