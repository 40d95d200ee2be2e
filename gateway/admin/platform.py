"""Routes about this gateway, and the requests that run."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from diptych.core.errors import NotFound
from diptych.gateway.admin import snapshots
from diptych.gateway.admin.bodies import LogLevel
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Levels, Site
from diptych.gateway.errors import HttpError
from diptych.gateway.tenancy.audit import Act
from diptych.gateway.tenancy.desk import Actor
from diptych.gateway.tenancy.visit import Visit

_LATER = (
    ("POST", "/workers/{worker_id}/restart"),
    ("POST", "/role"),
    ("GET", "/operations/{operation_id}"),
    ("POST", "/cache/flush"),
    ("PATCH", "/config"),
)


def routes(site: Site, entrance: Entrance, levels: Levels) -> APIRouter:
    """Under /admin/v1."""
    router = APIRouter(tags=["platform"])
    clerk, door, audit = site.office.clerk, site.office.door, site.office.audit
    Reader = Annotated[Actor, Depends(entrance.reader)]
    Writer = Annotated[Actor, Depends(entrance.writer)]

    @router.get("/status")
    async def status(by: Reader) -> dict[str, Any]:
        """Pools, queues, this gateway's drain."""
        return snapshots.status(site, site.fleet())

    @router.post("/gateway/drain")
    async def drain(by: Writer) -> dict[str, bool]:
        """Take nothing new here; what runs goes on. /readyz answers 503."""
        return await hold(by, True)

    @router.post("/gateway/undrain")
    async def undrain(by: Writer) -> dict[str, bool]:
        """Take requests again."""
        return await hold(by, False)

    async def hold(by: Actor, is_held: bool) -> dict[str, bool]:
        before, door.is_held = {"draining": door.is_held}, is_held
        after = {"draining": is_held}
        action = "gateway.drain" if is_held else "gateway.undrain"
        site.on_load()
        await audit.add(Act(by.id, by.origin, action, before=before, after=after))
        return after

    @router.get("/requests")
    async def requests(
        by: Reader,
        state: Annotated[str, Query(pattern="^(|encode|prefill|decode)$")] = "",
        key: Annotated[str, Query(max_length=128)] = "",
    ) -> dict[str, Any]:
        """Requests that run: sizes and stages, never text."""
        running = [_visit(visit) for visit in clerk.visits.values()]
        return {
            "data": [
                each
                for each in running
                if (not state or each["state"] == state) and (not key or each["key_id"] == key)
            ]
        }

    @router.post("/requests/{request_id}/abort")
    async def abort(by: Writer, request_id: str) -> dict[str, Any]:
        """End a request; its client is told."""
        visit = clerk.visits.get(request_id)
        if visit is None or not visit.abort():
            raise NotFound("No such request generates now.", code="request_not_found")
        await audit.add(Act(by.id, by.origin, "request.abort", request_id))
        return {"id": request_id, "aborted": True}

    @router.get("/config")
    async def config(by: Reader) -> dict[str, Any]:
        """The settings of this gateway; secrets are masked. None can be changed while it runs."""
        return {"settings": site.settings, "reloadable": []}

    @router.post("/log-level")
    async def log_level(by: Writer, body: LogLevel) -> dict[str, Any]:
        """Say more or less."""
        before = {"level": levels.set(body.logger, body.level, body.ttl_s)}
        after = {"level": body.level, "ttl_s": body.ttl_s}
        await audit.add(Act(by.id, by.origin, "log.level", body.logger, before=before, after=after))
        return {"logger": body.logger, **after}

    for method, path in _LATER:
        handler, described = _not_here(entrance), {"parameters": _parameters(path)}
        router.add_api_route(path, handler, methods=[method], name=path, openapi_extra=described)
    return router


def _parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _not_here(entrance: Entrance) -> Any:
    async def not_here(by: Annotated[Actor, Depends(entrance.writer)]) -> None:
        """Not in this deployment: answers 501."""
        raise HttpError(501, "not_implemented", "This deployment cannot do that by this API.")

    return not_here


def _visit(visit: Visit) -> dict[str, Any]:
    spent = visit.spent
    state = "decode" if spent.completion else "prefill" if visit.max_new else "encode"
    return {
        "id": visit.request_id,
        "state": state,
        "key_id": visit.caller.key_id,
        "tenant": visit.caller.tenant,
        "endpoint": visit.endpoint,
        "model": visit.model,
        "age_s": round(visit.age_s, 3),
        "prompt_tokens": spent.prompt,
        "completion_tokens": spent.completion,
        "max_new": visit.max_new,
    }
