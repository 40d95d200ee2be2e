"""Which constraint a request states, and what its prompt says."""

from typing import Any

import pytest

from diptych.core.constraint import Constraint, Kind
from diptych.core.errors import BadRequest
from diptych.gateway.chat.constraint import constraint_of, schema_of
from diptych.gateway.chat.request import ChatRequest, read_chat


def request(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "x"}]
    return read_chat({"model": "tiny", "messages": messages, **fields})[0]


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "text"}, "regex": "a"},
            Constraint(Kind.REGEX, "a"),
        ),
        ({"response_format": {"type": "json_object"}}, Constraint(Kind.JSON_OBJECT, "")),
        (
            {"response_format": json_schema({"type": "null"}, strict=False)},
            Constraint(Kind.JSON_SCHEMA, '{"type":"null"}'),
        ),
        ({"response_format": {"type": "regex", "regex": "a+"}}, Constraint(Kind.REGEX, "a+")),
        (
            {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
            Constraint(Kind.EBNF, 'root ::= "a"'),
        ),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Constraint(Kind.CHOICE, '["a","b"]')),
        (
            {"structured_outputs": {"json": "{}", "disable_any_whitespace": True}},
            Constraint(Kind.JSON_SCHEMA, "{}", ""),
        ),
        ({"regex": "a+"}, Constraint(Kind.REGEX, "a+")),
        ({"ebnf": 'root ::= "a"'}, Constraint(Kind.EBNF, 'root ::= "a"')),
    ],
)
def test_every_spelling_states_its_constraint(
    fields: dict[str, Any], expected: Constraint | None
) -> None:
    assert constraint_of(request(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        (
            {"response_format": {"type": "json_object"}, "regex": "a"},
            "conflicting_parameters",
            "regex",
        ),
        ({"structured_outputs": {"regex": "a"}, "ebnf": "b"}, "conflicting_parameters", "ebnf"),
        ({"regex": "a", "ignore_eos": True}, "conflicting_parameters", "ignore_eos"),
        (
            {"response_format": json_schema({}, name="no spaces")},
            "invalid_value",
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "invalid_value",
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "invalid_value",
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {}}, "invalid_value", "response_format.type"),
        ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "invalid_value",
            "structured_outputs",
        ),
    ],
)
def test_a_constraint_that_makes_no_sense_is_refused_by_its_path(
    fields: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        constraint_of(request(**fields))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "regex", "regex": "a"}}, None),
        ({"structured_outputs": {"json": {}}}, None),
        ({"response_format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"response_format": json_schema({"type": "object", "title": "Größe", "required": []})},
            {"type": "object", "title": "Größe", "required": []},
        ),
    ],
)
def test_the_prompt_states_the_schema_of_a_response_format(
    fields: dict[str, Any], schema: object
) -> None:
    assert schema_of(request(**fields)) == schema
