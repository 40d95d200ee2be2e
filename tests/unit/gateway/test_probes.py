"""Small endpoints: what is asked often and answered at once."""

from typing import Any

import pytest

from diptych import __version__
from diptych.gateway.policy import Policy
from diptych.text.markers import Marker

EOS = Marker.EOS
PROBES = ["/livez", "/health", "/readyz", "/ping", "/version"]


@pytest.mark.parametrize("path", PROBES)
async def test_probes_answer_head_as_get(serve: Any, path: str) -> None:
    site = serve("x", EOS)
    got, head = await site.http.get(path), await site.http.head(path)
    assert got.status_code == head.status_code == 200
    assert got.headers["content-type"] == head.headers["content-type"] if path != "/ping" else True


async def test_ping_is_readiness_without_a_body(serve: Any) -> None:
    site = serve("x", EOS)
    reply = await site.http.get("/ping")
    assert (reply.status_code, reply.content) == (200, b"")
    site.is_connected = False
    reply = await site.http.get("/ping")
    assert (reply.status_code, reply.content) == (503, b"")
    assert reply.headers["retry-after"] == "1"


async def test_the_version_names_model_and_build_and_no_host(serve: Any) -> None:
    site = serve("x", EOS, policy=Policy(git_commit="0123abc"))
    body = (await site.http.get("/version")).json()
    assert body.keys() == {"version", "git", "model", "api", "build"}
    assert (body["version"], body["model"], body["api"]) == (__version__, "tiny", "1")
    assert body["git"] == "0123abc"
    assert body["build"].keys() == {"python", "model"}
    unknown = (await serve("x", EOS).http.get("/version")).json()
    assert unknown["git"] is None


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/chat/completions", {"POST"}),
        ("/v1/models", {"GET", "HEAD"}),
        ("/v1/models/tiny", {"GET", "HEAD"}),
        *((path, {"GET", "HEAD"}) for path in PROBES),
    ],
)
@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_other_methods_are_told_which_are_allowed(
    serve: Any, method: str, path: str, allowed: set[str]
) -> None:
    site = serve("x", EOS)
    cross = {"origin": "https://example.com", "access-control-request-method": "POST"}
    reply = await site.http.request(method, path, headers=cross)
    assert reply.status_code == 405
    assert set(reply.headers["allow"].split(", ")) == allowed
    assert reply.json()["error"]["code"] == "method_not_allowed"
    assert not any(name.startswith("access-control") for name in reply.headers)
