"""The page at `/` as files over HTTP. What it does is seen in tests/e2e/test_playground.py."""

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from diptych.gateway import playground
from diptych.testing.gateway import scripted_gateway

TINY = Path(__file__).parents[2] / "golden" / "tiny-text"
PATHS = sorted(route.path for route in playground.routes())
TYPES = {
    "/": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Links(HTMLParser):
    """What a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and value:
                self.found.add(value)
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        scripted_gateway(TINY) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url) as http,
    ):
        yield http


async def test_every_file_has_its_type_and_our_headers(http: httpx.AsyncClient) -> None:
    assert PATHS[:2] == ["/", "/playground/answer.js"]
    for path in PATHS:
        reply = await http.get(path)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == TYPES[path.rpartition(".")[2]]
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-request-id"].startswith("req_")
        policy = dict(
            part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"


async def test_head_tells_of_a_file_without_sending_it(http: httpx.AsyncClient) -> None:
    for path in PATHS:
        whole, told = await http.get(path), await http.head(path)
        assert (told.status_code, told.content) == (200, b"")
        for name in ("etag", "content-type", "content-length"):
            assert told.headers[name] == whole.headers[name]


@pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', "*"])
async def test_a_known_file_is_not_sent_again(http: httpx.AsyncClient, form: str) -> None:
    for path in PATHS:
        etag = (await http.get(path)).headers["etag"]
        again = await http.get(path, headers={"if-none-match": form.format(etag)})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == etag


async def test_another_version_is_sent(http: httpx.AsyncClient) -> None:
    reply = await http.get("/", headers={"if-none-match": '"x"'})
    assert reply.status_code == 200
    assert len({(await http.get(path)).headers["etag"] for path in PATHS}) == len(PATHS)


async def test_the_page_loads_nothing_but_its_own_files(http: httpx.AsyncClient) -> None:
    page = (await http.get("/")).text
    links = Links(page)
    assert links.inline == []
    assert "<script>" not in page
    assert "<style" not in page
    wanted = links.found
    for path in PATHS:
        text = (await http.get(path)).text
        if path.endswith(".js"):
            wanted |= {f"playground/{name}" for name in re.findall(r'from "\./(.+?)"', text)}
            assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
        if path.endswith(".css"):
            assert "url(" not in text
            assert "@import" not in text
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert {f"/{link}" for link in wanted} | {"/"} == set(PATHS)


async def test_nothing_but_its_files_is_there(http: httpx.AsyncClient) -> None:
    for path in ("/playground/", "/playground/index.html", "/playground/..%2fapp.py", "/page"):
        reply = await http.get(path)
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "unknown_url"
    reply = await http.post("/")
    assert reply.status_code == 405
    assert reply.json()["error"]["code"] == "method_not_allowed"


async def test_an_operator_can_switch_it_off() -> None:
    async with (
        scripted_gateway(TINY, has_page=False) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url) as http,
    ):
        for path in PATHS:
            reply = await http.get(path)
            assert reply.status_code == 404
            error = reply.json()["error"]
            assert (error["code"], error["type"]) == ("unknown_url", "invalid_request_error")
            assert error["request_id"] == reply.headers["x-request-id"]
