"""Calls of tools as a client reads them, streamed and whole."""

import secrets
import string
from collections.abc import Iterable
from typing import Any

from diptych.text.pieces import CallArguments, CallStart, Piece

_ALPHABET = string.digits + string.ascii_letters
_RANDOM_CHARS = 24


def fragment(piece: Piece) -> dict[str, Any] | None:
    """One piece of a stream; id, type and name come once, with the first."""
    match piece:
        case CallStart(index, name):
            return {"index": index, **_call(index, name)}
        case CallArguments(index, text):
            return {"index": index, "function": {"arguments": text}}
    return None


def whole(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """All calls of an answer, as far as they came."""
    found: list[dict[str, Any]] = []
    for piece in pieces:
        match piece:
            case CallStart(index, name):
                found.append(_call(index, name))
            case CallArguments(index, text):
                found[index]["function"]["arguments"] += text
    return found


def _call(index: int, name: str) -> dict[str, Any]:
    chars = (secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARS))
    call_id = f"call_{index:02d}_{''.join(chars)}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
