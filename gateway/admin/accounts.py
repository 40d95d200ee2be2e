"""Routes about usage, the audit log, and deletion."""

import time
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from diptych.core.errors import BadRequest
from diptych.gateway.admin.bodies import Deletion
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Site
from diptych.gateway.tenancy.audit import PAGE, Act
from diptych.gateway.tenancy.desk import Actor, stamp
from diptych.gateway.tenancy.usage import GroupBy, Total

Name = Annotated[str, Query(max_length=128)]


def routes(site: Site, entrance: Entrance) -> APIRouter:
    """Under /admin/v1."""
    router = APIRouter(tags=["accounts"])
    office = site.office
    Reader = Annotated[Actor, Depends(entrance.reader)]
    Writer = Annotated[Actor, Depends(entrance.writer)]
    Accountant = Annotated[Actor, Depends(entrance.accountant)]

    @router.get("/usage", response_model=dict[str, list[Total]])
    async def usage(
        by: Accountant,
        first: Annotated[date | None, Query(alias="from")] = None,
        last: Annotated[date | None, Query(alias="to")] = None,
        group_by: GroupBy = "key",
    ) -> dict[str, Any]:
        """Tokens and requests from one UTC day to another (default: the last 30), summed up."""
        today = datetime.now(UTC).date()
        last = last or today
        first = first or min(last, today) - timedelta(days=min(29, (last - date.min).days))
        await office.clerk.settled()  # what was used a moment ago counts
        totals = await office.usage.totals(first.isoformat(), last.isoformat(), group_by)
        return {"data": totals}

    @router.get("/audit")
    async def audit(
        by: Reader,
        first: Annotated[AwareDatetime | None, Query(alias="from")] = None,
        last: Annotated[AwareDatetime | None, Query(alias="to")] = None,
        actor: Name = "",
        action: Name = "",
        cursor: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> dict[str, Any]:
        """Who did what, oldest first; `cursor` of one page asks for the next."""
        entries = await office.audit.page(
            from_s=0 if first is None else first.timestamp(),
            to_s=float("inf") if last is None else last.timestamp(),
            actor=actor,
            action=action,
            after=cursor,
        )
        data = [
            {"seq": e.seq, "time": stamp(e.time_s), **asdict(e.act), "hash": e.hash}
            for e in entries
        ]
        more = entries[-1].seq if len(entries) == PAGE else None
        return {"data": data, "cursor": more, "first_broken": await office.audit.first_broken()}

    @router.post("/audit/purge")
    async def purge(by: Writer) -> dict[str, Any]:
        """Delete what is older than the retention; a signed checkpoint keeps the chain."""
        records, entries = await office.clerk.expire()
        await office.audit.add(Act(by.id, by.origin, "retention.run", after={"entries": entries}))
        return {"usage_records": records, "audit_entries": entries}

    @router.post("/data/delete")
    async def delete(by: Writer, body: Deletion) -> dict[str, Any]:
        """Delete the usage records of a key or a user; totals stay. The answer is the receipt."""
        if bool(body.key_id) == bool(body.user_id):
            raise BadRequest("give key_id or user_id", code="missing_required_parameter")
        if body.key_id:
            whose = {"key_id": body.key_id}
        else:
            whose = {"user_hash": office.door.hash_user(body.user_id or "")}
        await office.clerk.settled()  # what is written next must not come after the deletion
        deleted = await office.usage.forget(**whose)
        receipt = {**whose, "usage_records": deleted, "time": stamp(time.time())}
        await office.audit.add(
            Act(by.id, by.origin, "data.delete", next(iter(whose.values())), after=receipt)
        )
        return receipt

    return router
