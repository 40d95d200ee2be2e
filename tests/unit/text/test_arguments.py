"""Parameters to JSON, fragment by fragment."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.text import arguments
from diptych.text.arguments import Arguments

Given = tuple[str, bool | None, str]  # name, is it a string, value


def write(*parameters: Given, body: str = "", trusted: bool = False, known: str = "") -> str:
    found = Arguments(frozenset(known.split()), trusted=trusted, odd=Counter())
    text = found.text(body)
    for name, is_string, value in parameters:
        text += found.open(name, is_string)
        text += "".join(map(found.text, value)) + found.close() + found.text("\n")
    return text + found.finish()


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([], "{}"),
        ([("a", True, "")], '{"a": ""}'),
        ([("a", True, 'x "y"\n\\\t\x01é😀')], '{"a": "x \\"y\\"\\n\\\\\\t\\u0001é😀"}'),
        ([("a", True, "1"), ("b", False, "1")], '{"a": "1", "b": 1}'),
        # JSON in our spelling, digits as they stand
        ([("n", False, ' {"x":[1,2.50],"y":"\\u00e9"}\n')], '{"n": {"x": [1, 2.50], "y": "é"}}'),
        ([("n", False, "9007199254740993")], '{"n": 9007199254740993}'),
        ([("n", False, "3" * 30)], '{"n": ' + "3" * 30 + "}"),
        # what is no JSON becomes a string
        ([("n", False, "")], '{"n": ""}'),
        ([("n", False, "x")], '{"n": "x"}'),
        ([("n", False, "NaN")], '{"n": "NaN"}'),
        ([("n", False, "True")], '{"n": "True"}'),
        # of a type that is not said
        ([("a", None, "3"), ("b", None, "x y")], '{"a": 3, "b": "x y"}'),
        # given twice
        ([("a", True, "x"), ("a", True, "y"), ("b", True, "z")], '{"a": "x", "b": "z"}'),
        # all arguments in one
        ([("arguments", True, '{"a":1}')], '{"a": 1}'),
        ([("input", False, '{"a":1}')], '{"a": 1}'),
        ([("arguments", True, "x")], '{"arguments": "x"}'),
        ([("arguments", True, "[1]")], '{"arguments": "[1]"}'),
        ([("arguments", False, "[1]")], '{"arguments": [1]}'),
        ([("input", True, '{"a":1}'), ("b", True, "c")], '{"input": "{\\"a\\":1}", "b": "c"}'),
        ([("b", True, "c"), ("arguments", True, "{}")], '{"b": "c", "arguments": "{}"}'),
    ],
)  # fmt: skip
def test_parameters_are_written_as_json(parameters: list[Given], expected: str) -> None:
    assert write(*parameters) == expected
    json.loads(expected)


def test_a_parameter_of_the_schema_is_not_unwrapped() -> None:
    assert write(("input", True, '{"a":1}'), known="input") == '{"input": "{\\"a\\":1}"}'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("\n", "{}"),
        ('\n{"a":[1,2]}\n', '{"a": [1, 2]}'),
        ("[1]", "{}"),
        ("x", "{}"),
        ('{"a":1} x', "{}"),
    ],
)
def test_a_body_without_parameters_is_arguments_if_it_is_an_object(
    body: str, expected: str
) -> None:
    assert write(body=body) == expected
    assert write(("a", True, "b"), body=body) == '{"a": "b"}'


def test_values_that_a_grammar_wrote_are_not_held_back() -> None:
    found = Arguments(frozenset(), trusted=True, odd=Counter())
    assert found.open("n", False) == '{"n": '
    assert found.text("[1, ") == "[1, "
    assert found.text("2]") == "2]"
    assert found.close() + found.finish() == "}"


def test_a_value_too_long_to_hold_back_is_passed_on() -> None:
    found = Arguments(frozenset(), trusted=False, odd=Counter())
    size = arguments.MAX_WAITING_CHARS // 2
    assert found.open("n", False) + found.text("[") == '{"n": '
    assert found.text("1," * size) == "[" + "1," * size
    assert found.text("1]") + found.finish() == "1]}"


@given(st.lists(st.tuples(st.text(), st.sampled_from([True, False, None]), st.text()), max_size=4))
def test_arguments_are_json_whatever_the_parameters(parameters: list[Given]) -> None:
    assert isinstance(json.loads(write(*parameters)), dict)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(), VALUES))
def test_arguments_written_as_in_history_come_back(values: dict[str, object]) -> None:
    parameters: list[Given] = [
        (name, True, value)
        if isinstance(value, str)
        else (name, False, json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
    ]
    known = Arguments(frozenset(values), trusted=False, odd=Counter())
    text = ""
    for name, is_string, value in parameters:
        text += known.open(name, is_string) + known.text(value) + known.close()
    assert text + known.finish() == json.dumps(values, ensure_ascii=False)
