"""Small GET endpoints: health, readiness, version, models."""

from collections.abc import Callable

import orjson
from fastapi import Request, Response

from diptych import __version__
from diptych.gateway.served import Served
from diptych.gateway.tenancy.visit import visit_of
from diptych.gateway.traffic import Traffic


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
        return _json(body, status=503, headers={"retry-after": "1"})

    async def ping(self, request: Request) -> Response:
        """The same, for those who read the status alone."""
        ready = await self.ready(request)
        retry = {k: v for k, v in ready.headers.items() if k == "retry-after"}
        return Response(b"", ready.status_code, retry)

    async def version(self, request: Request) -> Response:
        """What runs here."""
        return _json({"version": __version__, "model": self._served.model_name, "api": "1"})

    async def models(self, request: Request) -> Response:
        """The list of one, or of none for a key that may not use it."""
        caller = visit_of(request.scope).caller
        may_use = not caller.models or self._served.model_name in caller.models
        return _json({"object": "list", "data": [self._model()] if may_use else []})

    async def model(self, request: Request) -> Response:
        """One model, by a name that may contain slashes."""
        name = request.path_params["name"]
        self._served.check_model(name)
        visit_of(request.scope).choose(name)
        return _json(self._model())

    def _model(self) -> dict[str, object]:
        name = self._served.model_name
        return {
            "id": name,
            "object": "model",
            "created": self._served.created,
            "owned_by": "diptych",
            "max_model_len": self._served.max_model_len,
            "root": name,
            "parent": None,
            "aliases": [],
        }

    def _not_ready(self) -> list[dict[str, str]]:
        if self._traffic.is_draining or self._is_held():
            return [{"component": "gateway", "reason": "draining"}]
        fleet = self._served.fleet()
        if fleet is None or not self._is_connected():
            return [{"component": "router", "reason": "not heard"}]
        if fleet.ready:
            return []
        return [{"component": "fleet", "reason": reason} for reason in fleet.reasons or ("empty",)]


def _json(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")
