"""An admin API over a scripted gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.config import addresses_of
from diptych.core.phases import Role
from diptych.gateway import app
from diptych.gateway.admin import app as admin_app
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Levels, Site
from diptych.gateway.admin.watch import Watch
from diptych.gateway.tenancy.desk import Actor, Wish
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.office import Plan, open_office
from diptych.router.client import Fleet, Join, Load, Member
from diptych.text.markers import Marker

BY = Actor("tester", "here")
FLEET = Fleet(
    members=(
        Member(Join("prefill-1", Role.PREFILL, num_slots=4), Load(running=1), ready=True, leases=2),
        Member(Join("decode-1", Role.DECODE), Load(draining=True, running=1), False, "draining"),
    ),
    ready=True,
    model="tiny",
    queued=3,
)


class Admin:
    """An operator's view: `http` is the admin port, `public` the other one."""

    def __init__(
        self, site: Any, office: Any, *, router: str = "", stores: Any = (), **neighbours: Any
    ) -> None:
        self.site = site
        self.office = office
        self.fleet: Fleet | None = FLEET
        self.loads: list[bool] = []
        self.levels = Levels()
        parts = Site(
            office=office,
            fleet=lambda: self.fleet,
            is_connected=lambda: True,
            on_load=lambda: self.loads.append(office.door.is_held),
            settings={"port": 8000, "cluster_secret": "**********"},
            version=lambda: "fp_1",
            routers=lambda: addresses_of(router),
            stores=lambda: stores,
            **neighbours,
        )
        self.watch = Watch(parts, period_s=0.1)
        entrance = Entrance(office.admin_authentication, office.peers, is_local=True)
        self.app = admin_app.build(parts, entrance, self.levels, self.watch)
        public = app.build(site.served, site.traffic, site.pipeline, lambda: True, office.door)
        self.http = _client(self.app, "http://127.0.0.1:9")
        self.public = _client(public, "http://gateway")

    async def key(self, *scopes: Scope) -> str:
        return (await self.office.desk.create(BY, Wish("n", scopes=scopes)))[1]

    async def log_in(self, *scopes: Scope) -> None:
        key = await self.key(*(scopes or (Scope.ADMIN_WRITE, Scope.INFERENCE)))
        self.http.headers["authorization"] = f"Bearer {key}"

    async def call(self, method: str, path: str, status: int = 200, **fields: Any) -> Any:
        """The body of an answer with the expected status."""
        reply = await self.http.request(method, f"/admin/v1{path}", **fields)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def ask(self, key: str | None = None, **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        body = self.site.body(**fields)
        return await self.public.post("/v1/chat/completions", json=body, headers=headers)


def _client(application: Any, url: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=url)


@pytest.fixture
def admin_with(serve: Any, tmp_path: Path) -> Any:
    """Makes an admin API with more fields of Site, as an async context."""
    return partial(_open, serve, tmp_path)


@pytest.fixture
async def admin(admin_with: Any) -> AsyncIterator[Admin]:
    async with admin_with() as made:
        yield made


@asynccontextmanager
async def _open(serve: Any, folder: Path, **neighbours: Any) -> AsyncIterator[Admin]:
    office = await open_office(Plan(folder, b"cluster secret"))
    working = asyncio.create_task(office.clerk.run())
    made = Admin(serve("one two three four", Marker.EOS), office, **neighbours)
    yield made
    made.watch.close()
    made.levels.close()
    await made.http.aclose()
    await made.public.aclose()
    working.cancel()
    await asyncio.wait([working])
    await office.close()
