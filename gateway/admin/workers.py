"""Routes about workers: who is there, draining one, changing how many there are."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from diptych.core.errors import BadRequest, DiptychError, NotFound
from diptych.gateway.admin import snapshots, supervisor
from diptych.gateway.admin.bodies import DrainBody, ScaleBody
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Site
from diptych.gateway.errors import HttpError
from diptych.gateway.tenancy.audit import Act
from diptych.gateway.tenancy.desk import Actor
from diptych.router import client as router

ORDER_S = 5.0
_NO_SUPERVISOR = "Only a platform that `diptych up` started can be scaled here."


def routes(site: Site, entrance: Entrance) -> APIRouter:
    """Under /admin/v1."""
    made = APIRouter(tags=["workers"])
    audit = site.office.audit
    Reader = Annotated[Actor, Depends(entrance.reader)]
    Writer = Annotated[Actor, Depends(entrance.writer)]

    @made.get("/workers")
    async def workers(by: Reader) -> dict[str, Any]:
        """Every member of the fleet: role, load, last word."""
        fleet = site.fleet()
        return {"data": [snapshots.member(each) for each in fleet.members] if fleet else []}

    @made.get("/workers/{worker_id}")
    async def worker(by: Reader, worker_id: str) -> dict[str, Any]:
        """One member."""
        return _find(site.fleet(), worker_id)

    @made.post("/workers/{worker_id}/drain")
    async def drain(by: Writer, worker_id: str, body: DrainBody | None = None) -> dict[str, Any]:
        """Give a worker nothing new; after `limit_s` it hands back what it still has (0: never)."""
        limit_s = (body or DrainBody()).limit_s
        return await order(by, worker_id, router.Drain(True, limit_s))

    @made.post("/workers/{worker_id}/undrain")
    async def undrain(by: Writer, worker_id: str) -> dict[str, Any]:
        """Give a worker requests again."""
        return await order(by, worker_id, router.Drain(False))

    async def order(by: Actor, worker_id: str, wish: router.Drain) -> dict[str, Any]:
        known = ",".join(site.routers())
        fleet = await router.drain(known, worker_id, wish, ORDER_S, dial=site.dial)
        action = "worker.drain" if wish.is_on else "worker.undrain"
        after = {"limit_s": wish.limit_s} if wish.is_on else None
        await audit.add(Act(by.id, by.origin, action, worker_id, after=after))
        return _find(fleet, worker_id)

    @made.post("/scale")
    async def scale(by: Writer, body: ScaleBody) -> dict[str, Any]:
        """Change how many workers there are; answers when it is done, and no request fails."""
        counts = body.model_dump(exclude_none=True)
        if not site.supervisor:
            raise HttpError(501, "not_implemented", _NO_SUPERVISOR)
        if not counts:
            raise BadRequest("give prefill, decode or hybrid", code="missing_required_parameter")
        try:
            done = await supervisor.scale(site.supervisor, site.control, counts)
        except DiptychError as error:
            act = Act(by.id, by.origin, "scale", result=error.code, after=counts)
            await audit.add(act)
            raise
        await audit.add(Act(by.id, by.origin, "scale", after=counts))
        return done

    return made


def _find(fleet: router.Fleet | None, worker_id: str) -> dict[str, Any]:
    for each in fleet.members if fleet else ():
        if each.join.member_id == worker_id:
            return snapshots.member(each)
    raise NotFound("There is no such worker.", code="worker_not_found")
