"""Routes about keys and tenants."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header

from diptych.gateway.admin.bodies import KeyChange, KeyView, LimitsBody, MadeKey, NewKey, Rotation
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.replies import Replies
from diptych.gateway.admin.site import Site
from diptych.gateway.tenancy.desk import Actor, Wish, public
from diptych.gateway.tenancy.keys import ApiKey

IdempotencyKey = Annotated[str | None, Header()]


def routes(site: Site, entrance: Entrance) -> APIRouter:
    """Under /admin/v1."""
    router = APIRouter(tags=["keys"])
    desk, usage, replies = site.office.desk, site.office.usage, Replies()
    Reader = Annotated[Actor, Depends(entrance.reader)]
    Writer = Annotated[Actor, Depends(entrance.writer)]

    async def view(key: ApiKey) -> dict[str, Any]:
        return public(key, time.time(), (await usage.last_used()).get(key.id))

    @router.post("/keys", status_code=201, response_model=MadeKey)
    async def create(
        by: Writer, body: NewKey, idempotency_key: IdempotencyKey = None
    ) -> dict[str, Any]:
        """Make a key. `key` in the answer is its secret, shown this once."""

        async def act() -> dict[str, Any]:
            key, text = await desk.create(by, _wish(body))
            return {**await view(key), "key": text}

        question = f"create {body.model_dump_json()}"
        return await replies.once(by.id, idempotency_key, question, act)

    @router.get("/keys", response_model=dict[str, list[KeyView]])
    async def list_all(by: Reader) -> dict[str, Any]:
        """All keys, oldest first, without secrets."""
        used, now_s = await usage.last_used(), time.time()
        keys = await desk.store.all()
        return {"data": [public(key, now_s, used.get(key.id)) for key in keys]}

    @router.get("/keys/{key_id}", response_model=KeyView)
    async def read(by: Reader, key_id: str) -> dict[str, Any]:
        """One key."""
        return await view(await desk.find(key_id))

    @router.patch("/keys/{key_id}", response_model=KeyView)
    async def change(by: Writer, key_id: str, body: KeyChange) -> dict[str, Any]:
        """Change what is given of a key."""
        return await view(await desk.change(by, key_id, _changes(body)))

    @router.delete("/keys/{key_id}", response_model=KeyView)
    async def revoke(by: Writer, key_id: str) -> dict[str, Any]:
        """Refuse it from now on; its record stays."""
        return await view(await desk.revoke(by, key_id))

    @router.post("/keys/{key_id}/rotate", response_model=MadeKey)
    async def rotate(
        by: Writer, key_id: str, body: Rotation, idempotency_key: IdempotencyKey = None
    ) -> dict[str, Any]:
        """A new secret; the last one stays valid for the overlap."""

        async def act() -> dict[str, Any]:
            key, text = await desk.rotate(by, key_id, body.overlap_s)
            return {**await view(key), "key": text}

        question = f"rotate {key_id} {body.model_dump_json()}"
        return await replies.once(by.id, idempotency_key, question, act)

    @router.get("/tenants", response_model=dict[str, LimitsBody])
    async def tenants(by: Reader) -> dict[str, Any]:
        """Tenants that have limits of their own."""
        return dict(await desk.store.tenants())

    @router.put("/tenants/{tenant}", response_model=LimitsBody)
    async def set_tenant(by: Writer, tenant: str, body: LimitsBody) -> LimitsBody:
        """Limits that all keys of a tenant share."""
        await desk.set_tenant_limits(by, tenant, body.read())
        return body

    return router


def _wish(body: NewKey) -> Wish:
    expires = body.expires_at
    return Wish(
        name=body.name,
        tenant=body.tenant,
        scopes=tuple(body.scopes),
        models=tuple(body.models),
        limits=body.limits.read(),
        priority_class=body.priority_class,
        retention=body.retention,
        networks=tuple(body.networks),
        expires_s=None if expires is None else expires.timestamp(),
    )


def _changes(body: KeyChange) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in body.model_fields_set:
        value = getattr(body, name)
        match name:
            case "expires_at":
                changes["expires_s"] = None if value is None else value.timestamp()
            case "limits":
                changes[name] = value.read()
            case _:
                changes[name] = tuple(value) if isinstance(value, list) else value
    return changes
