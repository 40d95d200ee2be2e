"""The console as files over HTTP. What it does is seen in tests/e2e/test_console.py."""

import re
from typing import Any

from diptych.gateway.admin import console
from diptych.gateway.tenancy.keys import Scope

PATHS = sorted(route.path for route in console.routes())
FORBIDDEN = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|setAttribute\(.style"


async def test_the_page_and_its_files_are_open_and_lock_everything_else_out(admin: Any) -> None:
    await admin.key(Scope.INFERENCE)  # the page knows nothing: no key is needed for it
    assert PATHS[:2] == ["/", "/console/api.js"]
    for path in PATHS:
        reply = await admin.http.get(path)
        assert reply.status_code == 200
        policy = reply.headers["content-security-policy"]
        for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'"):
            assert part in policy
        assert "frame-ancestors 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        known = {"if-none-match": reply.headers["etag"]}
        assert (await admin.http.get(path, headers=known)).status_code == 304


async def test_it_loads_nothing_but_its_own_files_and_makes_no_markup(admin: Any) -> None:
    page = (await admin.http.get("/")).text
    wanted = set(re.findall(r'(?:src|href)="(.+?)"', page))
    assert "<style" not in page
    assert not re.search(r"<script>|\son\w+=|style=", page)
    for path in PATHS:
        text = (await admin.http.get(path)).text
        if path.endswith(".js"):
            wanted |= {f"console/{name}" for name in re.findall(r'from "\./(.+?)"', text)}
            assert not re.search(FORBIDDEN, text)
        if path.endswith(".css"):
            assert not re.search(r"url\(|@import", text)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert {f"/{link}" for link in wanted} | {"/"} == set(PATHS)


async def test_nothing_but_its_files_is_there(admin: Any) -> None:
    for path in ("/console/", "/console/index.html", "/console/..%2fapp.py", "/page"):
        reply = await admin.http.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")
    assert (await admin.http.post("/")).status_code == 405
