"""JSON as Python's `json.dumps(x, ensure_ascii=False)` writes it: the spelling the model knows."""

import json
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import NoReturn

import orjson

MAX_DEPTH = 127


def loads(text: str) -> object:
    """Read JSON strictly: no NaN, no infinite number, no lone surrogate, no bottomless nesting."""
    value = orjson.loads(text)
    _check_depth(value, text)
    return value


def dumps(value: object) -> str:
    """Write with `", "` and `": "`, and non-ASCII characters as they are."""
    return _ENCODER.encode(value)


def escape(text: str) -> str:
    """Text as it stands between the quotes of a JSON string. Joins like the text itself."""
    return encode_basestring(text)[1:-1]


def restyle(text: str) -> str:
    """The same document in Python's spelling, each number digit by digit as it stands.

    ValueError unless `loads` would read it.
    """
    loads(text)
    parsed = _EXACT.decode(text)
    out: list[str] = []
    _write(parsed, out)
    return "".join(out)


class _Number(str):
    """A number that never was a float."""

    __slots__ = ()


def _reject(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_EXACT = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_reject)


def _write(value: object, out: list[str]) -> None:
    if isinstance(value, dict):
        mark = "{"
        for key, item in value.items():
            out.append(f"{mark}{dumps(key)}: ")
            _write(item, out)
            mark = ", "
        out.append("}" if value else "{}")
    elif isinstance(value, list):
        mark = "["
        for item in value:
            out.append(mark)
            _write(item, out)
            mark = ", "
        out.append("]" if value else "[]")
    else:
        out.append(value if isinstance(value, _Number) else dumps(value))


def _check_depth(value: object, text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _containers(container: Iterable[object]) -> list[Iterable[object]]:
    items = container.values() if isinstance(container, dict) else container
    return [item for item in items if isinstance(item, dict | list)]
