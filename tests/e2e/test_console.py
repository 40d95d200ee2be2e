"""The operator's console in a real browser, before a real router whose members only pretend."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from diptych.core.phases import Role
from diptych.gateway.admin import app as admin_app
from diptych.gateway.admin.entrance import Entrance
from diptych.gateway.admin.site import Levels, Site
from diptych.gateway.admin.supervisor import control_token
from diptych.gateway.admin.watch import Watch
from diptych.gateway.decisions import Decisions
from diptych.gateway.server import Server, bind
from diptych.gateway.tenancy.desk import Actor, Wish
from diptych.gateway.tenancy.keys import Scope
from diptych.gateway.tenancy.office import Office, Plan, open_office
from diptych.router.client import Drain
from diptych.supervisor.control import Control
from diptych.supervisor.ports import FreePorts
from diptych.supervisor.scaling import Scaled
from diptych.telemetry.logs import request_id_var
from diptych.testing.browser import Browser, Page, browser
from diptych.testing.fleet import Pretender, member, router
from diptych.testing.stores import running_store

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = b"the cluster secret of these tests"
EVIL = "<img src=x onerror='window.hacked = 1'>"
BY = Actor("tester", "here")


@dataclass
class Console:
    """What stands behind the page."""

    base_url: str
    office: Office
    decisions: Decisions
    decode: Pretender
    gateway: Pretender
    orders: list[Mapping[Role, int]]

    async def key(self, scope: Scope) -> str:
        return (await self.office.desk.create(BY, Wish("operator", scopes=(scope,))))[1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    orders: list[Mapping[Role, int]] = []

    async def scale(counts: Mapping[Role, int]) -> Scaled:
        orders.append(counts)
        return Scaled(("decode-2",), (), {"prefill": 1, "decode": 2})

    control = f"127.0.0.1:{FreePorts()()}"
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        await enter(Control(control, control_token(SECRET), scale))
        store = await enter(running_store(tmp_path / "cache"))
        address = await enter(router())
        await enter(member(address, "prefill-1"))
        decode = await enter(member(address, "decode-1"))
        gateway = await enter(member(address, "gateway-1"))
        office = await open_office(Plan(tmp_path, SECRET))
        stack.push_async_callback(office.close)
        decisions = Decisions()
        site = Site(
            office=office,
            fleet=lambda: None,
            is_connected=lambda: True,
            on_load=lambda: None,
            settings={},
            version=lambda: "fp_1",
            routers=lambda: (address,),
            supervisor=control,
            control=control_token(SECRET),
            stores=lambda: (store.address,),
            decisions=lambda: decisions.newest(20),
            gateway_id="gateway-1",
        )
        watch = Watch(site, period_s=0.1)
        entrance = Entrance(office.admin_authentication, office.peers, is_local=True)
        server = Server(admin_app.build(site, entrance, Levels(), watch), None)
        listener = bind("127.0.0.1", 0)
        serving = asyncio.create_task(server.serve([listener]))
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Console(base_url, office, decisions, decode, gateway, orders)
        watch.close()
        server.should_exit = True
        await serving


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Browser, console: Console) -> AsyncIterator[Page]:
    page = await chromium.page()
    await page.look(1280, 900)
    await page.open(console.base_url)
    await says(page, "#live", "ready")
    yield page
    assert page.errors == []
    await page.close()


async def says(page: Page, selector: str, text: str) -> None:
    await page.until(f"document.querySelector({selector!r})?.innerText.includes({text!r})")


def row(name: str) -> str:
    return f"tr[data-id={name}]"


async def log_in(page: Page, key: str) -> None:
    await page.write("#key", key)
    await page.click("#access .primary")


async def test_pools_show_what_each_worker_carries_as_it_changes(
    page: Page, console: Console
) -> None:
    assert await page.text("#model") == "m · 512 tokens"
    await says(page, ".pool[data-role=decode] header", "1 of 1 ready, 0 placed")
    shown = await page.text(row("decode-1"))
    for part in ("decode-1", "ready", "decode-1:1", "pid 77", "life c0ffee", "0 run", "0/4"):
        assert part in shown
    console.decode.report(
        running=3, waiting=2, pulls=1, free_slots=1, free_blocks=60, cached_blocks=20,
        query_tokens_total=400, hit_tokens_total=100, tokens_total=1000,
    )  # fmt: skip
    await says(page, row("decode-1"), "3 run, 2 wait, 1 hand over")
    shown = await page.text(row("decode-1"))
    for part in ("3/4", "40/100", "25%"):
        assert part in shown
    await says(page, ".pool[data-role=decode]", "1 desired")
    used = f"document.querySelector('{row('decode-1')} [data-of=slots] .used').style.width"
    assert await page.evaluate(used) == "75%"
    await says(page, "#overview", "100 of 400")
    console.decode.report(tokens_total=4000)
    await page.until(
        "Number(document.querySelectorAll('.tile strong')[2].innerText.replace(',', '')) > 0"
    )


async def test_a_worker_that_leaves_is_gone_and_the_reason_is_said(
    page: Page, console: Console
) -> None:
    async with member(await router_of(page), "decode-2"):
        await says(page, ".pool[data-role=decode]", "decode-2")
    await page.until(f"!document.querySelector('{row('decode-2')}')")


async def router_of(page: Page) -> str:
    title = await page.evaluate("document.querySelector('#live').title")
    found: str = title.split()[3]
    return found


async def test_draining_asks_for_a_key_then_drains_and_can_be_undone(
    page: Page, console: Console
) -> None:
    await page.click(f"{row('decode-1')} .acts button")
    await says(page, "#notice", "admin:write")
    assert await page.evaluate("document.activeElement.id") == "key"
    assert console.decode.heard == []
    await log_in(page, await console.key(Scope.ADMIN_WRITE))
    await says(page, "#live", "ready")
    await page.click(f"{row('decode-1')} .acts button")
    await says(page, row("decode-1"), "drained")
    assert [wish.is_on for wish in console.decode.heard] == [True]
    await says(page, "#live", "not ready")
    await page.until(f"!document.querySelector('{row('decode-1')} .acts button').disabled")
    await page.click(f"{row('decode-1')} .acts button")
    await says(page, row("decode-1"), "ready")
    assert console.decode.heard[-1] == Drain(False)
    kept = await page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]")
    assert kept == [1, 0, ""]


async def test_a_key_that_may_only_look_is_told_so(page: Page, console: Console) -> None:
    await page.click("#ask-key")
    await log_in(page, await console.key(Scope.ADMIN_READ))
    await says(page, "#live", "ready")
    await page.click(f"{row('decode-1')} .acts button")
    await says(page, "#notice", "admin:write")
    assert console.decode.heard == []


async def test_this_gateway_is_drained_by_its_button(page: Page, console: Console) -> None:
    await page.click("#ask-key")
    await log_in(page, await console.key(Scope.ADMIN_WRITE))
    await page.click(f"{row('gateway-1')} .acts button")
    await says(page, "#live", "draining")
    assert console.office.door.is_held
    await page.click(f"{row('gateway-1')} .acts button")
    await says(page, "#live", "ready")
    assert not console.office.door.is_held


async def test_a_pool_is_scaled_by_stepping_and_applying(page: Page, console: Console) -> None:
    await page.click("#ask-key")
    await log_in(page, await console.key(Scope.ADMIN_WRITE))
    decode = ".pool[data-role=decode] .stepper"
    await page.click(f"{decode} [aria-label='One decode worker more']")
    assert await page.text(f"{decode} output") == "2"
    assert console.orders == []
    await page.click(f"{decode} button:last-child")
    await says(page, "#notice", "Done: added decode-2.")
    assert console.orders == [{Role.DECODE: 2}]


async def test_decisions_and_stores_are_shown_and_no_text_becomes_markup(
    page: Page, console: Console
) -> None:
    request_id_var.set("req_0123456789abcdef")
    console.decisions.heard("prefill", "prefill-1", (EVIL, "1 of 1 workers had room"))
    console.decisions.heard("decode", EVIL, ())
    await says(page, "#decisions", "1 of 1 workers had room")
    await says(page, "#decisions", "onerror")
    await says(page, "#stores", "free 62.0 MiB of 64.0 MiB")
    assert await page.evaluate("window.hacked") is None
    assert await page.evaluate("document.querySelectorAll('#decisions img').length") == 0


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("is_dark", [False, True])
async def test_nothing_is_wider_than_the_window_in_both_schemes(
    page: Page, width: int, is_dark: bool
) -> None:
    await page.look(width, 900, is_dark=is_dark)
    wide: Any = await page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(17, 17, 24)" if is_dark else "rgb(246, 246, 249)")
