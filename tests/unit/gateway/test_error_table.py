"""The documented errors, row by row: what provokes them, and their status, type and code."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from diptych.core.errors import Lost, Overloaded
from diptych.gateway import app, body
from diptych.gateway.deadlines import TIMEOUT_HEADER, Deadlines
from diptych.gateway.errors import POISON, HttpError, envelope, headers
from diptych.gateway.images import UNSUPPORTED
from diptych.gateway.tenancy.desk import Actor, Wish
from diptych.gateway.tenancy.keys import ApiKey, Limits, Scope
from diptych.gateway.tenancy.office import Office, Plan, open_office
from diptych.text.markers import Marker

EOS = Marker.EOS
PATH = "/v1/chat/completions"
BY = Actor("tester", "here")
INVALID = "invalid_request_error"
USER = {"role": "user", "content": "u"}


def picture(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"messages": [{"role": "user", "content": [part]}]}


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> str:
    sizes = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return data_url(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sizes + b"\x08\x02\0\0\0\0\0\0\0")


def schema(schema: object) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"response_format": form}


@dataclass(frozen=True)
class Row:
    """One way to provoke an error with fields or a body, and what is said then."""

    name: str
    code: str
    fields: dict[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 400
    kind: str = INVALID
    param: str | None = None
    message: str = ""  # some of it

    def __str__(self) -> str:
        return self.name


DEEP = b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}"
ROWS = [
    Row("no JSON", "invalid_json", content=b'{"model": ', message="at byte 10"),
    Row("NaN", "invalid_json", content=b'{"temperature": NaN}', message="at byte"),
    Row("infinity", "invalid_json", content=b'{"temperature": Infinity}', message="at byte"),
    Row("a number beyond all", "invalid_json", content=b'{"temperature": 1e999}'),
    Row("no UTF-8", "invalid_json", content=b'{"model": "\xff"}'),
    Row("a lone surrogate", "invalid_json", content=b'{"model": "\\ud83d"}', message="at byte"),
    Row("a BOM", "invalid_json", content=b"\xef\xbb\xbf{}", message="at byte 0"),
    Row("two documents", "invalid_json", content=b"{} {}", message="at byte 3"),
    Row("deep nesting", "invalid_json", content=DEEP, message="128"),
    Row("no object", "invalid_type", content=b"[]"),
    Row("a missing field", "missing_required_parameter", {"messages": None}, param="messages"),
    Row("a wrong type", "invalid_type", {"temperature": "1"}, param="temperature"),
    Row("too hot", "invalid_value", {"temperature": 3}, param="temperature"),
    Row("less than nothing", "invalid_value", {"max_tokens": -1}, param="max_tokens"),
    Row("nothing", "invalid_value", {"max_tokens": 0}, param="max_tokens"),
    Row("no mass", "invalid_value", {"top_p": 0}, param="top_p"),
    Row("no choice", "invalid_value", {"n": 0}, param="n"),
    Row("an unsupported field", "unsupported_parameter", {"functions": []}, param="functions"),
    Row("a legacy field", "unsupported_parameter", {"guided_json": {}}, message="structured_outp"),
    Row(
        "conflicting fields",
        "conflicting_parameters",
        {"regex": "a", "ebnf": "b"},
        param="ebnf",
    ),
    Row("an odd conversation", "invalid_messages", {"messages": []}, param="messages"),
    Row(
        "too long a prompt",
        "context_length_exceeded",
        {"max_tokens": 510},
        param="messages",
        message="This model's maximum context length is 512 tokens. However, you requested 5",
    ),
    Row(
        "a schema that cannot be enforced",
        "invalid_schema",
        schema({"type": "array", "uniqueItems": True}),
        param="response_format.json_schema.schema.uniqueItems",
        message="uniqueItems",
    ),
    Row("a broken pattern", "invalid_schema", {"regex": "("}),
    Row("a broken grammar", "invalid_schema", {"ebnf": "root ::= ("}),
    Row(
        "a bad tool",
        "invalid_tools",
        {"tools": [{"type": "function", "function": {"name": "a.b"}}]},
        param="tools[0].function.name",
    ),
    Row(
        "no image",
        "invalid_image",
        picture(data_url(b"text")),
        param="messages[0].content[0].image_url",
        message=UNSUPPORTED,
    ),
    Row("bad base64", "invalid_image", picture("data:image/png;base64,!")),
    Row("too large an image", "image_too_large", picture(png(30_000, 30_000))),
    Row("an odd scheme", "unsupported_image_url", picture("gopher://x/y")),
    Row("a remote image", "unsupported_image_url", picture("https://example.com/a.png")),
    Row(
        "an unknown model",
        "model_not_found",
        {"model": "x"},
        status=404,
        param="model",
        message="The model `x` does not exist or you do not have access to it.",
    ),
    Row(
        "a media type",
        "unsupported_media_type",
        content=b"x=1",
        headers={"content-type": "application/x-www-form-urlencoded"},
        status=415,
    ),
    Row(
        "a content encoding",
        "unsupported_media_type",
        content=b"x",
        headers={"content-type": "application/json", "content-encoding": "gzip"},
        status=415,
    ),
    Row(
        "a large body",
        "request_too_large",
        content=b"{}",
        headers={"content-length": str(body.MAX_BODY_BYTES + 1)},
        status=413,
    ),
    Row(
        "a capability that is off",
        "not_implemented",
        {"task": "title"},
        status=501,
        kind="server_error",
    ),
    Row(
        "an image without an encoder",
        "not_implemented",
        picture(png(9, 9)),
        status=501,
        kind="server_error",
    ),
]


def check(reply: httpx.Response, status: int, kind: str, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    said = reply.json()
    assert said.keys() == {"error"}
    error: dict[str, Any] = said["error"]
    assert error.keys() == {"message", "type", "param", "code", "request_id"}
    assert (error["type"], error["code"]) == (kind, code)
    assert error["request_id"] == reply.headers["x-request-id"]
    assert 0 < len(error["message"]) <= 1000
    if status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1
        assert int(reply.headers["retry-after-ms"]) >= 1
    return error


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_wrong_request_gets_its_row(serve: Any, row: Row, stream: bool) -> None:
    site = serve("x", EOS)
    if row.content is not None:
        sent = {"content-type": "application/json", **row.headers}
        reply = await site.http.post(PATH, content=row.content, headers=sent)
    else:
        fields = {"stream": stream, **row.fields}
        reply = await site.http.post(PATH, json=site.body(**fields), headers=row.headers)
    error = check(reply, row.status, row.kind, row.code)
    assert row.param is None or error["param"] == row.param
    assert row.message in error["message"]
    assert site.hops.wants == []  # nobody behind the gateway was bothered
    assert (row.status == 501) is (reply.headers.get("x-should-retry") == "false")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v2/chat/completions", 404, "unknown_url"),
        ("POST", "/v1/embeddings", 404, "endpoint_not_supported"),
        ("DELETE", PATH, 405, "method_not_allowed"),
    ],
)
async def test_a_wrong_path_or_method_gets_its_row(
    serve: Any, method: str, path: str, status: int, code: str
) -> None:
    reply = await serve("x", EOS).http.request(method, path)
    check(reply, status, INVALID, code)


Fault = Callable[[Any], None]


def failing(stage: str, *errors: Exception) -> Fault:
    return lambda site: site.hops.failures[stage].extend(errors)


def holding(stage: str) -> Fault:
    return lambda site: site.hops.holds.add(stage)


def unheard(site: Any) -> None:
    site.fleet = None


def draining(site: Any) -> None:
    site.traffic.is_draining = True


HASTY = Deadlines(queue_s=0.05, first_token_s=0.05)


@pytest.mark.parametrize(
    ("fault", "sent", "status", "kind", "code"),
    [
        (failing("prefill", *[KeyError("secret")] * 3), {}, 500, "server_error", "internal_error"),
        (unheard, {}, 503, "overloaded_error", "no_capacity"),
        (failing("place", Overloaded("full")), {}, 503, "overloaded_error", "no_capacity"),
        (failing("place", Overloaded("twice", code=POISON)), {}, 503, "server_error", POISON),
        (draining, {}, 503, "overloaded_error", "draining"),
        (holding("queue"), {}, 503, "overloaded_error", "queue_timeout"),
        (failing("prefill", *[Lost("gone")] * 3), {}, 503, "server_error", "worker_lost"),
        (holding("prefill"), {}, 504, "timeout_error", "upstream_timeout"),
        (holding("first"), {TIMEOUT_HEADER: "0.05"}, 504, "timeout_error", "upstream_timeout"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_failure_of_ours_gets_its_row(
    serve: Any,
    fault: Fault,
    sent: dict[str, str],
    status: int,
    kind: str,
    code: str,
    stream: bool,
) -> None:
    site = serve("one two", EOS, deadlines=None if sent else HASTY)
    fault(site)
    reply = await site.http.post(PATH, json=site.body(stream=stream), headers=sent)
    error = check(reply, status, kind, code)
    assert "secret" not in error["message"] and "KeyError" not in error["message"]
    retried = {"worker_lost": "true", POISON: "false"}
    assert reply.headers.get("x-should-retry") == retried.get(code)
    await site.pipeline.close()


async def test_a_worker_that_dies_once_is_no_error(serve: Any) -> None:
    site = serve("one two", EOS)
    site.hops.failures["prefill"] = [Lost("gone")]
    assert (await site.ask()).status_code == 200


async def test_an_upload_that_stalls_gets_its_row() -> None:
    with pytest.raises(HttpError) as caught:
        await body.read({}, lambda: asyncio.sleep(60), silence_s=0.01)  # type: ignore[arg-type]
    said = envelope(caught.value, "req_1")["error"]
    assert caught.value.http_status == 408
    assert (said["type"], said["code"]) == ("timeout_error", "request_timeout")
    assert headers(caught.value)["connection"] == "close"


async def test_a_client_that_went_away_is_told_nothing(serve: Any, visit: Any) -> None:
    site = serve("one two", EOS)
    site.hops.holds = {"queue"}
    client = visit(site)
    await site.hops.reached("queue")
    client.leave()
    await client.over()
    assert client.sent == []


# Behind the door


@asynccontextmanager
async def open_here(folder: Path) -> AsyncIterator[Office]:
    office = await open_office(Plan(folder, b"cluster secret"))
    working = asyncio.create_task(office.clerk.run())
    try:
        yield office
        await office.clerk.settled()
    finally:
        working.cancel()
        await asyncio.wait([working])
        await office.close()


@dataclass(frozen=True)
class Door:
    """A gateway that wants keys."""

    site: Any
    office: Office
    http: httpx.AsyncClient

    async def ask(self, key: str | None, **fields: Any) -> httpx.Response:
        sent = {} if key is None else {"authorization": f"Bearer {key}"}
        return await self.http.post(PATH, json=self.site.body(**fields), headers=sent)

    async def create(self, *scopes: Scope, **fields: Any) -> tuple[ApiKey, str]:
        wish = Wish("n", scopes=scopes or (Scope.INFERENCE,), **fields)
        return await self.office.desk.create(BY, wish)


@pytest.fixture
async def door(serve: Any, tmp_path: Path) -> AsyncIterator[Door]:
    site = serve("one two", EOS)
    async with open_here(tmp_path) as office:
        parts = (site.served, site.traffic, site.pipeline, lambda: True, office.door)
        transport = httpx.ASGITransport(app.build(*parts), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            yield Door(site, office, http)


async def test_a_wrong_key_gets_its_row_whatever_is_wrong_with_it(door: Door) -> None:
    key, text = await door.create()
    _, other = await door.create()
    await door.office.desk.revoke(BY, key.id)
    said = []
    for wrong in (None, "sk-nonsense", text, other[:-1] + ("x" if other[-1] != "x" else "y")):
        reply = await door.ask(wrong, model=7)  # whatever is wrong with the body
        said.append(check(reply, 401, "authentication_error", "invalid_api_key"))
        assert reply.headers["www-authenticate"] == "Bearer"
    assert len({error["message"] for error in said}) == 1


async def test_a_key_that_may_not_gets_its_row(door: Door) -> None:
    _, usage = await door.create(Scope.USAGE_READ)
    _, others = await door.create(models=("another",))
    for key in (usage, others):
        check(await door.ask(key), 403, "permission_error", "insufficient_permissions")


async def test_a_used_up_quota_gets_its_row(door: Door) -> None:
    _, key = await door.create(limits=Limits(tokens_per_day=5))
    reply = await door.ask(key, max_tokens=50)
    check(reply, 402, "insufficient_quota", "insufficient_quota")
    assert reply.headers["x-should-retry"] == "false"


async def test_too_many_requests_get_their_row(door: Door) -> None:
    _, key = await door.create(limits=Limits(requests_per_min=1))
    assert (await door.ask(key)).status_code == 200
    error = check(await door.ask(key), 429, "rate_limit_error", "rate_limit_exceeded")
    assert "requests per minute" in error["message"]


async def test_a_conflict_gets_its_row() -> None:
    said = envelope(HttpError(409, "conflict", "x"), "req_1")["error"]
    assert (said["type"], said["code"]) == ("conflict_error", "conflict")


async def test_checks_come_in_their_order(door: Door) -> None:
    """Size, key, rate, JSON, schema, model, semantics, context."""
    _, key = await door.create(limits=Limits(requests_per_min=6))
    large = {"content-length": str(body.MAX_BODY_BYTES + 1)}
    reply = await door.http.post(PATH, content=b"{", headers=large)
    check(reply, 413, INVALID, "request_too_large")
    reply = await door.http.post(PATH, content=b"{")
    check(reply, 401, "authentication_error", "invalid_api_key")
    bearer = {"authorization": f"Bearer {key}"}
    reply = await door.http.post(PATH, content=b"{", headers=bearer)
    check(reply, 400, INVALID, "invalid_json")
    long = {"messages": [{"role": "user", "content": "word " * 2000}]}
    later = {**long, "logit_bias": {"960": 1}}
    check(await door.ask(key, model="x", n=0, **later), 400, INVALID, "invalid_value")
    check(await door.ask(key, model="x", **later), 404, INVALID, "model_not_found")
    error = check(await door.ask(key, **later), 400, INVALID, "invalid_value")
    assert error["param"] == "logit_bias"
    check(await door.ask(key, **long), 400, INVALID, "context_length_exceeded")
    assert (await door.ask(key)).status_code == 200
    reply = await door.http.post(PATH, content=b"{", headers=bearer)
    check(reply, 429, "rate_limit_error", "rate_limit_exceeded")
