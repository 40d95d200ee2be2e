"""Constraints as requests state them: what is read, what is refused, and where it is named."""

import itertools
import json
import random
from collections.abc import Mapping

import pytest

from diptych.core.errors import BadRequest
from diptych.text.constraints import (
    Constraint,
    Kind,
    Tool,
    build,
    check,
    from_response_format,
    from_structured_outputs,
    from_tools,
)

SCHEMA = "response_format.json_schema.schema"


def of_schema(schema: object) -> Constraint:
    """The constraint of a chat request with this schema."""
    body = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    found = from_response_format(body)
    assert found is not None
    return found


def refusal(constraint: Constraint) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        check(constraint)
    assert caught.value.code == "invalid_schema"
    return caught.value


def test_plain_text_is_no_constraint() -> None:
    assert from_response_format(None) is None
    assert from_response_format({"type": "text"}) is None
    assert from_structured_outputs(None) is None


@pytest.mark.parametrize(
    ("body", "kind", "source"),
    [
        ({"type": "json_object"}, Kind.JSON_OBJECT, ""),
        ({"type": "regex", "regex": "a+"}, Kind.REGEX, "a+"),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, Kind.EBNF, 'root ::= "a"'),
        (
            {"type": "json_schema", "json_schema": {"schema": {"type": "null", "title": "é"}}},
            Kind.JSON_SCHEMA,
            '{"type":"null","title":"é"}',
        ),
    ],
)
def test_each_response_format_is_read(body: object, kind: Kind, source: str) -> None:
    found = from_response_format(body)
    assert found is not None
    assert (found.kind, found.source) == (kind, source)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (7, "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, SCHEMA),
        (
            {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1.5}},
            "response_format.json_schema.strict",
        ),
        ({"type": "regex"}, "response_format.regex"),
        ({"type": "regex", "regex": 3}, "response_format.regex"),
    ],
)
def test_a_malformed_response_format_names_the_field(body: object, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        from_response_format(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"json": '{"type": "null"}'}, Kind.JSON_SCHEMA),
        ({"json": {}, "regex": None, "json_object": False}, Kind.JSON_SCHEMA),
        ({"json": True, "disable_any_whitespace": True}, Kind.JSON_SCHEMA),
        ({"choice": ["yes", "no"]}, Kind.CHOICE),
        ({"json_object": True, "whitespace_pattern": "[ \\n]*"}, Kind.JSON_OBJECT),
    ],
)
def test_each_structured_output_is_read(body: object, kind: Kind) -> None:
    found = from_structured_outputs(body)
    assert found is not None
    assert found.kind == kind
    check(found)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"json": {}, "regex": "a"},
        {"guided_json": {}},
        {"choice": []},
        {"choice": ["a"] * 1001},
        {"choice": ["a", 1]},
        {"json": "{"},
        {"json": {"a": float("nan")}},
        {"json": {"title": "\ud800"}},
        {"regex": "a", "whitespace_pattern": " "},
        {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
    ],
    ids=str,
)
def test_a_malformed_structured_output_is_refused(body: object) -> None:
    with pytest.raises(BadRequest):
        from_structured_outputs(body)


@pytest.mark.parametrize("pattern", ["x", " {0,21}", "( \\n)*", "\\s"])
def test_a_white_space_pattern_is_bounded_and_only_white_space(pattern: str) -> None:
    found = from_structured_outputs({"json": {}, "whitespace_pattern": pattern})
    assert found is not None
    assert refusal(found).param == "structured_outputs.whitespace_pattern"


def test_a_constraint_survives_the_wire_and_equals_itself_from_elsewhere() -> None:
    one = from_structured_outputs({"json": {"type": "null"}})
    assert one is not None
    assert Constraint.unpack(one.pack()) == one == of_schema({"type": "null"})
    assert Constraint.unpack(one.pack()).param == "structured_outputs.json"
    assert one.key == of_schema({"type": "null"}).key != of_schema({"type": "string"}).key


REFUSED: Mapping[str, tuple[object, str]] = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
    "not": ({"not": {}}, ".not"),
    "if": ({"if": {}, "then": {}}, ".if"),
    "contains": ({"properties": {"a": {"contains": {}}}}, ".properties.a.contains"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, ".dependentRequired"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, ".unevaluatedProperties"),
    "a misspelt keyword": ({"type": "integer", "maximun": 3}, ".maximun"),
    "nullable": ({"type": "string", "nullable": True}, ".nullable"),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, ".multipleOf"),
    "pattern with a length": (
        {"items": {"type": "string", "pattern": "^a+$", "maxLength": 2}},
        ".items.maxLength",
    ),
    "look-ahead": ({"type": "string", "pattern": "^(?=b)a"}, ".pattern"),
    "an unknown format": ({"type": "string", "format": "iri"}, ".format"),
    "enum beside a bound": ({"enum": [1, 5], "minimum": 3}, ".minimum"),
    "$ref beside a bound": ({"$ref": "#", "maximum": 3}, ".maximum"),
    "$ref to elsewhere": ({"$ref": "https://example.com/a"}, ".$ref"),
    "$ref to nothing": ({"$ref": "#/$defs/a"}, ".$ref"),
    "allOf of several": ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, ".allOf"),
    "anyOf beside properties": ({"anyOf": [{}], "properties": {}}, ".properties"),
    "oneOf that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ".oneOf"),
    "minProperties": ({"type": "object", "minProperties": 2}, ".minProperties"),
    "maxProperties": (
        {"properties": {"a": {}, "b": {}}, "maxProperties": 1},
        ".maxProperties",
    ),
    "two patternProperties": (
        {"patternProperties": {"a": {}, "b": {}}, "additionalProperties": False},
        ".patternProperties",
    ),
    "items as a list": ({"type": "array", "items": [{}]}, ""),
    "an unknown type": ({"type": "float"}, ".type"),
    "a negative length": ({"type": "string", "minLength": -1}, ".minLength"),
    "a bound that is no number": ({"type": "integer", "minimum": "3"}, ".minimum"),
    "a schema that is no schema": ({"properties": {"a": 3}}, ".properties.a"),
    "nothing satisfies": ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
    "false": (False, ""),
    "a required property that cannot be": (
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        "",
    ),
    "a pure cycle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "",
    ),
    "a cycle through anyOf": ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, ""),
    "recursion without an end": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_t62_t68_what_cannot_be_enforced_is_refused_with_its_path(name: str) -> None:
    schema, path = REFUSED[name]
    assert refusal(of_schema(schema)).param == SCHEMA + path


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "x", "$id": "y", "title": "t", "examples": [], "x-order": 3},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "null"}}, "default": None},
        {"type": "string", "anyOf": [{"format": "date"}, {"const": "never"}]},
        {
            "oneOf": [
                {"$ref": "#/definitions/cat"},
                {"properties": {"kind": {"const": "dog"}}, "required": ["kind"], "type": "object"},
            ],
            "discriminator": {"propertyName": "kind"},
            "definitions": {
                "cat": {
                    "type": "object",
                    "properties": {"kind": {"enum": ["cat", "lion"]}},
                    "required": ["kind"],
                }
            },
        },
        {"type": ["string", "null"], "pattern": "^[ab]{2,3}$", "minLength": 2, "maxLength": 3},
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        {"type": "object", "propertyNames": {"pattern": "^x"}, "minProperties": 1},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "integer"}}},
    ],
    ids=json.dumps,
)
def test_annotations_and_what_can_be_proved_are_accepted(schema: object) -> None:
    check(of_schema(schema))


def deep(levels: int) -> object:
    schema: object = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_sizes_are_limited_before_anything_recurses() -> None:
    check(of_schema(deep(60)))
    assert refusal(of_schema(deep(70))).message.startswith("schemas nest")
    many = {"properties": {f"p{i}": {} for i in range(5_001)}, "additionalProperties": False}
    for schema, why in (
        (deep(100_000), "nested too deep"),
        (many, "at most 5000 properties"),
        ({"enum": list(range(10_001))}, "at most 10000 enum values"),
        ({"title": "x" * 262_144}, "at most 262144 bytes"),
    ):
        with pytest.raises(BadRequest, match=why):
            of_schema(schema)


def test_t62_long_chains_of_references_are_followed_without_recursion() -> None:
    names = [f"n{i}" for i in range(4_000)]
    random.Random("long chains").shuffle(names)
    defs: dict[str, object] = {
        a: {"type": "array", "items": {"$ref": f"#/$defs/{b}"}}
        for a, b in itertools.pairwise(names)
    }
    defs[names[-1]] = {"type": "null"}
    check(of_schema({"$ref": f"#/$defs/{names[0]}", "$defs": defs}))


STRICT = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "near": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {}}]},
    },
}


def test_strict_tools_close_every_object() -> None:
    found = from_tools([Tool("f", STRICT, is_strict=True)])
    assert found is not None
    ((name, schema),) = json.loads(found.source)["tools"]
    assert name == "f"
    assert schema["required"] == ["city", "near"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["near"]["anyOf"][1]["additionalProperties"] is False
    check(found)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "array", "items": {}}, ""),
        ({"type": "object", "properties": {"a": {"enum": [1]}}}, ".properties.a"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, ".properties.a.items"),
        ({"type": "object", "additionalProperties": True}, ".additionalProperties"),
        (
            {"type": "object", "properties": {"a": {"oneOf": [{"type": "null"}]}}},
            ".properties.a.oneOf",
        ),
        ({"type": "object", "properties": {"a": {"type": "null", "not": {}}}}, ".properties.a.not"),
        ({"type": "object", "required": ["b"]}, ".required"),
    ],
)
def test_strict_tools_refuse_by_path(schema: object, path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        from_tools([Tool("free", None), Tool("f", schema, is_strict=True)])
    assert caught.value.param == f"tools[1].function.parameters{path}"


def test_tools_that_are_not_allowed_are_left_out_and_still_count_in_paths() -> None:
    bad = {"type": "object", "properties": {"a": {"enum": [1]}}}
    tools = [Tool("f", STRICT, is_strict=True), Tool("g", None), Tool("h", bad, is_strict=True)]
    assert from_tools(tools, allowed=["g"]) is None
    found = from_tools(tools, forced=True, allowed=["f", "g"])
    assert found is not None
    assert [name for name, _ in json.loads(found.source)["tools"]] == ["f", "g"]
    with pytest.raises(BadRequest) as caught:
        from_tools(tools, allowed=["h"])
    assert caught.value.param == "tools[2].function.parameters.properties.a"


def test_a_parameter_that_cannot_be_enforced_is_named() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}}
    found = from_tools([Tool("f", schema, is_strict=True)])
    assert found is not None
    assert refusal(found).param == "tools[0].function.parameters.properties.a.pattern"


def test_tools_constrain_only_when_there_is_something_to_enforce() -> None:
    free, answer = Tool("g", {"type": "object"}), of_schema({"type": "null"})
    assert from_tools([]) is None
    assert from_tools([], answer=answer) == answer
    assert from_tools([free]) is None
    for found in (
        from_tools([free], answer=answer),
        from_tools([free], forced=True),
        from_tools([free, Tool("h", None)], only="h", opened=True),
    ):
        assert found is not None
        assert build(found).rules
    with pytest.raises(BadRequest):
        from_tools([free], only="other")
    with pytest.raises(BadRequest):
        from_tools([], forced=True)


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ({"type": "structural_tag"}, ""),
        ({"type": "structural_tag", "format": {"type": "token"}}, ".format.type"),
        ({"type": "structural_tag", "format": {"type": "regex"}}, ".format.pattern"),
        (
            {
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],
                "triggers": ["<b"],
            },
            ".tags[0].begin",
        ),
        (
            {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": "<a>",
                    "content": {"type": "json_schema", "json_schema": {"not": {}}},
                    "end": "</a>",
                },
            },
            ".format.content.json_schema.not",
        ),
    ],
)
def test_structural_tags_refuse_by_path(tag: object, path: str) -> None:
    found = from_response_format(tag)
    assert found is not None
    assert refusal(found).param == f"response_format{path}"
