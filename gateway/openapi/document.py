"""Operations to an OpenAPI 3.1 document."""

import re
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from diptych import __version__
from diptych.gateway.openapi.operation import Operation

_REFERENCE = "#/components/schemas/{model}"
_STREAM = {"type": "string", "description": "Server-sent events, if the request says stream: true"}
_REQUEST_ID = {"description": "Name it when you report a problem", "schema": {"type": "string"}}
_RETRY_AFTER = {"description": "Seconds to wait at least", "schema": {"type": "integer"}}


# A bound behind a validator of ours keeps pydantic's name for it.
_BOUNDS = {
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
}
_NOTHING: tuple[object, ...] = (None, "", [])


class _Generator(GenerateJsonSchema):
    """Some defaults are values of ours, which JSON has no spelling of."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Nobody needs to know: they are left out."""


def document(operations: Sequence[Operation], hidden: Collection[str] = ()) -> dict[str, Any]:
    """As it is served; `hidden`: fields of bodies that are switched off."""
    schemas = _Schemas(operations)
    for definition in schemas.definitions.values():
        for name in hidden:
            definition.get("properties", {}).pop(name, None)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _described(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Diptych", "version": __version__},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


class _Schemas:
    """Of all types that operations name; they share their definitions."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        types = [kind for operation in operations for kind in _types(operation)]
        unique = list({id(kind): kind for kind in types}.values())
        found, shared = TypeAdapter.json_schemas(
            [(id(kind), "validation", TypeAdapter(kind)) for kind in unique],
            ref_template=_REFERENCE,
            schema_generator=_Generator,
        )
        self._schemas = {key: _plain(schema) for (key, _), schema in found.items()}
        named = shared.get("$defs", {}).items()
        self.definitions: dict[str, Any] = {_name(name): _plain(each) for name, each in named}

    def of(self, kind: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._schemas[id(kind)]
        return found


def _types(operation: Operation) -> list[Any]:
    kinds = [operation.body, operation.error, *operation.replies.values()]
    return [kind for kind in kinds if kind is not None]


def _described(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "responses": _responses(operation, schemas),
        "security": [] if operation.is_open else [{"bearer": []}, {"key": []}],
    }
    if operation.body is not None:
        content = {"application/json": {"schema": schemas.of(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if names := re.findall(r"{(\w+)}", operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return described


def _responses(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in sorted(operation.errors):
        found[str(status)] = _response(status, schemas.of(operation.error))
    for status, kind in operation.replies.items():
        found[str(status)] = _response(status, None if kind is None else schemas.of(kind))
        if operation.can_stream:
            found[str(status)]["content"]["text/event-stream"] = {"schema": _STREAM}
    return dict(sorted(found.items()))


def _response(status: int, schema: dict[str, Any] | None) -> dict[str, Any]:
    headers = {"x-request-id": _REQUEST_ID}
    if status in (429, 503):
        headers["retry-after"] = _RETRY_AFTER
    found: dict[str, Any] = {"description": HTTPStatus(status).phrase, "headers": headers}
    if schema is not None:
        found["content"] = {"application/json": {"schema": schema}}
    return found


def _operation_id(operation: Operation) -> str:
    words = re.findall(r"\w+", operation.path)
    return "_".join([operation.method.lower(), *words])


def _plain(schema: Any) -> Any:
    """With names that JSON schema has, and without what tells nobody anything."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {_BOUNDS.get(name, name): _plain(value) for name, value in schema.items()}
    if isinstance(found.get("$ref"), str):
        found["$ref"] = _name(found["$ref"])
    if isinstance(found.get("title"), str):
        del found["title"]
    if "default" in found and (isinstance(found["default"], dict) or found["default"] in _NOTHING):
        del found["default"]
    return found


def _name(name: str) -> str:
    """Models of the same name are told apart by their modules; whose these are goes unsaid."""
    return name.replace("diptych__gateway__", "")
