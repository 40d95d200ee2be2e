"""The description of the API is true: of its routes, its requests and its answers."""

from typing import Any

import jsonschema
import pytest
from starlette.routing import Route

from diptych.gateway.openapi.document import document
from diptych.gateway.openapi.operations import operations
from diptych.gateway.policy import Policy
from diptych.gateway.signpost import RENDER, methods_of
from diptych.text.markers import Marker

EOS = Marker.EOS
BASES = ("/v1", "/beta/v1", "/anthropic/v1", "/beta", "")
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def described() -> Any:
    return document(operations(has_render=True))


def schema_of(described: Any, method: str, path: str, status: int) -> dict[str, Any]:
    """Of an answer's body, with all that it refers to."""
    found = described["paths"][path][method]["responses"][str(status)]
    schema = found["content"]["application/json"]["schema"]
    return {**schema, "components": described["components"]}


def check(described: Any, method: str, path: str, reply: Any) -> None:
    schema = schema_of(described, method, path, reply.status_code)
    jsonschema.validate(reply.json(), schema)


def routes_of(site: Any) -> set[tuple[str, str]]:
    """Method and path of each route, wherever below the base it stands."""
    front: Any = site.app
    return {
        (method, route.path.replace(":path", ""))
        for route in front._app._pages.routes
        if isinstance(route, Route)
        for method in methods_of(route)
    }


def test_it_is_valid_json_schema(described: Any) -> None:
    assert described["openapi"] == "3.1.0"
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [o["operationId"] for path in described["paths"].values() for o in path.values()]
    assert len(names) == len(set(names))


def test_it_refers_to_nothing_that_is_not_there(described: Any) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [each for inner in value.values() for each in references(inner)]
        return (
            [each for inner in value for each in references(inner)]
            if (isinstance(value, list))
            else []
        )

    for reference in references(described):
        name = reference.removeprefix("#/components/schemas/")
        assert name in described["components"]["schemas"]


@pytest.mark.parametrize("has_render", [False, True])
def test_each_route_is_described_and_nothing_else(serve: Any, has_render: bool) -> None:
    site = serve("x", EOS, policy=Policy(allow_render=has_render))
    routes = routes_of(site)
    table = {(o.method, o.path) for o in operations(has_render=has_render)}
    assert table <= routes
    names = {path for _, path in table}
    for _method, path in routes - table:
        if path == "/" or path.startswith("/playground/"):
            continue  # for people
        stem = next(path.removeprefix(base) for base in BASES if path.startswith(base))
        is_alias = any(f"{base}{stem}" in names for base in BASES)
        assert is_alias, path
    assert (("POST", RENDER) in table) == has_render


async def test_it_is_served_unless_switched_off(serve: Any) -> None:
    reply = await serve("x", EOS).http.get("/openapi.json")
    assert reply.json() == document(operations(has_render=False), {"task"})
    reply = await serve("x", EOS, policy=Policy(allow_openapi=False)).http.get("/openapi.json")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")


async def test_a_field_that_is_switched_off_is_not_described(serve: Any) -> None:
    for is_allowed in (False, True):
        site = serve("x", EOS, policy=Policy(allow_tasks=is_allowed))
        schemas = (await site.http.get("/openapi.json")).json()["components"]["schemas"]
        for name in ("ChatRequest", "chat__messages__UserMessage"):
            assert ("task" in schemas[name]["properties"]) == is_allowed


@pytest.mark.parametrize(
    ("path", "wish", "output"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, ("a", Marker.END_THINK, "b")),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1},
            ("a", Marker.END_THINK, "b"),
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "thinking": {"type": "disabled"}, "return_token_ids": True},
            ("b",),
        ),
        ("/v1/completions", {"prompt": "a"}, ("b",)),
        (
            "/v1/completions",
            {"prompt": ["a", "b"], "echo": True, "logprobs": 2, "prompt_logprobs": 1, "n": 2},
            ("b",),
        ),
        ("/v1/completions", {"prompt": [5], "max_tokens": 0, "echo": True}, ("b",)),
        ("/v1/responses", {"input": "Hello"}, ("a", Marker.END_THINK, "b")),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}, ("a", Marker.END_THINK, "b")),
        ("/v1/messages/count_tokens", {"messages": HELLO}, ("b",)),
        ("/tokenize", {"prompt": "a"}, ("b",)),
        ("/v1/tokenize", {"messages": HELLO, "return_token_strs": True}, ("b",)),
        ("/detokenize", {"tokens": [5, 6]}, ("b",)),
        (RENDER, {"messages": HELLO}, ("b",)),
    ],
    ids=str,
)
async def test_answers_look_as_described(
    serve: Any, described: Any, path: str, wish: Any, output: Any
) -> None:
    site = serve(*output, EOS, policy=Policy(allow_render=True))
    body = {"model": "tiny", **wish}
    reply = await site.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    check(described, "post", path, reply)
    request = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    jsonschema.validate(body, {**request["schema"], "components": described["components"]})
    for wrong in ({**body, "model": "other"}, {**body, "model": 5}):
        reply = await site.http.post(path, json=wrong)
        assert reply.status_code in (400, 404)
        check(described, "post", path, reply)


async def test_calls_of_tools_look_as_described(serve: Any, described: Any) -> None:
    invoked = ("<", Marker.DSML, "tool_calls>\n<", Marker.DSML, 'invoke name="look">\n</')
    closed = (Marker.DSML, "invoke>\n</", Marker.DSML, "tool_calls>")
    site = serve(Marker.END_THINK, *invoked, *closed, EOS)
    site.fleet = type(site.fleet)(
        ready=True, namespace=b"n" * 16, max_model_len=4096, block_tokens=8
    )
    body = {"model": "tiny", "messages": HELLO, "tools": [TOOL]}
    reply = await site.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["finish_reason"] == "tool_calls"
    check(described, "post", "/v1/chat/completions", reply)


async def test_probes_and_models_look_as_described(serve: Any, described: Any) -> None:
    site = serve("x", EOS)
    for path in ("/livez", "/health", "/readyz", "/version", "/v1/models", "/openapi.json"):
        check(described, "get", path, await site.http.get(path))
    check(described, "get", "/v1/models/{name}", await site.http.get("/v1/models/tiny"))
    check(described, "get", "/v1/models/{name}", await site.http.get("/v1/models/other"))
    check(described, "get", "/v1/responses/{id}", await site.http.get("/v1/responses/resp_1"))
    site.fleet = None
    check(described, "get", "/readyz", await site.http.get("/readyz"))
    assert "content" not in described["paths"]["/ping"]["get"]["responses"]["503"]


def test_bounds_have_the_names_that_json_schema_knows(described: Any) -> None:
    properties = described["components"]["schemas"]["CompletionRequest"]["properties"]
    assert {"minimum": 0, "maximum": 20, "type": "integer"} in properties["logprobs"]["anyOf"]
    assert properties["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert "title" not in properties["logprobs"] and "default" not in properties["logprobs"]


@pytest.mark.parametrize(
    ("field", "fine", "wrong"),
    [
        ("stop", ["x", ["x", "y"], None], [5, "", ["x"] * 17]),
        ("task", ["title", None], ["dance", 5]),
        ("tool_choice", ["auto", {"type": "function", "function": {"name": "x"}}], ["maybe", 5]),
        ("reasoning_effort", ["max", 30, None], ["huge", 0, 101]),
        ("top_k", [-1, 5, None], [-2, "5"]),
    ],
)
def test_values_are_described_as_they_are_read(
    described: Any, field: str, fine: list[Any], wrong: list[Any]
) -> None:
    properties = described["components"]["schemas"]["ChatRequest"]["properties"]
    validator = jsonschema.Draft202012Validator(properties[field])
    assert all(map(validator.is_valid, fine))
    assert not any(map(validator.is_valid, wrong))
