"""Python's spelling of JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.text import pyjson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
def test_any_spelling_becomes_pythons(value: object) -> None:
    expected = json.dumps(value, ensure_ascii=False)
    assert pyjson.dumps(value) == expected
    assert pyjson.loads(expected) == value
    for spelling in (
        expected,
        json.dumps(value),
        json.dumps(value, indent=1),
        json.dumps(value, separators=(",", ":")),
    ):
        assert pyjson.restyle(spelling) == expected


@pytest.mark.parametrize(
    "number", ["9007199254740993", "1" * 30, "1.0", "0.10", "1e5", "1E-7", "-0", "-0.0", "2.50"]
)
def test_restyling_keeps_every_digit(number: str) -> None:
    assert pyjson.restyle(f'{{"a":[{number}]}}') == f'{{"a": [{number}]}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "{}x", "NaN", "[Infinity]", "1e400", '"\\ud83d"', "'a'", "01", "\ufeff{}"),
        *('"\n"', "[" * 128 + "]" * 128, "[" * 5000 + "]" * 5000),
    ],
)
def test_what_is_not_quite_json_is_refused(text: str) -> None:
    for read in (pyjson.loads, pyjson.restyle):
        with pytest.raises(ValueError, match=r"."):
            read(text)


def test_documents_as_deep_as_allowed_are_read() -> None:
    deep = "[" * 127 + "1" + "]" * 127
    assert pyjson.restyle(deep) == deep
    assert pyjson.restyle('{"a": [], "b": {}}') == '{"a": [], "b": {}}'


@given(st.lists(st.text()))
def test_escaped_parts_join_like_their_texts(parts: list[str]) -> None:
    whole = "".join(map(pyjson.escape, parts))
    assert json.loads(f'"{whole}"') == "".join(parts)
    assert f'"{whole}"' == pyjson.dumps("".join(parts))
