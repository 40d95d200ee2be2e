"""An office in a fresh folder, and a gateway behind its door."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.gateway import app
from diptych.gateway.tenancy.desk import Actor, Wish
from diptych.gateway.tenancy.keys import Limits, Scope
from diptych.gateway.tenancy.office import Office, Plan, open_office

BY = Actor("tester", "here")
Open = Callable[..., Awaitable[Office]]


@pytest.fixture
async def open_office_here(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens offices with their clerks at work, and closes them."""
    async with contextlib.AsyncExitStack() as stack:

        async def build(**fields: Any) -> Office:
            office = await open_office(Plan(tmp_path, b"cluster secret", **fields))
            working = asyncio.create_task(office.clerk.run())

            async def close() -> None:
                working.cancel()
                await asyncio.wait([working])
                await office.close()

            stack.push_async_callback(close)
            return office

        yield build


@pytest.fixture
async def office(open_office_here: Open) -> Office:
    return await open_office_here()


class Guarded:
    """A scripted gateway with a door."""

    def __init__(self, site: Any, office: Office) -> None:
        self.site = site
        self.office = office
        self.app = app.build(
            site.served,
            site.traffic,
            site.pipeline,
            lambda: site.is_connected,
            office.door,
        )
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    async def key(self, *scopes: Scope, **fields: Any) -> str:
        """The text of a new key; limits are fields, too."""
        names = Limits.__dataclass_fields__.keys() & fields.keys()
        limits = Limits(**{name: fields.pop(name) for name in names})
        wish = Wish("n", scopes=scopes or (Scope.INFERENCE,), limits=limits, **fields)
        return (await self.office.desk.create(BY, wish))[1]

    async def ask(self, key: str | None, **fields: Any) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        body = self.site.body(**fields)
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.fixture
async def guard(serve: Any, office: Office) -> AsyncIterator[Callable[..., Guarded]]:
    """Builds a gateway of scripted engines behind the office's door."""
    made: list[Guarded] = []

    def build(*segments: Any, behind: Office = office, **fields: Any) -> Guarded:
        made.append(Guarded(serve(*segments, **fields), behind))
        return made[-1]

    yield build
    for guarded in made:
        await guarded.http.aclose()
    await office.clerk.settled()
    assert not office.clerk.visits
